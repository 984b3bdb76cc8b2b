"""Scores with a column for each class, as data frames and spreadsheets have them, as the one column of lists."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.predictions.columns import is_text

PREFIXES = {
    "logits": ("logit_", "logits_"),
    "probabilities": ("probability_", "prob_", "proba_", "p_"),
}


def candidates(schema: pa.Schema) -> list[tuple[str, str, list[str]]]:
    """What may be scores with a column for each class: `logits` or `probabilities`, the prefix, and the columns.

    >>> candidates(pa.schema([("id", pa.int64()), ("p_cat", pa.float64()), ("p_dog", pa.float64())]))
    [('probabilities', 'p_', ['p_cat', 'p_dog'])]
    """
    names = schema.names
    if PREFIXES.keys() & set(names) or len(set(names)) < len(names):
        return []
    each = [(kind, prefix) for kind, prefixes in PREFIXES.items() for prefix in prefixes]
    found = [(kind, prefix, _columns(schema, prefix)) for kind, prefix in each]
    return [one for one in found if len(one[2]) > 1]


def gathered(table: pa.Table, known: Sequence[str] | None = None) -> tuple[pa.Table, Sequence[str] | None]:
    """The table with one column of scores, and its classes: those that are `known`, else what the columns' names tell.

    The names must be classes: all that are known; else all that are predicted among them, names, or indices from 0 on,
    whose classes have no names. Probabilities must sum to 1, all of them or those of the classes that occur. Else the
    columns are what they are, such as p_value. A row that lacks a score has none.

    >>> rows = pa.table({"id": [1, 2], "prediction": ["dog", "cat"], "p_cat": [0.3, 0.8], "p_dog": [0.7, 0.2]})
    >>> found, classes = gathered(rows)
    >>> found.column("probabilities").to_pylist(), classes
    ([[0.3, 0.7], [0.8, 0.2]], ('cat', 'dog'))
    """
    for kind, prefix, columns in candidates(table.schema):
        for classes in _classes(table, [column.removeprefix(prefix) for column in columns], known):
            ordered = [f"{prefix}{name}" for name in classes]
            lists = _lists(table, ordered)
            if kind == "logits" or _sums_to_one(lists, len(ordered)):
                unnamed = known is None and not _has_names(table)
                return table.drop_columns(ordered).append_column(kind, lists), None if unnamed else classes
    return table, known


def needed(schema: pa.Schema) -> list[str]:
    """The columns by which `gathered` decides; none where there is nothing to gather."""
    columns = [column for _, _, each in candidates(schema) for column in each]
    return [name for name in ("label", "prediction") if name in schema.names] + columns if columns else []


def _classes(table: pa.Table, names: Sequence[str], known: Sequence[str] | None) -> Iterator[tuple[str, ...]]:
    """Which of the names may be the classes, in their order: all, or those that occur."""
    if known is not None:
        if sorted(known) == sorted(names):
            yield tuple(known)
        return
    seen = [{str(value) for value in pc.unique(values).to_pylist() if value is not None} for values in _said(table)]
    predicted, every = (seen[-1] if seen else set()), set[str]().union(*seen)
    if not predicted <= set(names) or not every:
        return
    if _has_names(table):
        yield tuple(names)
        if 1 < len(every & set(names)) < len(names):
            yield tuple(name for name in names if name in every)
    elif {str(index) for index in range(len(names))} == set(names) and every <= set(names):
        yield tuple(sorted(names, key=int))


def _sums_to_one(lists: pa.Array, width: int) -> bool:
    scores = pc.list_flatten(lists).to_numpy().reshape(-1, width)
    return bool(len(scores) and (scores >= 0).all() and (np.abs(scores.sum(axis=1) - 1) <= 0.02).all())


def _said(table: pa.Table) -> list[pa.ChunkedArray]:
    return [table.column(name) for name in ("label", "prediction") if name in table.column_names]


def _has_names(table: pa.Table) -> bool:
    return any(is_text(values.type) for values in _said(table))


def _columns(schema: pa.Schema, prefix: str) -> list[str]:
    return [
        field.name
        for field in schema
        if field.name.startswith(prefix)
        and len(field.name) > len(prefix)
        and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
    ]


def _lists(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    given = [table.column(column) for column in columns]
    missing = np.logical_or.reduce([values.is_null().to_numpy() for values in given])
    scores = np.stack([pc.fill_null(pc.cast(values, pa.float64()), 0.0).to_numpy() for values in given], axis=1)
    return pa.FixedSizeListArray.from_arrays(pa.array(scores.ravel()), len(columns), mask=pa.array(missing))
