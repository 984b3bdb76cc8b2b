"""What lies under a comparison: its flips one by one, its calibration bins, its displacements as a histogram."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flipguard.comparison.result import Comparison
from flipguard.metrics import OUTCOMES

PER_OCTAVE = 8
_LOWEST, _HIGHEST = -20, 20
_BINS = (_HIGHEST - _LOWEST) * PER_OCTAVE


@dataclass(frozen=True)
class Detail:
    """A comparison and what a picture of it needs beyond its figures."""

    comparison: Comparison
    flips: pa.Table
    """Every changed prediction with class names: what `compare(flips=…)` writes."""
    slices: dict[str, str]
    """The columns that were sliced by, and what they are called in `flips`."""
    bins: npt.NDArray[np.float64] | None
    """(2, 15, 5): the calibration bins of the old and the new model, as in `metrics.ModelScores`."""
    displacements: npt.NDArray[np.int64] | None
    """(7, K): how many samples of each outcome moved how far, in the bins between `displacement_edges()`."""


def displacement_edges() -> npt.NDArray[np.float64]:
    """(K + 1,) the ends of the displacement bins: eight to an octave, from 2^-20 to 2^20.

    Bins that do not depend on the data add up over blocks and files.

    >>> edges = displacement_edges()
    >>> float(edges[0] * 2**20), float(edges[8] / edges[0])
    (1.0, 2.0)
    """
    return np.exp2(np.arange(_BINS + 1) / PER_OCTAVE + _LOWEST)


def displacement_counts(displacement: Any, outcome: Any) -> npt.NDArray[np.int64]:
    """(B,), (B,) -> (7, K): rows by outcome and bin; what lies beyond the ends enters the outermost bins.

    >>> counts = displacement_counts(np.array([1.0, 1.01, 4.0, np.nan]), np.array([0, 0, 1, 1]))
    >>> counts.sum(axis=1)[:2], int(counts[0].max())
    (array([2, 1]), 2)
    """
    known = np.isfinite(displacement)
    with np.errstate(divide="ignore"):
        place = np.floor((np.log2(displacement[known]) - _LOWEST) * PER_OCTAVE)
    cell = outcome[known] * _BINS + np.clip(place, 0, _BINS - 1).astype(np.int64)
    return np.bincount(cell, minlength=len(OUTCOMES) * _BINS).reshape(len(OUTCOMES), _BINS)
