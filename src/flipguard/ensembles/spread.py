"""A deep ensemble whose members are spread over the processes that train one student together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, distributed, nn

from flipguard.ensembles.references import NetworkReference
from flipguard.types import Batch, InputError, Output


class SpreadReference(nn.Module):
    """M members, of which process r of R holds those at r, r + R, r + 2R, …: memory for M/R networks each.

    For every batch the processes' inputs are gathered, each runs its own members on all of them, and every process gets
    back what all members say of its own rows: logits (M, B, C), as one that held all members would compute them. The
    arithmetic is the same as without spreading; what is added is that inputs and logits travel.

    All processes must ask at the same time, with equally many rows. Gradients do not flow to x.
    """

    differentiable = False

    def __init__(self, name: str, own: Sequence[nn.Module], members: int, rank: int, world: int) -> None:
        super().__init__()
        if members < world:
            raise InputError(f"the {members} members of '{name}' cannot be spread over {world} processes.")
        if len(own) != len(range(rank, members, world)):
            raise InputError(f"process {rank} of {world} holds {len(own)} of the {members} members of '{name}'.")
        self.name, self.members, self.classes = name, members, None
        self._rank, self._world = rank, world
        self.own = NetworkReference(name, own)

    def train(self, mode: bool = True) -> "SpreadReference":
        """Stays in evaluation mode."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, batch: Batch, *, features: bool = False) -> Output:
        """Logits (M, B, C) of this process's rows."""
        everything = replace(batch, x=self._gathered(batch.x))
        said = self.own(everything, features=features)
        if features and said.features is None:
            raise InputError(f"the members of '{self.name}' have features of different sizes.")
        return Output(self._returned(said.logits), None if said.features is None else self._returned(said.features))

    def chosen(self, batch: Batch, which: Tensor) -> Tensor:
        """One member's logits (B, C), by its index in a tensor (1,), the same in every process."""
        return self(batch).logits.index_select(0, which)[0]

    def _gathered(self, x: Any) -> Any:
        """Every process's rows, one after another."""
        if isinstance(x, dict):
            return {name: self._gathered(value) for name, value in x.items()}
        return torch.cat(self._all(x.detach().contiguous()))

    def _returned(self, mine: Tensor) -> Tensor:
        """From my members' answers (m, R·B, C) to all members' on my rows (M, B, C)."""
        most = -(-self.members // self._world)
        # A process with one member fewer fills up, as all send alike.
        sent = torch.cat([mine, mine.new_zeros(most - len(mine), *mine.shape[1:])])
        rows = sent.shape[1] // self._world
        parts = [part[:, self._rank * rows : (self._rank + 1) * rows] for part in self._all(sent)]
        # Member j lies with process j mod R, at place j div R.
        return torch.stack(parts, dim=1).flatten(0, 1)[: self.members]

    def _all(self, value: Tensor) -> list[Tensor]:
        found = [torch.empty_like(value) for _ in range(self._world)]
        distributed.all_gather(found, value)
        return found
