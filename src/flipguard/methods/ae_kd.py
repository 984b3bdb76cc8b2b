"""AE-KD: distillation from several teachers, weighted so that none of them dominates the gradient."""

from dataclasses import dataclass

from torch import Tensor

from flipguard.losses import adaptive_weights, distillation_gradients, kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_shares
from flipguard.methods.latent_be import PAPER_SETTINGS
from flipguard.methods.objective import Distilling, Seen
from flipguard.methods.terms import Terms


@dataclass(frozen=True)
class AdaptiveDistillation(Distilling):
    """L = (1 - α)·CE + α·Σ_m ω_m·τ²·KL(σ(T_m/τ) ‖ σ(S/τ)), ω the batch's own (LatentBE Eq. 27-29; Du et al. 2020).

    ω minimises the norm of the weighted sum of the teachers' gradients on the student's logits; `cap` is its upper
    bound C, between 1/M (all equal) and 1. Departures: KL has the gradients of the paper's cross-entropy and is zero
    where both agree, τ² keeps their size when τ changes, and the labels are at τ = 1. ω is the batch's: with the
    recipe's `accumulate`, each part has its own.
    """

    alpha: float = 1.0
    temperature: float = 4.0
    cap: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(alpha=self.alpha, cap=self.cap)
        check_above_zero(temperature=self.temperature, cap=self.cap)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ensemble",)

    @property
    def label_weight(self) -> float:
        return 1 - self.alpha

    def terms(self, seen: Seen) -> Terms:
        mine, theirs = seen.members_of("ensemble")
        gradients = distillation_gradients(mine, theirs, temperature=self.temperature)
        weights = adaptive_weights(gradients, cap=self.cap)
        return {"distillation": (self.alpha, (weights[:, None] * self._each(mine, theirs)).sum(0))}

    def _each(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """(B, S), (M, B, S) -> (M, B)."""
        students = mine.expand(theirs.shape).flatten(0, 1)
        loss = kl_divergence(students, theirs.flatten(0, 1), temperature=self.temperature)
        return loss.unflatten(0, theirs.shape[:2])


CARDS = (
    Card(
        name="ae_kd",
        summary="Learns from an ensemble, its members weighted so that none dominates the gradient.",
        kind="objective",
        paper="Du et al. 2020 (AE-KD); Nam et al. 2022 (LatentBE)",
        equation="27-29",
        training_cost="1 + 4m/3",
        references=("ensemble",),
        factory=AdaptiveDistillation,
        settings=PAPER_SETTINGS,
    ),
)
