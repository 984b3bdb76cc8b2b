"""Several models' logits on the same samples, read from prediction files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.expression import VALIDATION
from flipguard.comparison.scores import as_logits, row_scores
from flipguard.predictions import Predictions, read_predictions
from flipguard.predictions.columns import label_names
from flipguard.types import InputError

Logits = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Members:
    """Models that were trained alike but for the seed; their samples are in the order of `ids`."""

    names: tuple[str, ...]
    ids: tuple[Any, ...]
    label: npt.NDArray[np.int64]  # (N,), -1 where there is none
    logits: Logits  # (M, N, C)

    def errors(self, logits: Logits) -> npt.NDArray[np.bool_]:
        """(N, C) -> (N,): which samples a model with these logits gets wrong."""
        wrong: npt.NDArray[np.bool_] = logits.argmax(axis=-1) != self.label
        return wrong

    def dealt(self, size: int) -> Logits:
        """(K, N, C): the mean logits of K disjoint ensembles of a size."""
        count = len(self.logits) // size
        if not count:
            number = len(self.logits)
            raise InputError(
                f"an ensemble of {size} needs as many members, there are {number}: give more, or smaller sizes."
            )
        found: Logits = self.logits[: count * size].reshape(count, size, *self.logits.shape[1:]).mean(axis=1)
        return found

    def mean_probability_logits(self, kept: Sequence[int] | None = None) -> Logits:
        """(N, C): the logarithm of the members' mean probability, of all of them or of those kept."""
        logits = self.logits if kept is None else self.logits[list(kept)]
        shifted = np.exp(logits - logits.max(axis=2, keepdims=True))
        mean = (shifted / shifted.sum(axis=2, keepdims=True)).mean(axis=0)
        found: Logits = np.log(np.maximum(mean, np.finfo(np.float64).tiny))
        return found


def mixed(kinds: Sequence[Members]) -> Members:
    """Members of several kinds in turn, as many of each: an ensemble of so many members has one of each kind."""
    first, count = kinds[0], min(len(kind.logits) for kind in kinds)
    if any(kind.ids != first.ids for kind in kinds):
        raise InputError("members of several kinds need the same samples in the same order.")
    return Members(
        tuple(kind.names[place] for place in range(count) for kind in kinds),
        first.ids,
        first.label,
        np.stack([kind.logits[place] for place in range(count) for kind in kinds]),
    )


def read_members(sources: Sequence[Any], *, like: Members | None = None, column: str | None = None) -> Members:
    """The members of an ensemble, aligned by id: with the first of them, or with `like`.

    `column` names other numbers per row than the scores, such as `features`. Rows of the first file whose `split` is
    validation are left out, as in a comparison.
    """
    if not sources:
        raise InputError("an ensemble needs at least one prediction file.")
    files = [
        read_predictions(s, name=None if isinstance(s, str | Path) else f"member {i}") for i, s in enumerate(sources)
    ]
    kept = _compared(files[0])
    ids = pa.array(like.ids) if like is not None else files[0].table(["id"])["id"].combine_chunks().filter(kept)
    rows = [_values(file, ids, column) for file in files]
    if len({row.shape for row in rows}) > 1:
        widths = ", ".join(str(row.shape[1]) for row in rows)
        raise InputError(f"the members of an ensemble need rows of one width, theirs are {widths}.")
    label = like.label if like is not None else _label(files[0])[kept.to_numpy(zero_copy_only=False)]
    return Members(tuple(f.version or f.name for f in files), tuple(ids.to_pylist()), label, np.stack(rows))


def _compared(file: Predictions) -> pa.Array:
    """Which rows are no validation samples; of a file that has nothing else, all."""
    everything = pa.array(np.ones(file.rows, dtype=bool))
    if "split" not in file.columns:
        return everything
    held_out = pc.is_in(file.table(["split"])["split"].combine_chunks().cast(pa.string()), pa.array(VALIDATION))
    kept = pc.invert(held_out)
    return kept if pc.any(kept).as_py() else everything


def _values(file: Predictions, ids: pa.Array, column: str | None) -> Logits:
    name = column or file.scores
    if name is None or name not in file.columns:
        raise InputError(f"{file.name} has no {column or 'logits or probabilities'}, which the figure needs.")
    table = file.table(["id", name])
    own = table["id"].combine_chunks()
    place = pc.index_in(ids.cast(pa.string()), value_set=own.cast(pa.string()))
    if place.null_count:
        lacking = ids.filter(place.is_null())
        raise InputError(f"{file.name} lacks {len(lacking):,} samples of the others (first: {lacking[0]}).")
    values = table[name].combine_chunks().take(place)
    width = len(values[0].as_py()) if column else file.score_width
    found, there = row_scores(values, width, file.name, ids)
    if not there.all():
        raise InputError(f"{file.name}: id {ids[int(np.flatnonzero(~there)[0])]} has no {name}.")
    return as_logits(found, name, file.name).astype(np.float64) if column is None else found.astype(np.float64)


def _label(file: Predictions) -> npt.NDArray[np.int64]:
    if "label" not in file.columns:
        raise InputError(f"{file.name} has no labels, which the figure needs.")
    column = file.table(["label"])["label"].combine_chunks()
    if not pa.types.is_integer(column.type):
        if file.classes is None:
            raise InputError(f"{file.name} names its classes but does not list them: write it with its classes.")
        column = pc.index_in(label_names(column, file.classes), value_set=pa.array(file.classes))
    return np.asarray(pc.fill_null(column, -1), np.int64)
