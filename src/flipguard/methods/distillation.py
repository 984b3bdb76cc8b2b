"""Knowledge distillation from one reference, the old model or an ensemble."""

from dataclasses import dataclass
from typing import Literal

from flipguard.losses import kl_divergence
from flipguard.methods.card import Card
from flipguard.methods.checks import check_above_zero, check_choice, check_shares
from flipguard.methods.objective import Combining, Seen
from flipguard.methods.terms import Terms


@dataclass(frozen=True)
class Distillation(Combining):
    """L = (1 - α)·CE + α·τ²·KL(softmax(ref/τ) ‖ softmax(new/τ)), Hinton et al. 2015.

    With `reference="ensemble"` it is ensemble distillation: ELODI's Table 10 (at τ = 100), and the churn paper's
    two-stage baseline with m = 2. The card's settings have both papers' temperatures.
    """

    alpha: float = 0.5
    temperature: float = 4.0
    reference: Literal["old", "ensemble"] = "old"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(alpha=self.alpha)
        check_above_zero(temperature=self.temperature)
        check_choice("reference", self.reference, ("old", "ensemble"))

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.reference,)

    @property
    def label_weight(self) -> float:
        return 1 - self.alpha

    def terms(self, seen: Seen) -> Terms:
        mine, theirs = seen.held_to(self.reference, combination=self.combination, temperature=self.temperature)
        return {"distillation": (self.alpha, kl_divergence(mine, theirs, temperature=self.temperature))}


CARDS = (
    Card(
        name="kd",
        summary="Learns from the labels and from the old model's softened probabilities.",
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
        summary="Learns from the labels and from an ensemble's softened probabilities.",
        kind="objective",
        paper="Hinton et al. 2015; Zhao et al. 2024 (ELODI), Table 10",
        equation="-",
        training_cost="1 + 4m/3",
        references=("ensemble",),
        factory=Distillation,
        fixed={"reference": "ensemble"},
        settings={
            "elodi_table_10": {"temperature": 100.0},
            "cifar10": {"temperature": 3.0},
            "cifar100": {"temperature": 4.0},
            "imagenet": {"temperature": 1.0},
        },
    ),
)
