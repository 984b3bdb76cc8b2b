"""Students: what is trained, with a leading member axis."""

from typing import Any

from torch import nn

from flipguard.ensembles.combine import features_and_logits
from flipguard.training.recipe import decay_groups
from flipguard.types import Output


class SingleStudent(nn.Module):
    """One plain network: M = 1, and it is released as it is."""

    members = 1

    def __init__(self, network: nn.Module, *, decay_all: bool = True) -> None:
        super().__init__()
        self.network = network
        self.decay_all = decay_all

    def forward(self, x: Any, *, features: bool = False) -> Output:
        """Logits (1, B, C); features (1, B, D) when asked for."""
        if not features:
            return Output(self.network(x)[None])
        found, logits = features_and_logits(self.network, x)
        return Output(logits[None], found[None])

    def parameter_groups(self) -> list[dict[str, Any]]:
        return decay_groups(self.network, decay_all=self.decay_all)

    def release(self) -> nn.Module:
        return self.network
