"""Minimum-entropy regularisers: sure predictions change less from run to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from flipguard.losses import cross_entropy, divergence_from_uniform, prediction_entropy
from flipguard.methods.card import Card
from flipguard.methods.checks import check_choice, check_shares, check_smoothing
from flipguard.methods.ramps import linear_ramp
from flipguard.methods.terms import only_member, step
from flipguard.types import Batch, InputError, Reference, Step, Student

Regulariser = Literal["entropy", "skl"]


@dataclass(frozen=True)
class MinimumEntropy:
    """L = (1 - α)·CE + α·H(f), or L = (1 - α)·CE - α·SKL(f, uniform): Bhojanapalli et al. 2021 (churn), Eq. 6 and 7.

    α rises linearly over the share `ramp` of training. The paper warms the coefficient up beside co-distillation, and
    says neither for how long nor whether it does so here; `ramp=0` has α in full from the start. `k` takes the k most
    likely classes only (10 for ImageNet). Eq. 7 has no lower bound, as SKL grows with the logits: weight decay must
    hold them. The default α is Table 5's for CIFAR-100; the card's `settings` have the others.
    """

    alpha: float = 0.25
    regulariser: Regulariser = "entropy"
    k: int | None = None
    ramp: float = 0.2
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_shares(alpha=self.alpha, ramp=self.ramp)
        check_choice("regulariser", self.regulariser, get_args(Regulariser))
        check_k(self.k)
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        mine = only_member(logits)
        loss = cross_entropy(mine, batch.y, label_smoothing=self.label_smoothing)
        alpha = self.alpha * linear_ramp(batch.progress, self.ramp)
        return step(
            logits,
            {
                "cross_entropy": (1 - alpha, loss),
                self.regulariser: (alpha, regularised(mine, self.regulariser, self.k)),
            },
        )


def regularised(logits: Tensor, regulariser: Regulariser, k: int | None) -> Tensor:
    """What is added to the loss of each sample, times α: (B, C) -> (B,). The lower, the surer the prediction."""
    return prediction_entropy(logits, k=k) if regulariser == "entropy" else -divergence_from_uniform(logits, k=k)


def check_k(k: int | None) -> None:
    """The top-k form needs a class."""
    if k is not None and k < 1:
        raise InputError(f"k must be at least 1, or None for all classes, got {k}.")


CARDS = (
    Card(
        name="entropy",
        summary="Adds the predictions' entropy to the loss: sure predictions change less from run to run.",
        kind="objective",
        paper="Bhojanapalli et al. 2021 (churn)",
        equation="6",
        training_cost="1",
        factory=MinimumEntropy,
        fixed={"regulariser": "entropy"},
        settings={
            "cifar10": {"alpha": 0.15},
            "cifar100": {"alpha": 0.25},
            "imagenet": {"alpha": 0.2, "k": 10},
            "inaturalist": {"alpha": 0.4},
            "svhn": {"alpha": 0.2},
        },
    ),
    Card(
        name="skl",
        summary="Drives predictions away from uniform, by symmetric KL: sure ones change less from run to run.",
        kind="objective",
        paper="Bhojanapalli et al. 2021 (churn)",
        equation="7",
        training_cost="1",
        factory=MinimumEntropy,
        fixed={"regulariser": "skl"},
        defaults={"alpha": 0.35},
        settings={
            "cifar10": {"alpha": 0.05},
            "cifar100": {"alpha": 0.35},
            "imagenet": {"alpha": 0.05, "k": 10},
        },
    ),
)
