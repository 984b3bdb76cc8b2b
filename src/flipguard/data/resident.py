"""Batches of data that live on the device, chosen by counters on the device: a captured step finds its own."""

from dataclasses import replace

import torch
from torch import Tensor

from flipguard.data.augment import normalise
from flipguard.data.batches import Batches
from flipguard.types import Batch, InputError

PREPARED_BYTES = 2**30
"""Up to this size the images of an epoch are cropped and flipped all at once, before it begins."""


class ResidentBatches:
    """The batches of `Batches`, bit for bit, without the host: `current()` reads the counters, `advance()` moves them.

    `seek` is the host's part, once per epoch: it draws the epoch's order, crops and flips its images in that order
    (unless they are too many to keep twice), and sets the counters. Between two seeks
    nothing is allocated and nothing is read back, so `current` and `advance` can be captured in a CUDA graph and
    replayed. An epoch's last, smaller batch cannot: its shape differs.

    >>> from flipguard.data import Split
    >>> split = Split(torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0]), torch.arange(5).numpy())
    >>> like = Batches(split, 2, order_seed=7, epochs=10, drop_last=True)
    >>> resident = ResidentBatches(like)
    >>> resident.seek(3, 1)
    >>> expected = list(Batches(split, 2, order_seed=7, epoch=3, epochs=10, drop_last=True))[1]
    >>> torch.equal(resident.current().x, expected.x), bool(resident.current().progress == expected.progress)
    (True, True)
    """

    def __init__(self, like: Batches) -> None:
        if not like.drop_last or like.shard != (0, 1):
            raise InputError("resident batches are whole and in one process: use drop_last, and no shard.")
        if not isinstance(like.split.x, Tensor | dict):
            raise InputError("resident batches need their inputs as tensors.")
        self._like = replace(like, split=like.split.to(like.device), start_step=0)
        self.steps = self._like.steps
        self._order = torch.empty(len(like.split), dtype=torch.int64, device=like.device)
        self._within = torch.arange(like.batch_size, device=like.device)
        self._epoch = torch.zeros((), dtype=torch.int64, device=like.device)
        self._step = torch.zeros((), dtype=torch.int64, device=like.device)
        self._shown = self._room_to_prepare()

    def _room_to_prepare(self) -> Tensor | None:
        """(N, H, W, C): with channels last, a batch of its rows needs no copy to become the network's input."""
        x = self._like.split.x
        if self._like.augmentation is None or not isinstance(x, Tensor) or x.nbytes > PREPARED_BYTES:
            return None
        n, c, h, w = x.shape
        return torch.empty(n, h, w, c, dtype=x.dtype, device=x.device)

    def seek(self, epoch: int, step: int) -> None:
        """The next batch is this one."""
        self._order.copy_(replace(self._like, epoch=epoch).order())
        x, augmentation = self._like.split.x, self._like.augmentation
        if self._shown is not None and augmentation is not None and isinstance(x, Tensor):
            for rows, part in zip(self._order.split(8192), self._shown.split(8192), strict=True):
                view = self._like.view(epoch)
                shown = augmentation(x[rows], seed=self._like.augment_seed, epoch=view, index=rows)
                part.copy_(shown.permute(0, 2, 3, 1))
        self._epoch.fill_(epoch)
        self._step.fill_(epoch * self.steps + step)

    def current(self, *, ahead: int = 0) -> Batch:
        """The batch at the counters, or one that comes so many steps later; past the epoch's end its rows repeat."""
        like, split = self._like, self._like.split
        place = (self._step - self._epoch * self.steps + ahead) * like.batch_size + self._within
        place = place if ahead == 0 else place % len(self._order)
        index = self._order[place]
        step = self._step + ahead
        return Batch(
            x=self._inputs(index, place),
            y=split.y[index],
            index=index,
            progress=(step.double() / (like.epochs * self.steps)).float(),
            step=step,
            seed=like.augment_seed,
            normalisation=like.normalisation,
        )

    def _inputs(self, index: Tensor, place: Tensor) -> "Tensor | dict[str, Tensor]":
        like, x = self._like, self._like.split.x
        if self._shown is not None:
            shown = self._shown[place].permute(0, 3, 1, 2)
            x = normalise(shown, like.normalisation, dtype=like.dtype, channels_last=like.channels_last)
            return x if like.channels_last else x.contiguous()
        stored = {name: value[index] for name, value in x.items()} if isinstance(x, dict) else x[index]  # type: ignore[index]
        return like.prepare(stored, index, epoch=self._epoch)

    def advance(self) -> None:
        """One batch on, within the epoch."""
        self._step.add_(1)

    def rows(self, epoch: int, step: int) -> Tensor:
        """The training rows of a batch, int64 (B,): what an error message names."""
        size = self._like.batch_size
        return replace(self._like, epoch=epoch).order()[step * size : (step + 1) * size]
