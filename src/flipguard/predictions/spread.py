"""Scores with a column for each class, as data frames and spreadsheets have them, as the one column of lists."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.predictions.columns import is_text

PREFIXES = {
    "logits": ("logit_", "logits_"),
    "probabilities": ("probability_", "prob_", "proba_", "p_"),
}


def spread_scores(schema: pa.Schema) -> tuple[str, str] | None:
    """Whether columns may be the scores of a class each: `logits` or `probabilities`, and their prefix.

    >>> spread_scores(pa.schema([("id", pa.int64()), ("p_cat", pa.float64()), ("p_dog", pa.float64())]))
    ('probabilities', 'p_')
    """
    if PREFIXES.keys() & set(schema.names):
        return None
    for kind, prefixes in PREFIXES.items():
        for prefix in prefixes:
            if len(_columns(schema, prefix)) > 1:
                return kind, prefix
    return None


def gathered(table: pa.Table, known: Sequence[str] | None = None) -> tuple[pa.Table, tuple[str, ...] | None]:
    """The table with one column of scores, and its classes: those that are `known`, else what the columns' names tell.

    The names must be classes: all that are known; of labels or predictions that are names, at least one; of indices,
    all from 0 on, whose classes have no names. Else the columns are what they are, such as p_value. A row that lacks a
    score has none.

    >>> rows = pa.table({"id": [1, 2], "prediction": ["dog", "cat"], "p_cat": [0.3, 0.8], "p_dog": [0.7, 0.2]})
    >>> found, classes = gathered(rows)
    >>> found.column("probabilities").to_pylist(), classes
    ([[0.3, 0.7], [0.8, 0.2]], ('cat', 'dog'))
    """
    spread = spread_scores(table.schema)
    if spread is None:
        return table, _as_tuple(known)
    kind, prefix = spread
    columns = {column.removeprefix(prefix): column for column in _columns(table.schema, prefix)}
    classes = _classes(table, list(columns), known)
    if classes is None:
        return table, _as_tuple(known)
    ordered = [columns[name] for name in classes]
    unnamed = known is None and not _has_names(table)
    return table.drop_columns(ordered).append_column(kind, _lists(table, ordered)), None if unnamed else classes


def _classes(table: pa.Table, names: Sequence[str], known: Sequence[str] | None) -> tuple[str, ...] | None:
    """The classes in their order, if that is what the columns are named by."""
    if known is not None:
        return _as_tuple(known) if sorted(known) == sorted(names) else None
    if _has_names(table):
        seen = {name for values in _said(table) if is_text(values.type) for name in pc.unique(values).to_pylist()}
        return tuple(names) if seen & set(names) else None
    indices = tuple(str(index) for index in range(len(names)))
    return indices if set(indices) == set(names) else None


def _said(table: pa.Table) -> list[pa.ChunkedArray]:
    return [table.column(name) for name in ("label", "prediction") if name in table.column_names]


def _has_names(table: pa.Table) -> bool:
    return any(is_text(values.type) for values in _said(table))


def _as_tuple(classes: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if classes is None else tuple(classes)


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
