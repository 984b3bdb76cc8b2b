"""The naive baseline: cross-entropy counts more where the old model was right."""

from collections.abc import Mapping
from dataclasses import dataclass

from flipguard.losses import cross_entropy, old_is_right
from flipguard.methods.card import Card
from flipguard.methods.checks import check_not_negative, check_smoothing
from flipguard.methods.terms import labels_of, only_member, reference_logits, step
from flipguard.types import Batch, Reference, Step, Student


@dataclass(frozen=True)
class Naive:
    """L = CE + λ·1(old is right)·CE: a re-weighting by 1 + λ (PCT Eq. 4 and 6). λ is `strength`."""

    strength: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(strength=self.strength)
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        mine = only_member(logits)
        loss = cross_entropy(mine, batch.y, label_smoothing=self.label_smoothing)
        old, _ = reference_logits(references, "old", batch, mine)
        right = old_is_right(old, labels_of(references, "old", batch.y, mine.shape[-1]))
        return step(logits, {"cross_entropy": (1.0, loss), "naive": (self.strength, right * loss)})


CARDS = (
    Card(
        name="naive",
        kind="objective",
        paper="Yan et al. 2021 (PCT)",
        equation="4, 6",
        training_cost="1 + 1/3",
        references=("old",),
        factory=Naive,
        departures={"agreement": "the old model chooses samples to weigh, nothing is matched to it"},
    ),
)
