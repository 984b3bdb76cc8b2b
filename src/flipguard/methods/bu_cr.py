"""The Bayesian update with a cost ratio as a training objective; `flipguard rewrite` is the same without training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flipguard.losses import cost_ratio_target, cross_entropy
from flipguard.losses.logits import at_least_float32
from flipguard.methods.card import Card
from flipguard.methods.checks import check_shares, check_smoothing
from flipguard.methods.terms import labels_of, only_member, reference_logits, step
from flipguard.types import Batch, InputError, Reference, Step, Student


@dataclass(frozen=True)
class BayesianUpdate:
    """L = (1 - α)·CE(new, y) + α·CE(new, t), t the label that the CR rule keeps or changes (Träuble et al. 2021).

    ELODI's Table 1 trains the new model "online" on the rule's targets and says no more. This is how we read it: at
    every step the old model's prediction is what is stored, the old model's and the student's present probabilities
    are the evidence, p(k) ∝ σ_k(old)·σ_k(student), and t leaves the stored label only where the best other one is more
    than `cost_ratio` times as probable. No gradient flows through t. A step has no counts from which to estimate
    confusion matrices, so a model's own softmax stands for them. A class that the old model does not know keeps the
    prior's 1/C. The labels' share 1 - α is ours: on the rule's targets alone a class that only the student knows would
    never be learned.
    """

    alpha: float = 0.5
    cost_ratio: float = 5.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_shares(alpha=self.alpha)
        check_smoothing(self.label_smoothing)
        if not self.cost_ratio >= 1:
            raise InputError(f"cost_ratio must be at least 1, got {self.cost_ratio}.")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        mine = only_member(logits)
        held, _ = reference_logits(references, "old", batch, mine)
        classes = mine.shape[-1]
        column = labels_of(references, "old", torch.arange(classes, device=mine.device), classes)
        target = cost_ratio_target(
            *_evidence(at_least_float32(held), at_least_float32(mine), column), cost_ratio=self.cost_ratio
        )
        terms = {
            "cross_entropy": (1 - self.alpha, cross_entropy(mine, batch.y, label_smoothing=self.label_smoothing)),
            "bayesian_update": (self.alpha, cross_entropy(mine, target)),
        }
        return step(logits, terms)


def _evidence(old: Tensor, student: Tensor, column: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The old model's log-probabilities on the student's classes (B, C), the student's logits, and what is stored (B,).

    old: (B, S); student: (B, C); column (C,) holds each class's place among the S, -1 for none.
    """
    classes, known = student.shape[-1], old.shape[-1]
    spread = torch.log_softmax(old, -1)[:, column.clamp(min=0)] + math.log(known / classes)
    stored = spread.masked_fill(column < 0, -torch.inf).argmax(-1)
    return spread.masked_fill(column < 0, -math.log(classes)), student.detach(), stored


CARDS = (
    Card(
        name="bu_cr",
        summary="Learns from the labels and the old predictions, these changed where another class is far likelier.",
        kind="objective",
        paper="Träuble et al. 2021 (BU-CR); Zhao et al. 2024 (ELODI), Table 1",
        equation="-",
        training_cost="1 + 1/3",
        references=("old",),
        factory=BayesianUpdate,
        departures={"agreement": "its target is a label, whose cross-entropy is not zero where both models agree"},
    ),
)
