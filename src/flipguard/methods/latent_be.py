"""One-to-one distillation into a BatchEnsemble, merged into one network (LatentBE) or kept whole."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from torch import nn

from flipguard.ensembles import BatchStudent
from flipguard.ensembles.batch import Merge
from flipguard.losses import cross_entropy, kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_choice, check_not_negative, check_shares
from flipguard.methods.objective import Distilling
from flipguard.methods.terms import each_member, step
from flipguard.types import Batch, InputError, Reference, Step, Student

PAPER_SETTINGS: dict[str, dict[str, float]] = {
    "cifar10": {"alpha": 1.0, "temperature": 4.0},
    "cifar100": {"alpha": 1.0, "temperature": 4.0},
    "tinyimagenet": {"alpha": 0.9, "temperature": 20.0},
    "imagenet": {"alpha": 1.0, "temperature": 1.0},
}
"""(α, τ) of LatentBE's Eq. 26 per data set. They hold for its KD, AE-KD, BatchEnsemble and LatentBE rows alike."""


@dataclass(frozen=True)
class OneToOne(Distilling):
    """L = Σ_m (1 - α)·CE(S_m) + α·τ²·KL(σ(T_m/τ) ‖ σ(S_m/τ)): each member learns from a teacher of its own.

    LatentBE (Nam et al. 2022), Eq. 3 with the labels of Eq. 26, though these at τ = 1, as in the released code, where
    the equation has them at τ too. KL has the gradients of the paper's cross-entropy, and is zero where both agree.
    The student is a BatchEnsemble, whose shared weights move by the mean over members and whose factors by their own
    member's loss. `members` must be as many as the reference 'ensemble' has; the paper has 2, 4 and 8. Any network
    will do (see `batch_ensemble`).
    """

    alpha: float = 1.0
    temperature: float = 4.0
    members: int = 3
    factor_rate: float = 1.0
    factor_decay: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(alpha=self.alpha)
        check_above_zero(temperature=self.temperature, factor_rate=self.factor_rate)
        if self.factor_decay is not None:
            check_not_negative(factor_decay=self.factor_decay)
        if self.members < 1:
            raise InputError(f"members must be at least 1, got {self.members}.")

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ensemble",)

    @property
    def label_weight(self) -> float:
        return 1 - self.alpha

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        if student.members != self.members:
            raise InputError(
                f"this method trains a student of its own with {self.members} members; the one it was called with has "
                f"{student.members}: make it with the method's `student`."
            )
        shown = self.shown(student, references, batch)
        logits, clean = self.logits(student, batch, shown)
        theirs, mine = each_member(references, "ensemble", shown, logits)
        if len(theirs) != len(mine):
            raise InputError(
                f"each member learns from a teacher of its own, but the student has {len(mine)} and the reference "
                f"'ensemble' {len(theirs)}: set members={len(theirs)}."
            )
        y = batch.y.repeat(len(clean))
        labels = cross_entropy(clean.flatten(0, 1), y, label_smoothing=self.label_smoothing)
        pairs = kl_divergence(mine.flatten(0, 1), theirs.flatten(0, 1), temperature=self.temperature)
        terms = {"cross_entropy": (self.label_weight, labels), "distillation": (self.alpha, pairs)}
        by_member = {name: (weight, loss.unflatten(0, mine.shape[:2])) for name, (weight, loss) in terms.items()}
        return step(clean, by_member)


@dataclass(frozen=True)
class LatentBE(OneToOne):
    """`OneToOne` from factors of 1, decayed towards 1, merged on release: LatentBE's Algorithm 2.

    The paper's own perturbation is `perturbation="tdiv_sdiv"`. `how` is its merge (Eq. 5), or the released code's
    "product_of_means".
    """

    how: Merge = "mean_of_products"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("how", self.how, get_args(Merge))

    def student(self, build: Callable[[int], nn.Module], *, decay_all: bool) -> BatchStudent:
        """What this method trains."""
        return BatchStudent(
            build(0),
            self.members,
            how=self.how,
            factor_rate=self.factor_rate,
            factor_decay=self.factor_decay,
            decay_all=decay_all,
        )


@dataclass(frozen=True)
class BatchEnsembleDistillation(OneToOne):
    """`OneToOne` from factors around 1 (normal, `std`), released whole: Mariet et al. 2021, LatentBE's Algorithm 1."""

    std: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(std=self.std)

    def student(self, build: Callable[[int], nn.Module], *, decay_all: bool) -> BatchStudent:
        """What this method trains."""
        return BatchStudent(
            build(0),
            self.members,
            std=self.std,
            released="ensemble",
            factor_rate=self.factor_rate,
            factor_decay=self.factor_decay,
            decay_all=decay_all,
        )


_COMMON: dict[str, Any] = {
    "kind": "objective",
    "training_cost": "7m/3",
    "references": ("ensemble",),
    "settings": PAPER_SETTINGS,
}

CARDS = (
    Card(
        name="latent_be",
        summary="A BatchEnsemble learns from an ensemble, member from member, and is merged into one network.",
        paper="Nam et al. 2022 (LatentBE)",
        equation="3, 5, 26, Algorithm 2",
        factory=LatentBE,
        **_COMMON,
    ),
    Card(
        name="batch_ensemble",
        summary="A BatchEnsemble learns from an ensemble, member from member, and is released whole.",
        paper="Mariet et al. 2021; Nam et al. 2022 (LatentBE)",
        equation="3, 26, Algorithm 1",
        inference_cost="m",
        factory=BatchEnsembleDistillation,
        departures={
            "agreement": "its members start around the network that they are made of",
            "bf16": "its factors scatter the logits that the test sets; a test of its own has logits of ±1e4",
        },
        **_COMMON,
    ),
)
