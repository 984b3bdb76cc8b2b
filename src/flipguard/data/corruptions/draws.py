"""Random numbers for arrays of images, keyed by what is done and to which sample."""

import itertools
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from flipguard.data.randomness import CORRUPT, random_normal, random_uniform

Images: TypeAlias = npt.NDArray[np.float32]
"""(B, H, W, channels) in [0, 1]."""

Floats: TypeAlias = npt.NDArray[np.floating[Any]]


class Draws:
    """The numbers that one corruption draws for a block of samples: each call gives new ones, for each sample its own.

    The same seed, kind and calls give the same numbers, whatever else is in the block.
    """

    def __init__(self, seed: int, kind: int, index: Tensor) -> None:
        self._seed, self._kind, self._index = seed, kind, index
        self._calls = itertools.count()

    def __len__(self) -> int:
        return len(self._index)

    def _counter(self) -> int:
        return 1000 * self._kind + next(self._calls)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Floats:
        """(B, *shape) in [low, high)."""
        drawn = random_uniform(self._seed, self._counter(), self._index, draws=_size(shape), stream=CORRUPT)
        return low + (high - low) * drawn.numpy().reshape(-1, *shape)

    def normal(self, *shape: int) -> Floats:
        """(B, *shape), standard normal."""
        drawn = random_normal(self._seed, self._counter(), self._index, draws=_size(shape), stream=CORRUPT)
        return drawn.numpy().reshape(-1, *shape)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=int))
