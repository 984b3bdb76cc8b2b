"""The batches of one epoch, the same in every run that asks for them with the same seeds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from flipguard.data.augment import Augmentation, normalise
from flipguard.data.dataset import Inputs, Split
from flipguard.data.files import ImageFiles
from flipguard.data.randomness import random_order
from flipguard.types import Batch, InputError, Normalisation

MOST_AT_ONCE, FEWEST_AT_ONCE = 1024, 8
TEXTS_AT_ONCE = 64
NUMBERS_AT_ONCE = 64 * 3 * 32 * 32
"""Inputs of one pass on a CPU; what layers make of them is many times as much."""


def at_once(x: Inputs, device: "torch.device | str") -> int:
    """How many samples a network that is not trained is asked at once: enough to fill a GPU, what a CPU's caches hold.

    On a CPU networks for images and texts answer so many about twice as fast as 1,024 (`benchmarks/asking.py`).
    Those for rows of a table do not: what they read is mostly weights, once for each pass.

    >>> at_once(torch.zeros(5, 3, 32, 32), "cuda"), at_once(torch.zeros(5, 3, 32, 32), "cpu")
    (1024, 64)
    >>> at_once(torch.zeros(5, 3, 64, 64), "cpu"), at_once(torch.zeros(5, 10_007), "cpu")
    (16, 1024)
    """
    if torch.device(device).type != "cpu" or (isinstance(x, Tensor) and x.dim() == 2):
        return MOST_AT_ONCE
    if isinstance(x, dict | tuple):
        return TEXTS_AT_ONCE
    numbers = 3 * x.size**2 if isinstance(x, ImageFiles) else math.prod(x.shape[1:])
    return min(max(NUMBERS_AT_ONCE // max(numbers, 1), FEWEST_AT_ONCE), MOST_AT_ONCE)


@dataclass(frozen=True)
class Batches:
    """The batches of one epoch over a split.

    The order is a permutation keyed by (order_seed, epoch) alone, or the stored order when `order_seed` is None; crops
    and flips are keyed by (augment_seed, epoch, index) alone. Either can therefore be held fixed while the other, or
    the initialisation, changes. Iteration starts at `start_step` of the epoch and goes on as an unbroken run would.

    `shard` is (rank, world): each process takes every world-th row of each batch, so that together they see the batches
    of one process. `epochs` is the length of training, from which a batch's progress is computed. Image files are
    decoded by `workers` processes, by default as many as the data says, with random crops if there is an augmentation.
    With `views` the augmentation of an epoch comes back so many epochs later.

    >>> split = Split(torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0]), torch.arange(5).numpy())
    >>> [batch.index.tolist() for batch in Batches(split, 2)]
    [[0, 1], [2, 3], [4]]
    >>> whole = list(Batches(split, 2, order_seed=7, epoch=3, epochs=10))
    >>> rest = list(Batches(split, 2, order_seed=7, epoch=3, epochs=10, start_step=1))
    >>> [batch.index.tolist() for batch in whole[1:]] == [batch.index.tolist() for batch in rest]
    True
    >>> float(whole[1].progress), int(whole[1].step)  # (3·3 + 1) of 30 steps are done
    (0.3333333432674408, 10)
    """

    split: Split
    batch_size: int
    order_seed: int | None = None
    augment_seed: int = 0
    epoch: int = 0
    epochs: int = 1
    start_step: int = 0
    drop_last: bool = False
    augmentation: Augmentation | None = None
    normalisation: Normalisation | None = None
    device: "torch.device | str" = "cpu"
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    shard: tuple[int, int] = (0, 1)
    workers: int | None = None
    views: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.split.x, tuple):
            raise InputError("the split holds raw texts: encode them into tensors with encode_text first.")
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {self.batch_size}.")
        if self.drop_last and self.batch_size > len(self.split):
            raise InputError(
                f"a batch of {self.batch_size} is larger than the {len(self.split)} samples, and drop_last leaves none."
            )
        if not 0 <= self.start_step <= self.steps:
            raise InputError(f"start_step must lie in 0 … {self.steps}, the steps of an epoch, not {self.start_step}.")
        rank, world = self.shard
        if not 0 <= rank < world:
            raise InputError(f"shard must be (rank, world) with 0 ≤ rank < world, not {self.shard}.")

    @classmethod
    def asked(
        cls,
        split: Split,
        *,
        normalisation: Normalisation | None = None,
        device: "torch.device | str" = "cpu",
        batch_size: int | None = None,
    ) -> "Batches":
        """All of a split in its stored order, as networks that are not trained are asked; by default `at_once`."""
        size = at_once(split.x, device) if batch_size is None else batch_size
        return cls(split, size, normalisation=normalisation, device=device)

    @property
    def steps(self) -> int:
        """How many batches an epoch has."""
        whole, rest = divmod(len(self.split), self.batch_size)
        return whole + (1 if rest and not self.drop_last else 0)

    def __len__(self) -> int:
        return self.steps - self.start_step

    def order(self) -> Tensor:
        """The rows in the order of this epoch, int64 (N,), on the device."""
        n = len(self.split)
        if self.order_seed is None:
            return torch.arange(n, device=self.device)
        return random_order(self.order_seed, self.epoch, n, device=self.device)

    def indices(self) -> Iterator[Tensor]:
        """The rows of each batch from `start_step` on, int64 (B,), for a loop that gathers them itself."""
        order, (rank, world) = self.order(), self.shard
        for step in range(self.start_step, self.steps):
            yield order[step * self.batch_size : (step + 1) * self.batch_size][rank::world]

    def __iter__(self) -> Iterator[Batch]:
        split = self.split.to(self.device)
        total = self.epochs * self.steps
        for offset, (index, x) in enumerate(self._inputs(split)):
            step = self.epoch * self.steps + self.start_step + offset
            yield Batch(
                x=self.prepare(x, index),
                y=split.y[index],
                index=index,
                progress=torch.full((), step / total, device=self.device),
                step=torch.full((), step, dtype=torch.int64, device=self.device),
                seed=self.augment_seed,
                normalisation=self.normalisation,
            )

    def prepare(
        self, x: "Tensor | dict[str, Tensor]", index: Tensor, *, epoch: Tensor | None = None
    ) -> "Tensor | dict[str, Tensor]":
        """Augment and normalise stored inputs whose rows are the samples `index`. A dict passes through unchanged.

        `epoch` overrules the object's own, for a captured step, which knows it only on the device.
        """
        if isinstance(x, dict):
            return x
        if self.augmentation is not None:
            view = self.view(self.epoch if epoch is None else epoch)
            x = self.augmentation(x, seed=self.augment_seed, epoch=view, index=index)
        return normalise(x, self.normalisation, dtype=self.dtype, channels_last=self.channels_last)

    def view(self, epoch: "int | Tensor") -> "int | Tensor":
        """Which draw of crops and flips an epoch shows."""
        return epoch % self.views if self.views else epoch

    def _inputs(self, split: Split) -> "Iterator[tuple[Tensor, Tensor | dict[str, Tensor]]]":
        if isinstance(split.x, ImageFiles):
            yield from self._decoded(split.x)
            return
        for index in self.indices():
            if isinstance(split.x, dict):
                yield index, {name: tensor[index] for name, tensor in split.x.items()}
            else:
                yield index, split.x[index]

    def _decoded(self, files: ImageFiles) -> Iterator[tuple[Tensor, Tensor]]:
        batches = list(self.indices())
        seed = None if self.augmentation is None else self.augment_seed
        rows = [index.tolist() for index in batches]
        images = files.stream(rows, seed=seed, epoch=int(self.view(self.epoch)), workers=self.workers)
        for index, x in zip(batches, images, strict=True):
            yield index, x.to(self.device, non_blocking=True)
