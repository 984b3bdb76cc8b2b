"""The old model's head and features, for methods that judge new features by them."""

from collections.abc import Mapping
from typing import Any

from flipguard.types import InputError, Reference


def old_reference(references: Mapping[str, Reference]) -> Reference:
    """The reference 'old', which must be one model."""
    if "old" not in references:
        raise InputError(f"this method needs the reference 'old', and has only: {', '.join(references) or 'none'}.")
    old = references["old"]
    if old.members != 1:
        raise InputError(f"this method needs one old model; its reference 'old' has {old.members} members.")
    if getattr(old, "dealt", False):
        raise InputError(
            "this method needs one old model; its reference 'old' has several, of which dealt asks one of each row: "
            "give one, and leave dealt out."
        )
    return old


def old_head(references: Mapping[str, Reference], classes: int) -> Any:
    """The frozen linear head (B, D') -> (B, C') of the old model; `labels_of` gives the labels as its columns.

    `classes` is the student's number of them.
    """
    old = old_reference(references)
    heads = getattr(old, "heads", None)
    if heads is None:
        raise InputError(
            "this method uses the old model's head: its reference 'old' must be a network with one, "
            "NetworkReference('old', [network]), not stored logits."
        )
    outputs = heads[0].out_features
    if old.classes is None and outputs != classes:
        raise InputError(
            f"the reference 'old' has {outputs} classes and the student {classes}: "
            "pass classes=, the student's class for each of its columns."
        )
    if old.classes is not None and (len(old.classes) != outputs or max(old.classes) >= classes):
        raise InputError(
            f"the reference 'old' has {outputs} classes, of which classes= names {len(old.classes)}, "
            f"the highest {max(old.classes)}; the student has {classes}."
        )
    return heads[0]
