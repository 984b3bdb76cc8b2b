"""What the methods share: a reference's logits on the student's classes, and the reduction of named terms."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flipguard.ensembles import Combination, combined
from flipguard.types import Batch, InputError, Reference, Step


def only_member(logits: Tensor) -> Tensor:
    """(1, B, C) -> (B, C). A student with several members needs a method that trains all of them."""
    if logits.shape[0] != 1:
        raise InputError(f"this method trains a student of one member; this one has {logits.shape[0]}.")
    return logits[0]


def reference_logits(
    references: Mapping[str, Reference],
    name: str,
    batch: Batch,
    student: Tensor,
    *,
    combination: Combination = "logits",
) -> tuple[Tensor, Tensor]:
    """The reference's logits (B, S) and the student's (B, S) on the S classes that both know, without gradients.

    student: (B, C).
    """
    if name not in references:
        raise InputError(f"this method needs the reference '{name}', and has only: {', '.join(references) or 'none'}.")
    reference = references[name]
    with torch.no_grad():
        logits = combined(reference(batch).logits, combination).to(student.dtype)
    if reference.classes is None:
        if logits.shape != student.shape:
            raise InputError(
                f"the reference '{name}' has {logits.shape[-1]} classes and the student {student.shape[-1]}: "
                "pass classes=, the student's class for each of its columns."
            )
        return logits, student
    if len(reference.classes) != logits.shape[-1] or max(reference.classes) >= student.shape[-1]:
        raise InputError(
            f"the reference '{name}' has {logits.shape[-1]} classes, of which classes= names {len(reference.classes)}, "
            f"the highest {max(reference.classes)}; the student has {student.shape[-1]}."
        )
    return logits, student[:, list(reference.classes)]


def labels_of(references: Mapping[str, Reference], name: str, y: Tensor, classes: int) -> Tensor:
    """Labels (B,) as columns of the reference; -1, which no prediction equals, for a class it does not know."""
    mapping = references[name].classes
    if mapping is None:
        return y
    column = torch.full((classes,), -1, dtype=torch.long, device=y.device)
    column[list(mapping)] = torch.arange(len(mapping), device=y.device)
    return column[y]


def step(logits: Tensor, terms: Mapping[str, tuple[float | Tensor, Tensor]]) -> Step:
    """Sum of weight · mean over the batch, each term logged by name. Losses are (B,), logits (M, B, C)."""
    means = {name: loss.mean() for name, (_, loss) in terms.items()}
    weighted = [weight * means[name] for name, (weight, _) in terms.items()]
    total = weighted[0]
    for part in weighted[1:]:
        total = total + part
    return Step(loss=total, logits=logits, terms=means)
