"""GRAFT: branches grown on one trunk, held to their mean and to the old model, of which one is released."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from flipguard.ensembles import BranchedStudent
from flipguard.losses import cross_entropy, focal_weight, kl_divergence
from flipguard.losses.logits import at_least_float32
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_not_negative, check_shares, check_smoothing
from flipguard.methods.codistillation import check_members, members_of
from flipguard.methods.ramps import linear_ramp
from flipguard.methods.terms import Terms, labels_of, reference_logits, step
from flipguard.types import Batch, Reference, Step, Student


@dataclass(frozen=True)
class Graft:
    """L = Σ_m [CE(S_m) + γ·τ²·KL(σ(S̄/τ) ‖ σ(S_m/τ)) + λ·(α + β·1(old is right))·D(S_m, old)].

    λ is `strength`, γ `unity`. S̄ is the mean of the branches' logits, without gradients; D is focal distillation's
    τ²·KL(old ‖ S_m) at `old_temperature` (PCT Eq. 7, as `fd_kl`). The branches share their first blocks: `own` is the
    share of blocks, the last ones, that each has for itself (`BranchedStudent`). γ rises linearly over the share `ramp`
    of training, as the mean of untrained branches says nothing. With λ = 0 there is no old model, and the branches are
    held to their mean alone, as the shared networks of Lan et al. 2018 (ONE), though without its gate.
    """

    members: int = 4
    own: float = 0.5
    unity: float = 1.0
    temperature: float = 3.0
    strength: float = 0.05
    alpha: float = 1.0
    beta: float = 5.0
    old_temperature: float = 100.0
    ramp: float = 0.2
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_members(self.members)
        check_shares(own=self.own, ramp=self.ramp)
        check_not_negative(unity=self.unity, strength=self.strength, alpha=self.alpha, beta=self.beta)
        check_above_zero(temperature=self.temperature, old_temperature=self.old_temperature, own=self.own)
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",) if self.strength > 0 else ()

    def student(self, build: Callable[[int], nn.Module], *, decay_all: bool) -> BranchedStudent:
        """What this method trains."""
        return BranchedStudent(build, self.members, own=self.own, decay_all=decay_all)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        branches = len(members_of(logits, self.members))
        mean = at_least_float32(logits.detach()).mean(0).expand_as(logits)
        every = logits.flatten(0, 1)
        y = batch.y.repeat(branches)
        labels = cross_entropy(every, y, label_smoothing=self.label_smoothing)
        apart = kl_divergence(every, mean.flatten(0, 1), temperature=self.temperature)
        terms: Terms = {
            "cross_entropy": (1.0, labels),
            "disagreement": (self.unity * linear_ramp(batch.progress, self.ramp), apart),
        }
        if self.strength > 0:
            terms["focal_distillation"] = (self.strength, self._held(logits, references, batch))
        return step(
            logits, {name: (weight, loss.unflatten(0, (branches, -1))) for name, (weight, loss) in terms.items()}
        )

    def _held(self, logits: Tensor, references: Mapping[str, Reference], batch: Batch) -> Tensor:
        """(M·B,): each branch to the old model, which is asked once."""
        theirs, mine = reference_logits(references, "old", batch, logits, temperature=self.old_temperature)
        weight = focal_weight(
            theirs, labels_of(references, "old", batch.y, logits.shape[-1]), alpha=self.alpha, beta=self.beta
        )
        every = kl_divergence(mine.flatten(0, 1), theirs.repeat(len(mine), 1), temperature=self.old_temperature)
        return weight.repeat(len(mine)) * every


@dataclass(frozen=True)
class Scion(Graft):
    """`Graft`'s loss, `old` being the ensemble that the old release was distilled from.

    Our own method. The branches' mean gives the error of an ensemble of the new network, the old release's ensemble,
    which is there already, the flips of one. With `train.dealt` each row is answered by one of its members: at a high
    `old_temperature` the divergence is that of squared logits, so that in expectation the pull is towards their mean.
    """

    members: int = 3
    strength: float = 0.1


@dataclass(frozen=True)
class Twins(Graft):
    """`Graft`'s loss for whole networks, which share nothing but the batch, and stand close to each other.

    Our own method. For small distances the pull to the mean is that of co-distillation (Bhojanapalli et al. 2021,
    Eq. 9) with β = γ/4, two members and τ = 1: it lowers the error of both and the variance of the one that is
    released, so that an old release that was made alike is near, and a pull to it costs no accuracy. Without an old
    model (λ = 0) it makes a first release.
    """

    members: int = 2
    own: float = 1.0
    unity: float = 4.0
    temperature: float = 1.0
    strength: float = 0.3


CARDS = (
    Card(
        name="graft",
        summary="Branches on one trunk learn from their mean and stay close to the old model; one is released.",
        kind="objective",
        paper="flipguard (after Lan et al. 2018 and Yan et al. 2021)",
        equation="docs/methods/graft.md",
        training_cost="1/2 + m/2 + 1/3",
        references=("old",),
        factory=Graft,
    ),
    Card(
        name="scion",
        summary="Branches on one trunk learn from their mean and from the old release's ensemble; one is released.",
        kind="objective",
        paper="flipguard (after Zhao et al. 2024, ELODI, Lan et al. 2018 and Yan et al. 2021)",
        equation="docs/methods/scion.md",
        training_cost="1/2 + b/2 + m/3",
        references=("old",),
        factory=Scion,
        heritage=True,
    ),
    Card(
        name="twins",
        summary="Two networks side by side stay close to each other and to the old release; one is released.",
        kind="objective",
        paper="flipguard (after Bhojanapalli et al. 2021, churn, and Yan et al. 2021)",
        equation="docs/methods/twins.md",
        training_cost="m + 1/3",
        references=("old",),
        factory=Twins,
        first={"strength": 0.0},
    ),
)
