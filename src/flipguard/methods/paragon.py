"""The paragon: the ensemble itself, in production. The best that a single model held to it can hope for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from torch import nn

from flipguard.ensembles import Combination, DeepEnsemble
from flipguard.methods.card import Card
from flipguard.methods.checks import check_choice


@dataclass(frozen=True)
class Paragon:
    """φ(x) = (1/m)·Σ_j φ_j(x) over members that differ by seed alone (PCT Eq. 10, ELODI Section 3.2).

    No training of its own: called with the members, it returns the network that answers for all of them.
    """

    combination: Combination = "logits"

    def __post_init__(self) -> None:
        check_choice("combination", self.combination, get_args(Combination))

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ensemble",)

    def __call__(self, members: Sequence[nn.Module]) -> DeepEnsemble:
        return DeepEnsemble(members, combination=self.combination)


CARDS = (
    Card(
        name="paragon",
        summary="Releases the ensemble itself: the mean of its members, each of which runs.",
        kind="paragon",
        paper="Yan et al. 2021 (PCT); Zhao et al. 2024 (ELODI)",
        equation="PCT 10",
        training_cost="m",
        inference_cost="m",
        references=("ensemble",),
        factory=Paragon,
    ),
)
