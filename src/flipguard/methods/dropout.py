"""Dropout before the head: an ensemble of thinned networks in one, and a cheap baseline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flipguard.losses import cross_entropy
from flipguard.methods.card import Card
from flipguard.methods.checks import check_smoothing
from flipguard.methods.terms import only_member, step
from flipguard.types import Batch, InputError, Reference, Step, Student


@dataclass(frozen=True)
class Dropout:
    """L = CE on a network that drops each penultimate feature with probability p while it trains.

    Srivastava et al. 2014; a baseline of ELODI's Table 1. The network is the method here: `model_options` is what it
    must be built with.
    """

    p: float = 0.2
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise InputError(f"p must be at least 0 and below 1, got {self.p}.")
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    @property
    def model_options(self) -> dict[str, Any]:
        """What the student's network is built with."""
        return {"dropout": self.p}

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        loss = cross_entropy(only_member(logits), batch.y, label_smoothing=self.label_smoothing)
        return step(logits, {"cross_entropy": (1.0, loss)})


CARDS = (
    Card(
        name="dropout",
        kind="objective",
        paper="Srivastava et al. 2014",
        equation="-",
        training_cost="1",
        factory=Dropout,
    ),
)
