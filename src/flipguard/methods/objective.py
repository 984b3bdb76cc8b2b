"""What the objectives share: cross-entropy on the labels, and terms that hold the student to references."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from torch import Tensor

from flipguard.ensembles import Combination
from flipguard.ensembles.perturbations import Perturbation, as_perturbation
from flipguard.losses import cross_entropy
from flipguard.losses.logits import at_least_float32
from flipguard.methods.checks import check_choice, check_smoothing
from flipguard.methods.terms import (
    Terms,
    each_member,
    labels_of,
    member_logits,
    only_member,
    reference_logits,
    step,
    the_reference,
)
from flipguard.types import Batch, Reference, Step, Student


@dataclass(frozen=True)
class Seen:
    """What a method's terms are made of.

    logits (B, C) are the student's on `batch`, which the references are shown too; cross_entropy (B,) is its loss on
    the data as they are. The two inputs differ where a perturbation is used.
    """

    references: Mapping[str, Reference]
    batch: Batch
    logits: Tensor
    cross_entropy: Tensor

    def held_to(
        self, name: str, *, combination: Combination = "logits", temperature: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The student's logits (B, S) and a reference's (B, S), on the S classes that both know."""
        theirs, mine = reference_logits(
            self.references, name, self.batch, self.logits, combination=combination, temperature=temperature
        )
        return mine, theirs

    def to_combine(self, name: str) -> tuple[Tensor, Tensor]:
        """The student's logits (B, S) and a reference's (M, B, S), one for each member, in float32 or more.

        For a method that combines them in more than one way and asks the reference once.
        """
        theirs, mine = member_logits(self.references, name, self.batch, self.logits)
        return mine, at_least_float32(theirs)

    def members_of(self, name: str) -> tuple[Tensor, Tensor]:
        """The student's logits (B, S) and those of a reference's members (M, B, S), on the classes that both know."""
        theirs, mine = each_member(self.references, name, self.batch, self.logits)
        return mine, theirs

    def labels(self, name: str) -> Tensor:
        """The labels (B,) as a reference's columns, -1 for a class that it does not know."""
        return labels_of(self.references, name, self.batch.y, self.logits.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Objective:
    """L = `label_weight`·CE + what `terms` gives, for a student of one member.

    A method is a subclass with hyper-parameters of its own; one that is this class alone is no treatment.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_smoothing(self.label_smoothing)

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of the references, the first of which perturbations are taken from."""
        return ()

    @property
    def label_weight(self) -> float:
        """What cross-entropy is multiplied by."""
        return 1.0

    def terms(self, seen: Seen) -> Terms:
        """Each term by name, as (weight, losses (B,))."""
        return {}

    def __call__(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Step:
        shown = self.shown(student, references, batch)
        logits, clean = self.logits(student, batch, shown)
        loss = cross_entropy(only_member(clean), batch.y, label_smoothing=self.label_smoothing)
        seen = Seen(references, shown, only_member(logits), loss)
        return step(clean, {"cross_entropy": (self.label_weight, loss), **self.terms(seen)})

    def shown(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Batch:
        """What the references, and the student for the terms that hold it to them, are shown: the batch itself."""
        return batch

    def logits(self, student: Student, batch: Batch, shown: Batch) -> tuple[Tensor, Tensor]:
        """The student's logits (M, B, C) on what is shown, and on the data as they are.

        With cross-entropy at weight zero nothing is learnt from the data as they are, and the second pass is saved, as
        in LatentBE's Algorithm 2: the logged cross-entropy is then that of what was shown.
        """
        logits = student(shown.x).logits
        return logits, logits if shown is batch or self.label_weight == 0 else student(batch.x).logits


@dataclass(frozen=True, kw_only=True)
class Distilling(Objective):
    """An objective whose references may be asked about perturbed inputs.

    `perturbation` may be given as a kind or as a mapping of options, and is a `Perturbation` once the method is built.
    """

    perturbation: Perturbation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "perturbation", as_perturbation(self.perturbation))

    def shown(self, student: Student, references: Mapping[str, Reference], batch: Batch) -> Batch:
        if self.perturbation is None:
            return batch
        return self.perturbation(student, the_reference(references, self.needs[0]), batch)


@dataclass(frozen=True, kw_only=True)
class Combining(Distilling):
    """A distillation from what a reference's members say together: the mean of their logits, or of their
    probabilities."""

    combination: Combination = "logits"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("combination", self.combination, get_args(Combination))
