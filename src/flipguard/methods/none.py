"""No treatment: cross-entropy alone."""

from dataclasses import dataclass

from flipguard.methods.card import Card
from flipguard.methods.objective import Objective


@dataclass(frozen=True)
class NoTreatment(Objective):
    """L = CE (PCT Eq. 3). What every other method is compared to."""


CARDS = (
    Card(
        name="none",
        summary="Trains on the labels alone: what every other method is compared to.",
        kind="objective",
        paper="Yan et al. 2021 (PCT)",
        equation="3",
        training_cost="1",
        factory=NoTreatment,
    ),
)
