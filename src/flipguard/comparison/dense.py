"""Counting by address: integer ids that fill their range need no hash table.

Row numbers and most database keys are such ids. The old file is laid out in one array, a place per id, each sample in
four bytes; the new file is then read past it, which is less work than a join by hashing (benchmarks/README.md). The
outcome is that of `expression.counts` to the last count, or None: where ids are sparse or not integers, or where
anything is odd (an id twice, an id in one file only, labels that contradict each other), the expression runs and says
what it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.counted import Codes, Counted
from flipguard.comparison.expression import Plan
from flipguard.metrics import OUTCOMES
from flipguard.predictions import Predictions
from flipguard.predictions.columns import plain_type

# At most this many places per id: beyond, the array would be larger than a hash table.
_MOST_PLACES = 4
# A label and a prediction share an int32, each shifted by one so that 0 can stand for a missing one.
_BITS = 15
_LARGEST = (1 << _BITS) - 3
_EMPTY, _SEEN = np.int32(-1), np.int32(-2)

Packed = npt.NDArray[np.int32]


def dense_counts(
    old: Predictions, new: Predictions, plan: Plan, vocabulary: Vocabulary, *, batch: int = 1 << 18
) -> Counted | None:
    """The counts, where ids are dense integers and nothing is odd; None where the expression must look."""
    if not _applies(old, new, plan, vocabulary):
        return None
    bounds = [b for b in (_bounds(old, batch), _bounds(new, batch)) if b is not None]
    if len(bounds) < 2:
        return None
    low, high = min(b[0] for b in bounds), max(b[1] for b in bounds)
    if high >= 1 << 63 or high - low >= _MOST_PLACES * max(old.rows, new.rows):
        return None
    places = np.full(high - low + 1, _EMPTY, np.int32)
    for ids, packed in _packed(old, low, batch):
        if packed is None:
            return None
        places[ids] = packed
    if int(np.count_nonzero(places != _EMPTY)) != old.rows:
        return None
    counts = _Counts(plan.labels)
    for ids, packed in _packed(new, low, batch):
        if packed is None:
            return None
        before = places[ids]
        places[ids] = _SEEN
        if not counts.add(ids, before, packed):
            return None
    # Every place of old was met, and each once: fewer marks than rows would be an id twice in one batch.
    if int(np.count_nonzero(places == _SEEN)) != new.rows:
        return None
    return counts.counted(low)


def _applies(old: Predictions, new: Predictions, plan: Plan, vocabulary: Vocabulary) -> bool:
    plain = vocabulary.old is None and vocabulary.new is None
    if (
        not plain
        or old.rows != new.rows
        or plan.by
        or plan.split is not None
        or plan.has("weight")
        or plan.has("split")
    ):
        return False
    if plan.labels not in ("agree", "old", "new"):
        return False
    for predictions in (old, new):
        for column in ("id", "label", "prediction"):
            if column not in predictions.columns:
                return False
            if not pa.types.is_integer(plain_type(predictions.schema.field(column).type)):
                return False
    return True


def _bounds(predictions: Predictions, size: int) -> tuple[int, int] | None:
    """Smallest and largest id: from the footers where they have it, else by one pass over the column."""
    stored = predictions.stored_bounds("id")
    if stored is not None:
        return stored
    found = [pc.min_max(batch.column(0)) for batch in predictions.batches(["id"], size=size)]
    ends = [(f["min"].as_py(), f["max"].as_py()) for f in found]
    if any(low is None for low, _ in ends):
        return None
    return min(low for low, _ in ends), max(high for _, high in ends)


def _packed(predictions: Predictions, low: int, size: int) -> Iterator[tuple[Codes, Packed | None]]:
    """Batches of places (B,) and of packed label and prediction (B,); None for what does not fit or has no id."""
    for batch in predictions.batches_ahead(["id", "label", "prediction"], size=size):
        ids = batch.column(0)
        if ids.null_count:
            yield np.zeros(0, np.int64), None
            return
        places = ids.to_numpy().astype(np.int64, copy=False)
        yield places - low if low else places, _pack(batch.column(1), batch.column(2))


def _pack(label: pa.Array, prediction: pa.Array) -> Packed | None:
    columns = []
    for column in (label, prediction):
        if column.null_count:
            column = pc.fill_null(column, pa.scalar(-1, column.type)) if _signed(column) else None
        if column is None:
            return None
        values = column.to_numpy()
        if len(values) and (values.min() < -1 or values.max() > _LARGEST):
            return None
        columns.append(values.astype(np.int32, copy=False) + np.int32(1))
    packed: Packed = (columns[0] << _BITS) | columns[1]
    return packed


def _signed(column: pa.Array) -> bool:
    return bool(pa.types.is_signed_integer(column.type))


@dataclass
class _Counts:
    """Sums over batches, by label and flags; and the smallest id of the negative flips of each label."""

    labels: str
    total: Codes = field(default_factory=lambda: np.zeros(0, np.int64))
    example: dict[int, tuple[int, int]] = field(default_factory=dict)

    def add(self, places: Codes, old: Packed, new: Packed) -> bool:
        """Count a batch; False when it holds an id that old lacks or that came before, or labels contradict."""
        if old.min(initial=0) < 0:
            return False
        old_label, new_label = old >> _BITS, new >> _BITS
        differ = old_label != new_label
        if self.labels == "agree" and (differ & (old_label > 0) & (new_label > 0)).any():
            return False
        first, second = (new_label, old_label) if self.labels == "new" else (old_label, new_label)
        label = np.where(first > 0, first, second) if differ.any() else first
        mask = np.int32((1 << _BITS) - 1)
        old_says, new_says = old & mask, new & mask
        # Right, right, same, missing, missing: five flags that say the outcome, beside the label.
        key = label << 5
        key += (old_says == label) & (label > 0)
        key += ((new_says == label) & (label > 0)) * np.int32(2)
        key += (old_says == new_says) * np.int32(4)
        key += (old_says == 0) * np.int32(8) + (new_says == 0) * np.int32(16)
        counts = np.bincount(key, minlength=len(self.total))
        counts[: len(self.total)] += self.total
        self.total = counts
        self._note_examples(key, places, new_says)
        return True

    def _note_examples(self, key: Packed, places: Codes, new_says: Packed) -> None:
        """The first negative flip of each label (old right, new wrong: bit 0 without bit 1) and what new said of it."""
        flipped = np.flatnonzero((key & 3) == 1)
        labels, ids = key[flipped] >> 5, places[flipped]
        smallest = np.full(int(labels.max(initial=0)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(smallest, labels, ids)
        for row in np.flatnonzero(ids == smallest[labels]).tolist():
            label, found = int(labels[row]), (int(ids[row]), int(new_says[flipped[row]]) - 1)
            self.example[label] = min(self.example.get(label, found), found)

    def counted(self, low: int) -> Counted:
        key = np.flatnonzero(self.total)
        label, flags = key >> 5, key & 31
        right_old, right_new, same = (flags & 1) > 0, (flags & 2) > 0, (flags & 4) > 0
        outcome = np.select(
            [(label == 0) & same, label == 0, right_old & right_new, right_old, right_new, same],
            [5, 6, 0, 1, 2, 3],
            default=4,
        )
        negative = outcome == OUTCOMES.index("negative_flip")
        examples = [
            self.example[place][0] + low if flipped else None
            for place, flipped in zip(label.tolist(), negative.tolist(), strict=True)
        ]
        return Counted(
            outcome=outcome.astype(np.int64),
            label=label.astype(np.int64) - 1,
            count=self.total[key].astype(np.int64),
            missing_old=(flags & 8) > 0,
            missing_new=(flags & 16) > 0,
            weight=None,
            weight_squared=None,
            example=pa.chunked_array([pa.array(examples, pa.int64())]),
            by={},
            dropped_old=0,
            dropped_new=0,
            calibration=0,
            other_splits=0,
            said={place + low: said for place, said in self.example.values()},
        )
