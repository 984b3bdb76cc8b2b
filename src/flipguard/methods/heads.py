"""The old model's head, for methods that judge new features by it."""

from collections.abc import Mapping
from typing import Any

from flipguard.ensembles import NetworkReference
from flipguard.types import InputError, Reference


def old_reference(references: Mapping[str, Reference]) -> NetworkReference:
    """The reference 'old' as one network whose features and head can be used."""
    if "old" not in references:
        raise InputError(f"this method needs the reference 'old', and has only: {', '.join(references) or 'none'}.")
    old = references["old"]
    if not isinstance(old, NetworkReference) or old.members != 1:
        raise InputError(
            "this method works on features: its reference 'old' must be one network with a head, "
            "NetworkReference('old', [network]), not stored logits or an ensemble."
        )
    return old


def old_head(references: Mapping[str, Reference]) -> Any:
    """The frozen linear head (B, D') -> (B, C') of the old model; `labels_of` gives the labels as its columns."""
    old = old_reference(references)
    (head,) = old.heads
    if old.classes is not None and len(old.classes) != head.out_features:
        raise InputError(
            f"the reference 'old' has {head.out_features} classes, of which classes= names {len(old.classes)}."
        )
    return head
