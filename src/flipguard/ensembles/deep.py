"""The deep ensemble as one network."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from flipguard.ensembles.combine import Combination, combined, stacked
from flipguard.types import InputError


class DeepEnsemble(nn.Module):
    """Members that were trained apart and answer together: `forward(x)` gives their combined logits (B, C)."""

    def __init__(self, members: Sequence[nn.Module], *, combination: Combination = "logits") -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble needs at least one member.")
        self.members = nn.ModuleList(members)
        self.combination = combination
        self.eval()

    def forward(self, x: Any) -> Tensor:
        return combined(stacked([member(x) for member in self.members], "ensemble"), self.combination)
