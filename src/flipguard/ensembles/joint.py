"""Students of several networks that are trained side by side, of which the first is released."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.ensembles.combine import features_and_logits, stacked
from flipguard.ensembles.students import decay_groups
from flipguard.types import InputError, Output


class JointStudent(nn.Module):
    """M networks on the same batch. Any of them could be released; it is the first."""

    def __init__(self, networks: Sequence[nn.Module], *, decay_all: bool = True) -> None:
        super().__init__()
        if len(networks) < 2:
            raise InputError(f"networks that are trained jointly are at least 2, got {len(networks)}.")
        self.members = len(networks)
        self.networks = nn.ModuleList(networks)
        self.decay_all = decay_all

    def forward(self, x: Any, *, features: bool = False) -> Output:
        """Logits (M, B, C); features (M, B, D) when asked for."""
        if not features:
            return Output(stacked([network(x) for network in self.networks], "student"))
        found, logits = zip(*(features_and_logits(network, x) for network in self.networks), strict=True)
        return Output(stacked(logits, "student"), torch.stack(found))

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [group for network in self.networks for group in decay_groups(network, decay_all=self.decay_all)]

    def release(self) -> nn.Module:
        return self.networks[0]


class StaleStudent(JointStudent):
    """M networks, each with a frozen copy of itself from up to `every` updates ago, which its peers may look at.

    The copies are part of the student, and so of its checkpoint. They are refreshed in place, after every `every`-th
    update: a captured step reads the same memory.
    """

    def __init__(self, networks: Sequence[nn.Module], *, every: int, decay_all: bool = True) -> None:
        super().__init__(networks, decay_all=decay_all)
        if every < 1:
            raise InputError(f"the copies are refreshed every so many updates, at least 1, got {every}.")
        self.every = every
        self.stale = copy.deepcopy(self.networks)
        self.stale.requires_grad_(False)
        self.stale.eval()

    def train(self, mode: bool = True) -> "StaleStudent":
        """The copies stay in evaluation mode: they answer as a checkpoint would."""
        super().train(mode)
        self.stale.eval()
        return self

    @torch.no_grad()
    def stale_logits(self, x: Any) -> Tensor:
        """What the copies say: (M, B, C), without gradients."""
        return stacked([network(x) for network in self.stale], "stale")

    @torch.no_grad()
    def after_step(self, done: int) -> None:
        if done % self.every == 0:
            current = self.networks.state_dict()
            for name, copied in self.stale.state_dict().items():
                copied.copy_(current[name])
