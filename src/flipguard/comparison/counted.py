"""What a pass over the two files leaves: counts per outcome, label and slice values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.metrics import OUTCOMES, Tally

Codes = npt.NDArray[np.int64]


def as_codes(column: pa.Array | pa.ChunkedArray) -> Codes:
    """Integers of any width as int64, -1 where there is none. Widened first: an unsigned column cannot hold -1."""
    return np.asarray(pc.fill_null(pc.cast(column, pa.int64()), -1), np.int64)


@dataclass(frozen=True)
class Counted:
    """The counted groups, as columns: `outcome` (0 to 6), `label` (code, -1 for none), the slices, and the sums."""

    outcome: Codes
    label: Codes
    count: Codes
    missing_old: npt.NDArray[np.bool_]
    missing_new: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float64] | None
    weight_squared: npt.NDArray[np.float64] | None
    example: pa.ChunkedArray
    by: Mapping[str, pa.ChunkedArray]
    dropped_old: int
    dropped_new: int
    calibration: int
    other_splits: int
    differing: Mapping[str, int] = field(default_factory=dict)
    """In how many rows the two files have two values of a column that both have."""
    said: Mapping[int | str, int] | None = None
    """What the new model said about the examples that are negative flips, where the pass noted it."""

    def tally(self, group: Codes, groups: int) -> Tally:
        """Sum into `groups` groups; group[i] says where row i of the counts goes."""
        shape = (groups, len(OUTCOMES))
        cell = group * len(OUTCOMES) + self.outcome

        def summed(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            total = np.zeros(shape, values.dtype)
            np.add.at(total.reshape(-1), cell, values)
            return total

        missing = np.zeros((groups, 2), np.int64)
        np.add.at(missing[:, 0], group, self.count * self.missing_old)
        np.add.at(missing[:, 1], group, self.count * self.missing_new)
        return Tally(
            count=summed(self.count),
            missing=missing,
            weight=summed(self.weight) if self.weight is not None else None,
            weight_squared=summed(self.weight_squared) if self.weight_squared is not None else None,
            models=None,
            pair=None,
            calibrated=None,
        )
