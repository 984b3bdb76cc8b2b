"""No treatment: cross-entropy alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from flipguard.losses import cross_entropy
from flipguard.methods.card import Card
from flipguard.methods.checks import check_smoothing
from flipguard.methods.terms import only_member, step
from flipguard.types import Batch, Reference, Step, Student


@dataclass(frozen=True)
class NoTreatment:
    """L = CE (PCT Eq. 3). What every other method is compared to."""

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ()

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        logits = student(batch.x).logits
        loss = cross_entropy(only_member(logits), batch.y, label_smoothing=self.label_smoothing)
        return step(logits, {"cross_entropy": (1.0, loss)})


CARDS = (
    Card(
        name="none",
        kind="objective",
        paper="Yan et al. 2021 (PCT)",
        equation="3",
        training_cost="1",
        factory=NoTreatment,
    ),
)
