"""Weights of several layers as blocks of larger ones that are zero elsewhere, all of them written at once.

A step copies every layer's weights to their places and takes every block's gradient back: with one kernel each for all
of them, whatever their number. Blocks lie in one piece of memory, so that where each number goes is one list.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNED = 64
"""Numbers; a tensor core's kernels want their operands to begin at such a place."""

Place = tuple[slice, ...]


class Block:
    """A larger weight: `tensor` is a leaf of the graph once its `Blocks` are laid out."""

    tensor: Tensor

    def __init__(self, shape: tuple[int, ...], parts: Sequence[tuple[Tensor, Place]]) -> None:
        like = parts[0][0]
        last = like.ndim == 4 and like.stride() == _strides(tuple(like.shape), torch.channels_last)
        self.shape, self.parts = shape, list(parts)
        self.strides = _strides(shape, torch.channels_last if last else torch.contiguous_format)

    def numbers(self, place: Place, like: Tensor, start: int) -> Tensor:
        """Where each number of a part goes, in the order of the part's own memory."""
        every = torch.arange(self.tensor.numel()).as_strided(self.shape, self.strides)
        return start + _flat(torch.empty_strided(like.shape, like.stride(), dtype=torch.int64).copy_(every[place]))


class Blocks:
    """`begin` before a forward pass, `end` after its backward pass."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = list(blocks)
        self._parts = [part for block in blocks for part, _ in block.parts]
        like = self._parts[0]
        starts, room = [], 0
        for block in blocks:
            starts.append(room)
            room += -(-_size(block.shape) // ALIGNED) * ALIGNED
        self._memory = torch.zeros(room, dtype=like.dtype, device=like.device)
        to, back, before = [], [], 0
        for block, start in zip(blocks, starts, strict=True):
            block.tensor = self._memory.as_strided(block.shape, block.strides, start).detach().requires_grad_()
            for part, place in block.parts:
                to.append(block.numbers(place, part, start))
                back.append(block.numbers(place, part, before))
            before += block.tensor.numel()
        self._to, self._back = torch.cat(to).to(like.device), torch.cat(back).to(like.device)

    @torch.no_grad()
    def begin(self) -> None:
        """The parts to their places."""
        self._memory.index_copy_(0, self._to, torch.cat([_flat(part) for part in self._parts]))

    @torch.no_grad()
    def end(self) -> None:
        """The gradient of each part from its block's, added to what is there; what no loss has reached gets none."""
        grads = [block.tensor.grad for block in self._blocks]
        if all(grad is None for grad in grads):
            return
        whole = torch.cat([_in_order(block, grad) for block, grad in zip(self._blocks, grads, strict=True)])
        taken = iter(whole.index_select(0, self._back).split([part.numel() for part in self._parts]))
        for block, grad in zip(self._blocks, grads, strict=True):
            for part, _ in block.parts:
                own = next(taken)
                if grad is not None:
                    found = own.as_strided(part.shape, part.stride(), own.storage_offset())
                    part.grad = found if part.grad is None else part.grad + found
        self.forget()

    def forget(self) -> None:
        """No gradient is left."""
        for block in self._blocks:
            block.tensor.grad = None


def _strides(shape: tuple[int, ...], memory_format: torch.memory_format) -> tuple[int, ...]:
    return torch.empty(shape, device="meta", memory_format=memory_format).stride()


def _size(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def _flat(tensor: Tensor) -> Tensor:
    """A dense tensor's numbers in the order of its memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def _in_order(block: Block, grad: Tensor | None) -> Tensor:
    """A gradient in the order of its block's memory; one that lies there otherwise is copied."""
    if grad is None:
        return torch.zeros_like(block.tensor).as_strided((block.tensor.numel(),), (1,))
    # Along an axis of one a stride means nothing.
    if any(mine != own for size, mine, own in zip(grad.shape, grad.stride(), block.strides, strict=True) if size > 1):
        grad = torch.empty_like(block.tensor).copy_(grad)
    return _flat(grad)
