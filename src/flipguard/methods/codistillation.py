"""Co-distillation: networks that are trained together, and held to each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from flipguard.ensembles import JointStudent
from flipguard.losses import cross_entropy, probability_distance, symmetric_kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_choice, check_not_negative, check_shares, check_smoothing
from flipguard.methods.entropy import Regulariser, check_k, regularised
from flipguard.methods.ramps import linear_ramp
from flipguard.types import Batch, InputError, Reference, Step, Student

Distance = Literal["skl", "l1"]
_DISTANCES: dict[Distance, Callable[[Tensor, Tensor], Tensor]] = {
    "skl": symmetric_kl_divergence,
    "l1": probability_distance,
}


@dataclass(frozen=True)
class CoDistillation:
    """L = Σ_i CE_i + β·D(f_1, f_2) + α·Σ_i R(f_i): Bhojanapalli et al. 2021 (churn), Eq. 8, 9 and 19.

    R is a regulariser of `entropy` or `skl`, or none. D is the symmetric KL divergence or the L1 distance of the
    probabilities. The networks differ by initialisation and see the same batch, as Eq. 9 takes D on one sample;
    networks of one initialisation would stay equal for good. Both are updated at once, and the first is released.

    β rises linearly over the share `ramp` of training, and α with it; the paper's β_t = min(c·t, β) leaves c open. With
    more than two members, D is the sum over pairs divided by `members` - 1, so that each is held to its peers with the
    same total weight. The default α is Table 5's for CIFAR-100, and the card's `settings` have all of its coefficients,
    such as "cifar100+entropy". Its β of 0.04 did next to nothing on any data that we tried, and SKL with 1 what the
    paper says (results/README.md, "What makes two runs agree"): the default is 1. 5 does harm where classes are many.
    """

    beta: float = 1.0
    distance: Distance = "skl"
    members: int = 2
    ramp: float = 0.2
    regulariser: Literal["none"] | Regulariser = "none"
    alpha: float = 0.2
    k: int | None = None
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(beta=self.beta, alpha=self.alpha)
        check_shares(ramp=self.ramp)
        check_choice("distance", self.distance, get_args(Distance))
        check_choice("regulariser", self.regulariser, ("none", *get_args(Regulariser)))
        check_k(self.k)
        check_members(self.members)
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def student(self, build: Callable[[int], nn.Module], *, decay_all: bool) -> JointStudent:
        """One network from each of the run's first initialisations."""
        return JointStudent([build(member) for member in range(self.members)], decay_all=decay_all)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        said = members_of(logits, self.members)
        ramp = linear_ramp(batch.progress, self.ramp)
        apart = [_DISTANCES[self.distance](first, second) for first, second in combinations(said, 2)]
        terms = {"disagreement": (self.beta * ramp, torch.stack(apart).sum(0) / (self.members - 1))}
        if self.regulariser != "none":
            sure = torch.stack([regularised(member, self.regulariser, self.k) for member in said])
            terms[self.regulariser] = (self.alpha * ramp, sure.sum(0))
        return joint_step(
            logits, [cross_entropy(m, batch.y, label_smoothing=self.label_smoothing) for m in said], terms
        )


def check_members(members: int) -> None:
    """One network has no peer."""
    if members < 2:
        raise InputError(f"co-distillation needs at least 2 members, got {members}.")


def members_of(logits: Tensor, expected: int) -> Sequence[Tensor]:
    """(M, B, C) as M times (B, C)."""
    if logits.shape[0] != expected:
        raise InputError(
            f"this method trains a student of {expected} members; this one has {logits.shape[0]}: "
            "build it by the method's own `student`."
        )
    return logits.unbind(0)


def joint_step(logits: Tensor, labels: Sequence[Tensor], terms: Mapping[str, tuple[float | Tensor, Tensor]]) -> Step:
    """Sum over members of their losses towards the labels, (B,) each, plus weight · mean of each other term.

    The labels' loss is logged as the members' mean, which compares with that of a student of one.
    """
    each = [loss.mean() for loss in labels]
    total = sum(each[1:], each[0])
    means = {"cross_entropy": total / len(each)} | {name: term.mean() for name, (_, term) in terms.items()}
    for name, (weight, _) in terms.items():
        total = total + weight * means[name]
    return Step(loss=total, logits=logits, terms=means)


CARDS = (
    Card(
        name="codistill_skl",
        summary="Trains networks together, their probabilities drawn to each other by symmetric KL; releases one.",
        kind="objective",
        paper="Bhojanapalli et al. 2021 (churn)",
        equation="9, 19",
        training_cost="m",
        factory=CoDistillation,
        fixed={"distance": "skl"},
        settings={
            "cifar10": {"beta": 0.01},
            "cifar10+entropy": {"beta": 0.01, "regulariser": "entropy", "alpha": 0.1},
            "cifar100": {"beta": 0.04},
            "cifar100+entropy": {"beta": 0.04, "regulariser": "entropy", "alpha": 0.2},
            "imagenet": {"beta": 0.06},
            "imagenet+entropy": {"beta": 0.06, "regulariser": "entropy", "alpha": 0.2, "k": 10},
            "inaturalist": {"beta": 0.05},
            "svhn": {"beta": 0.02},
        },
    ),
    Card(
        name="codistill_l1",
        summary="Trains networks together, their probabilities drawn to each other by L1; releases one.",
        kind="objective",
        paper="Bhojanapalli et al. 2021 (churn)",
        equation="8, 19",
        training_cost="m",
        factory=CoDistillation,
        fixed={"distance": "l1"},
    ),
)
