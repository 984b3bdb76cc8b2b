"""Dropout before the head: an ensemble of thinned networks in one, and a cheap baseline."""

from dataclasses import dataclass
from typing import Any

from flipguard.methods.card import Card
from flipguard.methods.objective import Objective
from flipguard.types import InputError


@dataclass(frozen=True)
class Dropout(Objective):
    """L = CE on a network that drops each penultimate feature with probability p while it trains.

    Srivastava et al. 2014; a baseline of ELODI's Table 1. The network is the method here: `model_options` is what it
    must be built with.
    """

    p: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.p < 1:
            raise InputError(f"p must be at least 0 and below 1, got {self.p}.")

    @property
    def model_options(self) -> dict[str, Any]:
        """What the student's network is built with."""
        return {"dropout": self.p}


CARDS = (
    Card(
        name="dropout",
        summary="Drops random features before the last layer while it trains.",
        kind="objective",
        paper="Srivastava et al. 2014",
        equation="-",
        training_cost="1",
        factory=Dropout,
    ),
)
