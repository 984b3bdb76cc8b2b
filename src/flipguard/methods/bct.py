"""Backward-compatible training: the new features must serve the old head too."""

from collections.abc import Mapping
from dataclasses import dataclass

from flipguard.losses import cross_entropy, fit_width, known_cross_entropy
from flipguard.methods.card import Card
from flipguard.methods.checks import check_not_negative, check_smoothing
from flipguard.methods.heads import old_head
from flipguard.methods.terms import labels_of, only_member, step
from flipguard.types import Batch, Reference, Step, Student


@dataclass(frozen=True)
class BackwardCompatible:
    """L = CE(W_new z, y) + λ·CE(W_old z̃, y) with W_old frozen (Shen et al. 2020, BCT). λ is `strength`.

    z̃ is z cut to the old head's width, or filled up with zeros. Samples of a class that the old model does not know
    count 0 in the second term, whose mean is over the whole batch all the same, so that the parts of an accumulated
    batch add up. Of the old model only the head is used: there is no forward pass to pay for.
    """

    strength: float = 1.0
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(strength=self.strength)
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        said = student(batch.x, features=True)
        mine = only_member(said.logits)
        assert said.features is not None
        head = old_head(references, mine.shape[-1])
        judged = head(fit_width(said.features[0], head.in_features))
        y = labels_of(references, "old", batch.y, mine.shape[-1])
        terms = {
            "cross_entropy": (1.0, cross_entropy(mine, batch.y, label_smoothing=self.label_smoothing)),
            "compatibility": (self.strength, known_cross_entropy(judged, y)),
        }
        return step(said.logits, terms)


CARDS = (
    Card(
        name="bct",
        summary="Trains features that the old model's head classifies well, too.",
        kind="objective",
        paper="Shen et al. 2020 (BCT)",
        equation="-",
        training_cost="1",
        references=("old",),
        factory=BackwardCompatible,
        departures={
            "cached": "the old model's head is needed, and stored logits have none",
            "agreement": "the old head is held to the labels, not to what the old model said",
        },
    ),
)
