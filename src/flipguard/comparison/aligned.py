"""A chain of prediction files as one matrix of class codes: the same samples, the same classes, version by version."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.bayesian import Codes
from flipguard.comparison.counted import as_codes
from flipguard.comparison.engine import score_argmax
from flipguard.predictions import Predictions
from flipguard.predictions.columns import is_text, label_names
from flipguard.types import InputError


@dataclass(frozen=True, eq=False)
class Chain:
    """Versions, oldest first, on the ids of the last.

    `names` are the classes by code, the last version's first; `predictions` (T+1, N) and `label` (N,) hold codes, -1
    where there is none. `indexed` says whether the last version speaks of classes by index, `listed` whether any file
    has a list of their names.
    """

    ids: pa.ChunkedArray
    names: tuple[str, ...]
    predictions: Codes
    label: Codes
    indexed: bool
    listed: bool

    def ids_in(self, ids: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """(N,) which of the samples are among these ids."""
        mine, other = alike(self.ids, ids)
        return np.asarray(pc.is_in(mine, value_set=other.combine_chunks()))


def align(files: Sequence[Predictions], known: Sequence[Predictions] = ()) -> Chain:
    """The chain of some files, whose classes include those of `known`, further files about the same classes."""
    names = class_vocabulary([*known, *files])
    last = files[-1]
    ids = last.table(["id"])["id"]
    for file in files:
        _check_unique(file)
    rows = [_places(ids, file, last) for file in files]
    said = [prediction_codes(file, names)[place] for file, place in zip(files, rows, strict=True)]
    label = np.full(len(ids), -1, np.int64)
    for file, place in zip(files, rows, strict=True):
        if "label" in file.columns:
            mine = label_codes(file, names)[place]
            _check_labels(ids, label, mine, file)
            label = np.where(mine >= 0, mine, label)
    listed = any(file.classes is not None for file in (*files, *known))
    return Chain(ids, names, np.stack(said), label, not is_text(_prediction_type(last)), listed)


def class_vocabulary(files: Sequence[Predictions]) -> tuple[str, ...]:
    """Every class that the files know or speak of: the last version's own list first, in its order."""
    listed = [file.classes for file in reversed(files) if file.classes is not None]
    widths = [file.score_width for file in files if file.scores]
    counted = [str(i) for i in range(max(widths))] if widths and not listed else []
    observed = {name for file in files for column in _class_columns(file, listed) for name in column}
    if not listed and all(name.isdecimal() and str(int(name)) == name for name in observed):
        counted = [str(i) for i in range(max([len(counted) - 1, *map(int, observed)]) + 1)]
    return tuple(dict.fromkeys([*(name for names in listed for name in names), *counted, *sorted(observed)]))


def prediction_codes(file: Predictions, names: tuple[str, ...]) -> Codes:
    """(N,) codes of what a version said, in its file's order; -1 where it said nothing."""
    return _codes(_predictions(file), file, names)


def label_codes(file: Predictions, names: tuple[str, ...]) -> Codes:
    """(N,) codes of the labels, in the file's order; -1 where there is none."""
    return _codes(file.table(["label"])["label"], file, names)


def alike(first: pa.ChunkedArray, second: pa.ChunkedArray) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Two columns of ids in one type: integers where both are, else text."""
    whole = all(pa.types.is_integer(column.type) for column in (first, second))
    kind = pa.int64() if whole else pa.string()
    return first.cast(kind), second.cast(kind)


def _prediction_type(file: Predictions) -> Any:
    return file.schema.field("prediction").type if "prediction" in file.columns else pa.int64()


def _predictions(file: Predictions) -> pa.ChunkedArray:
    return file.table(["prediction"])["prediction"] if "prediction" in file.columns else score_argmax(file)


def _class_columns(file: Predictions, listed: Sequence[tuple[str, ...]]) -> list[list[str]]:
    """The distinct names in a file's predictions and labels."""
    columns = [_predictions(file)]
    if "label" in file.columns:
        columns.append(file.table(["label"])["label"])
    default = listed[0] if listed else None
    return [pc.unique(_named(column, file, default)).drop_null().to_pylist() for column in columns]


def _codes(values: pa.ChunkedArray, file: Predictions, names: tuple[str, ...]) -> Codes:
    # An index without a list of its own is read in the vocabulary's order, which begins with the last version's list.
    return as_codes(pc.index_in(_named(values, file, names), value_set=pa.array(names, pa.string())))


def _named(values: pa.ChunkedArray, file: Predictions, default: tuple[str, ...] | None) -> pa.ChunkedArray:
    classes = file.classes or default
    if pa.types.is_integer(values.type):
        low, high = (bound(values).as_py() or 0 for bound in (pc.min, pc.max))
        if low < 0:
            raise InputError(f"{file.name}: class index {low} is below 0: leave the cell empty where there is none.")
        if classes is not None and high >= len(classes):
            raise InputError(f"{file.name}: class index {high} is outside its {len(classes)} classes.")
    return label_names(values, classes)


def _check_unique(file: Predictions) -> None:
    ids = file.table(["id"])["id"]
    counts = pc.value_counts(ids)
    twice = pc.filter(counts.field("values"), pc.greater(counts.field("counts"), 1))
    if len(twice):
        raise InputError(f"{file.name}: id {twice[0]} stands in more than one row.")


def _places(ids: pa.ChunkedArray, file: Predictions, last: Predictions) -> Codes:
    """Where each of the last version's ids stands in a file."""
    mine, other = alike(ids, file.table(["id"])["id"])
    places = pc.index_in(mine, value_set=other.combine_chunks())
    if places.null_count:
        missing = pc.filter(mine, pc.is_null(places))
        raise InputError(
            f"{file.name} lacks {len(missing):,} of the {len(ids):,} ids of {last.name} (first: {missing[0]}): every "
            "version must speak of the same samples."
        )
    return np.asarray(places, np.int64)


def _check_labels(ids: pa.ChunkedArray, before: Codes, after: Codes, file: Predictions) -> None:
    differ = np.flatnonzero((before >= 0) & (after >= 0) & (before != after))
    if len(differ):
        raise InputError(
            f"{file.name} labels {len(differ):,} samples otherwise than an older version's file (first: "
            f"{ids[int(differ[0])]}): write the same labels into all of them."
        )
