"""A reference whose answer to the coming batch is already there."""

from typing import Any

from torch import Tensor

from flipguard.ensembles.quick import QuickReference
from flipguard.ensembles.references import NetworkReference
from flipguard.types import Batch, Output, Reference


def prefetchable(reference: Reference) -> bool:
    """Whether it pays to ask a reference before its batch comes: networks, not a table of logits."""
    return isinstance(reference, NetworkReference | QuickReference)


class Prefetched:
    """A reference that answers its batch from memory, and anything else (other inputs, features) by itself."""

    def __init__(self, reference: Reference, logits: Tensor) -> None:
        self._reference, self._logits = reference, logits
        self.name, self.members = reference.name, reference.members
        self.classes, self.differentiable = reference.classes, reference.differentiable
        self.batch: Batch | None = None

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        if features or self.batch is None or batch.x is not self.batch.x:
            return self._reference(batch, features=features)
        return Output(self._logits)

    def __getattr__(self, name: str) -> Any:
        """All else (heads, the map of classes, one drawn member) is the reference's own."""
        return getattr(self.__dict__["_reference"], name)
