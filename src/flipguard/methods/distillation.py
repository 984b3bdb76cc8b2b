"""Knowledge distillation from one reference, the old model or an ensemble."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flipguard.losses import cross_entropy, kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_choice, check_shares, check_smoothing
from flipguard.methods.terms import only_member, reference_logits, step
from flipguard.types import Batch, Reference, Step, Student


@dataclass(frozen=True)
class Distillation:
    """L = (1 - α)·CE + α·τ²·KL(softmax(ref/τ) ‖ softmax(new/τ)), Hinton et al. 2015.

    With `reference="ensemble"` it is ensemble distillation: ELODI's Table 10, and the churn paper's two-stage baseline
    with m = 2.
    """

    alpha: float = 0.5
    temperature: float = 4.0
    reference: Literal["old", "ensemble"] = "old"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_shares(alpha=self.alpha)
        check_above_zero(temperature=self.temperature)
        check_choice("reference", self.reference, ("old", "ensemble"))
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.reference,)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        mine = only_member(logits)
        held, shared = reference_logits(references, self.reference, batch, mine)
        loss = cross_entropy(mine, batch.y, label_smoothing=self.label_smoothing)
        terms = {
            "cross_entropy": (1 - self.alpha, loss),
            "distillation": (self.alpha, kl_divergence(shared, held, temperature=self.temperature)),
        }
        return step(logits, terms)


CARDS = (
    Card(
        name="kd",
        kind="objective",
        paper="Hinton et al. 2015",
        equation="-",
        training_cost="1 + 1/3",
        references=("old",),
        factory=Distillation,
        fixed={"reference": "old"},
    ),
    Card(
        name="ensemble_kd",
        kind="objective",
        paper="Hinton et al. 2015; Zhao et al. 2024 (ELODI), Table 10",
        equation="-",
        training_cost="1 + 4m/3",
        references=("ensemble",),
        factory=Distillation,
        fixed={"reference": "ensemble"},
    ),
)
