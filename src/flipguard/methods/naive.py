"""The naive baseline: cross-entropy counts more where the old model was right."""

from dataclasses import dataclass

from flipguard.losses import old_is_right
from flipguard.methods.card import Card
from flipguard.methods.checks import check_not_negative
from flipguard.methods.objective import Objective, Seen
from flipguard.methods.terms import Terms


@dataclass(frozen=True)
class Naive(Objective):
    """L = CE + λ·1(old is right)·CE: a re-weighting by 1 + λ (PCT Eq. 4 and 6). λ is `strength`."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(strength=self.strength)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    def terms(self, seen: Seen) -> Terms:
        _, old = seen.held_to("old")
        return {"naive": (self.strength, old_is_right(old, seen.labels("old")) * seen.cross_entropy)}


CARDS = (
    Card(
        name="naive",
        summary="Gives a sample more weight where the old model is right.",
        kind="objective",
        paper="Yan et al. 2021 (PCT)",
        equation="4, 6",
        training_cost="1 + 1/3",
        references=("old",),
        factory=Naive,
        departures={"agreement": "the old model chooses samples to weigh, nothing is matched to it"},
    ),
)
