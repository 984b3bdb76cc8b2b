"""ELODI: hold a single model to the logits of an ensemble of its own kind."""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from flipguard.losses import Ranking, Reduction, logit_difference_inhibition
from flipguard.methods.card import Card
from flipguard.methods.checks import check_choice, check_not_negative, check_shares
from flipguard.methods.objective import Combining, Seen
from flipguard.methods.terms import Terms
from flipguard.types import InputError


@dataclass(frozen=True)
class LogitDifference:
    """How the LDI loss is taken (ELODI Eq. 7, 8). `k=None` takes every class.

    Departures: the default averages over the kept classes where Eq. 8 sums, so that α means the same whatever the
    number of classes; and ranks by either side, since ranking by the reference alone leaves the other logits free.
    """

    p: float = 2.0
    k: int | None = None
    ranked_by: Ranking = "either"
    margin: float = 0.0
    reduction: Reduction = "mean"
    with_label: bool = True

    def __post_init__(self) -> None:
        check_not_negative(margin=self.margin)
        check_choice("ranked_by", self.ranked_by, get_args(Ranking))
        check_choice("reduction", self.reduction, get_args(Reduction))
        if not self.p >= 1 or (self.k is not None and self.k < 1):
            raise InputError(f"LDI needs p and k of at least 1, got p={self.p} and k={self.k}.")

    def __call__(self, student: Tensor, reference: Tensor, y: Tensor) -> Tensor:
        """Two (B, S) and labels (B,) as their columns, -1 where the label is none of them -> (B,)."""
        if self.with_label:
            return self._loss(student, reference, None)
        # Where the label is no column there is nothing to leave out: both losses are taken, and one of them chosen.
        without = self._loss(student, reference, y.clamp(min=0))
        return torch.where(y < 0, self._loss(student, reference, None), without)

    def _loss(self, student: Tensor, reference: Tensor, y: Tensor | None) -> Tensor:
        return logit_difference_inhibition(
            student,
            reference,
            p=self.p,
            margin=self.margin,
            k=self.k,
            ranked_by=self.ranked_by,
            y=y,
            reduction=self.reduction,
        )


@dataclass(frozen=True)
class Elodi(Combining):
    """L = (1 - α)·CE + α·[λ·LDI(ensemble) + (1 - λ)·LDI(old)], ELODI Eq. 8 and 9. λ is `mix`.

    λ = 1, the default, needs no old model at all: the ensemble has the student's own architecture. λ < 1 is for an old
    model that was never treated (Section 4.3).
    """

    alpha: float = 0.8
    mix: float = 1.0
    difference: LogitDifference = LogitDifference()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(alpha=self.alpha, mix=self.mix)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ensemble",) if self.mix == 1 else ("ensemble", "old")

    @property
    def label_weight(self) -> float:
        return 1 - self.alpha

    def terms(self, seen: Seen) -> Terms:
        shares = {"ensemble": self.mix, "old": 1 - self.mix}
        found: Terms = {}
        for name in self.needs:
            loss = self.difference(*seen.held_to(name, combination=self.combination), seen.labels(name))
            found[f"ldi_{name}"] = (self.alpha * shares[name], loss)
        return found


@dataclass(frozen=True)
class Ldi(Combining):
    """L = (1 - α)·CE + α·LDI(old): the loss of ELODI aimed at a single old model, a targeted baseline."""

    alpha: float = 0.5
    difference: LogitDifference = LogitDifference(margin=0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(alpha=self.alpha)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    @property
    def label_weight(self) -> float:
        return 1 - self.alpha

    def terms(self, seen: Seen) -> Terms:
        both = seen.held_to("old", combination=self.combination)
        return {"ldi_old": (self.alpha, self.difference(*both, seen.labels("old")))}


@dataclass(frozen=True)
class Heir(Ldi):
    """L = (1 - α)·CE + α·LDI(old), `old` being the mean logits of the ensemble that the old release was distilled from.

    Our own method. That ensemble is near the mean of its kind, as ELODI's release is, and better than it; it was paid
    for then. There is no margin: by the displacement law what is to be met is the mean itself. For the price of a long
    training of one network let `train.dealt` ask one member of each row, or `train.views` all of them once.
    """

    difference: LogitDifference = LogitDifference()


CARDS = (
    Card(
        name="ldi",
        summary="Learns from the labels and holds the logits to the old model's.",
        kind="objective",
        paper="Zhao et al. 2024 (ELODI)",
        equation="8",
        training_cost="1 + 1/3",
        references=("old",),
        factory=Ldi,
    ),
    Card(
        name="heir",
        summary="Learns from the labels and holds the logits to the ensemble that the old release learned from.",
        kind="objective",
        paper="flipguard (after Zhao et al. 2024, ELODI)",
        equation="-",
        training_cost="1 + m/3",
        references=("old",),
        factory=Heir,
        heritage=True,
    ),
    Card(
        name="elodi",
        summary="Learns from the labels and holds the logits to the mean of an ensemble of its own kind.",
        kind="objective",
        paper="Zhao et al. 2024 (ELODI)",
        equation="7-9",
        training_cost="1 + 4m/3",
        references=("ensemble",),
        factory=Elodi,
    ),
)
