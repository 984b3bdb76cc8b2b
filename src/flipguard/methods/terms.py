"""What the methods share: a reference's logits on the student's classes, and the reduction of named terms."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flipguard.ensembles import Combination, combined
from flipguard.losses.logits import at_least_float32
from flipguard.types import Batch, InputError, Reference, Step

Terms = dict[str, tuple[float | Tensor, Tensor]]
"""A method's terms by name: the weight, and the losses (B,), or (M, B) for a student of several members."""


def only_member(logits: Tensor) -> Tensor:
    """(1, B, C) -> (B, C). A student with several members needs a method that trains all of them."""
    if logits.shape[0] != 1:
        raise InputError(f"this method trains a student of one member; this one has {logits.shape[0]}.")
    return logits[0]


def the_reference(references: Mapping[str, Reference], name: str) -> Reference:
    """A reference by name."""
    if name not in references:
        raise InputError(f"this method needs the reference '{name}', and has only: {', '.join(references) or 'none'}.")
    return references[name]


def reference_logits(
    references: Mapping[str, Reference],
    name: str,
    batch: Batch,
    student: Tensor,
    *,
    combination: Combination = "logits",
    temperature: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """The reference's logits (B, S) and the student's (B, S) on the S classes that both know, without gradients.

    student: (B, C). The mean over members is taken in float32, also of members that answer in half precision.
    """
    members, shared = member_logits(references, name, batch, student)
    return combined(at_least_float32(members), combination, temperature=temperature), shared


def member_logits(
    references: Mapping[str, Reference], name: str, batch: Batch, student: Tensor
) -> tuple[Tensor, Tensor]:
    """The logits of the reference's members (M, B, S) and the student's (…, B, S) on the S classes that both know.

    student: (…, B, C). No gradients lead into the reference.
    """
    reference = the_reference(references, name)
    with torch.no_grad():
        logits = reference(batch).logits
    if reference.classes is None:
        if logits.shape[-1] != student.shape[-1]:
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
    return logits, student.index_select(-1, _columns(reference, student.device))


def each_member(references: Mapping[str, Reference], name: str, batch: Batch, student: Tensor) -> tuple[Tensor, Tensor]:
    """`member_logits`, for a method that sets members beside one another."""
    if getattr(the_reference(references, name), "dealt", False):
        raise InputError(f"this method compares the members of '{name}', and dealt asks one of each row: leave it out.")
    return member_logits(references, name, batch, student)


def labels_of(references: Mapping[str, Reference], name: str, y: Tensor, classes: int) -> Tensor:
    """Labels (B,) as columns of the reference; -1, which no prediction equals, for a class it does not know."""
    reference = references[name]
    if reference.classes is None:
        return y
    match = y[:, None] == _columns(reference, y.device)
    return torch.where(match.any(-1), match.int().argmax(-1), -1)


def _columns(reference: Reference, device: torch.device) -> Tensor:
    """The student's class for each of the reference's columns, int64 (S,).

    Ours hold it as a tensor that is on the device already, since a captured step cannot copy one there.
    """
    ready: Tensor | None = getattr(reference, "columns", None)
    return torch.tensor(reference.classes, device=device) if ready is None else ready.to(device)


def step(logits: Tensor, terms: Mapping[str, tuple[float | Tensor, Tensor]]) -> Step:
    """Sum of weight · mean over the batch, each term logged by name. Losses are (B,), logits (M, B, C).

    Losses (M, B) of several members are added up over the members.
    """
    means = {name: _over_batch(loss) for name, (_, loss) in terms.items()}
    weighted = [weight * means[name] for name, (weight, _) in terms.items()]
    total = weighted[0]
    for part in weighted[1:]:
        total = total + part
    return Step(loss=total, logits=logits, terms=means)


def _over_batch(loss: Tensor) -> Tensor:
    if loss.ndim == 1:
        return loss.mean()
    total = loss[0].mean()
    for member in loss[1:]:
        total = total + member.mean()
    return total
