"""The old model, a deep ensemble, or logits that were computed once: one interface, no gradients into any weight."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flipguard.ensembles.combine import features_and_logits, stacked
from flipguard.types import Batch, InputError, Output


class NetworkReference(nn.Module):
    """One or several networks in evaluation mode; they may differ in architecture, but know the same classes."""

    differentiable = True

    def __init__(self, name: str, networks: Sequence[nn.Module], *, classes: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if not networks:
            raise InputError(f"the reference '{name}' has no members.")
        self.name, self.members, self.classes = name, len(networks), classes
        self.networks = nn.ModuleList(networks)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "NetworkReference":
        """Stays in evaluation mode: a reference's BatchNorm statistics and dropout must not move with the student's."""
        return super().train(False)

    def forward(self, batch: Batch, *, features: bool = False) -> Output:
        """Logits (M, B, C'). Gradients flow to x only if x asks for them, never to weights."""
        if not features:
            return Output(stacked([network(batch.x) for network in self.networks], self.name))
        found, logits = zip(*(features_and_logits(network, batch.x) for network in self.networks), strict=True)
        together = torch.stack(found) if len({f.shape for f in found}) == 1 else None
        return Output(stacked(logits, self.name), together)


@dataclass(frozen=True)
class CachedReference:
    """Logits over the training set, extracted once: (M, N, C'), looked up by each row's place in the set.

    Cheap at every step, but blind to augmentation: the student sees a shifted image, the reference saw the plain one.
    """

    name: str
    logits: Tensor
    classes: tuple[int, ...] | None = None
    differentiable: bool = False

    @property
    def members(self) -> int:
        return self.logits.shape[0]

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        if features:
            raise InputError(
                f"the reference '{self.name}' holds logits only: a method that needs features cannot use it."
            )
        rows = batch.index.to(self.logits.device)
        return Output(self.logits[:, rows].to(batch.index.device))


@torch.no_grad()
def extract_logits(reference: NetworkReference, batches: Iterable[Batch]) -> Tensor:
    """(M, N, C) over batches that visit every row once, in any order."""
    parts, places = [], []
    for batch in batches:
        parts.append(reference(batch).logits)
        places.append(batch.index)
    if not parts:
        raise InputError("there are no batches to extract logits from.")
    index, order = torch.cat(places).sort()
    missing = (index != torch.arange(len(index), device=index.device)).nonzero()
    if len(missing):
        raise InputError(
            f"logits are extracted from every row once, but row {int(missing[0])} is not there once: "
            "use batches of the whole training set, without drop_last."
        )
    return torch.cat(parts, dim=1)[:, order]
