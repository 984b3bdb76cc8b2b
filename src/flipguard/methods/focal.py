"""Focal distillation: distil from the old model, harder where it was right."""

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from flipguard.ensembles import combined
from flipguard.losses import focal_weight, kl_divergence, logit_matching, reverse_kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_choice, check_not_negative
from flipguard.methods.objective import Combining, Seen
from flipguard.methods.terms import Terms

Distance = Literal["kl", "reverse_kl", "logits"]


@dataclass(frozen=True)
class FocalDistillation(Combining):
    """L = CE + λ·(α + β·1(old is right))·D(new, old), PCT Eq. 4 and 7. λ is `strength`.

    `distance="kl"` (FD-KL): τ²·KL(old ‖ new) at τ = 100, as the authors' released code has it. `"reverse_kl"` is Eq. 8
    as written, the other direction without τ²: at τ = 100 it needs a `strength` of about 10⁴ for the same gradients.
    `distance="logits"` (FD-LM): Eq. 9, ½‖new - old‖², a sum over classes. ELODI's Table 10 has FD-KL towards an
    ensemble, at τ = 100 and at τ = 1. With a perturbation the old model is right or wrong on what it is shown, x + ε.

    FD-LM's gradient on a logit is λ·(α + β) = 6 times the distance between the logits, without the bound that
    cross-entropy has: a rate that suits cross-entropy can overshoot, until the loss is not finite or the network is
    dead, with the error of guessing. The paper's form then wants a lower learning rate (on digits 0.002 instead of
    0.05) or the recipe's `clip_norm=1`; a `strength` of 1/C makes the sum over C classes a mean.
    """

    distance: Distance = "logits"
    strength: float = 1.0
    alpha: float = 1.0
    beta: float = 5.0
    temperature: float = 100.0
    reference: Literal["old", "ensemble"] = "old"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("distance", self.distance, get_args(Distance))
        check_not_negative(strength=self.strength, alpha=self.alpha, beta=self.beta)
        check_above_zero(temperature=self.temperature)
        check_choice("reference", self.reference, ("old", "ensemble"))

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.reference,)

    def terms(self, seen: Seen) -> Terms:
        tempered = 1.0 if self.distance == "logits" else self.temperature
        mine, members = seen.to_combine(self.reference)
        theirs = combined(members, self.combination, temperature=tempered)
        # What the ensemble answers has τ = 1: the mean of softer probabilities may be highest for another class.
        answer = theirs if self.combination == "logits" else combined(members, self.combination)
        weight = focal_weight(answer, seen.labels(self.reference), alpha=self.alpha, beta=self.beta)
        return {"focal_distillation": (self.strength, weight * self._distance(mine, theirs))}

    def _distance(self, student: Tensor, reference: Tensor) -> Tensor:
        """(B, S), (B, S) -> (B,)."""
        if self.distance == "kl":
            return kl_divergence(student, reference, temperature=self.temperature)
        if self.distance == "reverse_kl":
            return reverse_kl_divergence(student, reference, temperature=self.temperature)
        return logit_matching(student, reference)


CARDS = (
    Card(
        name="fd_kl",
        summary="Stays close to the old model's probabilities, closer where the old model is right.",
        kind="objective",
        paper="Yan et al. 2021 (PCT)",
        equation="4, 7, 8",
        training_cost="1 + 1/3",
        references=("old",),
        factory=FocalDistillation,
        fixed={"reference": "old"},
        defaults={"distance": "kl"},
    ),
    Card(
        name="fd_lm",
        summary="Stays close to the old model's logits, closer where the old model is right.",
        kind="objective",
        paper="Yan et al. 2021 (PCT)",
        equation="4, 7, 9",
        training_cost="1 + 1/3",
        references=("old",),
        factory=FocalDistillation,
        fixed={"distance": "logits", "reference": "old", "temperature": 100.0},
    ),
    Card(
        name="ensemble_fd",
        summary="Stays close to an ensemble's logits, closer where the ensemble is right.",
        kind="objective",
        paper="Yan et al. 2021 (PCT); Zhao et al. 2024 (ELODI), Table 10",
        equation="4, 7-9",
        training_cost="1 + 4m/3",
        references=("ensemble",),
        factory=FocalDistillation,
        fixed={"reference": "ensemble"},
        settings={
            "elodi_table_10": {"distance": "kl", "temperature": 100.0},
            "elodi_table_10_tau_1": {"distance": "kl", "temperature": 1.0},
        },
    ),
)
