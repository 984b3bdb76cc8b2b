"""DuckDB below the comparison: files become tables of (id, label code, prediction code, …), counted in one pass."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Side, Value, Vocabulary
from flipguard.comparison.counted import Codes, Counted, as_codes
from flipguard.comparison.expression import (
    CALIBRATION,
    CONTRADICTION,
    MISSING_NEW,
    MISSING_OLD,
    ONLY_NEW,
    ONLY_OLD,
    OTHER_SPLIT,
    counts,
    duplicates,
)
from flipguard.comparison.refusals import refuse_contradiction, refuse_duplicates, refuse_missing
from flipguard.comparison.scores import row_scores, wrong_length
from flipguard.comparison.sources import Sources
from flipguard.comparison.splits import refuse_set_aside
from flipguard.predictions import Predictions
from flipguard.predictions.columns import is_text
from flipguard.predictions.read import plain_path
from flipguard.types import InputError

_BLOCK = 65_536
MOST_CHARACTERS = 100_000
"""Of one class, slice or id."""


@contextmanager
def engine(memory: str | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that spills to a folder of its own when `memory` (default: half the machine's, at most 4 GB) is full."""
    if memory is None:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = f"{min(4 * 10**9, physical // 2)}B"
    with tempfile.TemporaryDirectory(prefix="flipguard-") as spill:
        connection = duckdb.connect()
        try:
            connection.execute("SET preserve_insertion_order = false")
            # Groups of cell and label then index an array instead of a hash table, up to about 2,000 classes.
            connection.execute("SET perfect_ht_threshold = 18")
            # Text in the statement and no parameter: to bind a value DuckDB imports pandas, if that is there.
            connection.execute(f"SET temp_directory = {literal(spill)}")
            try:
                connection.execute(f"SET memory_limit = {literal(memory)}")
            except duckdb.Error as error:
                raise InputError(f"--memory must be a size such as 4GB, not '{memory}'.") from error
            yield connection
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise InputError(f"the files cannot be compared: {str(error).strip().splitlines()[0]}") from error
        finally:
            connection.close()


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def register(
    connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str, *, scores: bool = False
) -> None:
    """Make the rows known to DuckDB under a name, with a column `prediction` whatever the file has.

    `scores` says whether the logits or probabilities of rows in memory must be readable as well.
    """
    if not isinstance(predictions.source, pa.Table):
        paths = [plain_path(path) for path in predictions.source]
        # A folder named label=3 is a folder, not a column.
        rows = connection.read_parquet(paths, union_by_name=len(paths) > 1, hive_partitioning=False)
        if "prediction" not in predictions.columns and predictions.scores:
            best = f"(list_position({predictions.scores}, list_max({predictions.scores})) - 1)::INTEGER"
            rows = rows.project(f"*, {best} AS prediction")
        rows.create_view(view)
        return
    table = predictions.source
    if "prediction" not in predictions.columns and predictions.scores:
        table = table.append_column("prediction", score_argmax(predictions))
    unread = [c for c in ("logits", "probabilities", "features") if not (scores and c == predictions.scores)]
    table = table.select([c for c in table.column_names if c not in unread])
    if scores and predictions.scores:
        place = table.column_names.index(predictions.scores)
        table = table.set_column(place, predictions.scores, _wide_floats(table.column(place)))
    connection.register(view, table)


def _wide_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """DuckDB does not read 16-bit floats from memory."""
    kind = pa.float64() if pa.types.is_float64(column.type.value_type) else pa.float32()
    return column.cast(pa.list_(kind))


def score_argmax(predictions: Predictions) -> pa.ChunkedArray:
    """The class index of each row's largest score, for a file without predictions."""
    assert predictions.scores is not None
    parts = []
    for batch in predictions.batches(["id", predictions.scores], size=_BLOCK):
        values, valid = row_scores(batch.column(1), predictions.score_width, predictions.name, batch.column(0))
        finite = np.isfinite(values).all(axis=1)
        if not finite.all():
            raise not_finite(predictions, batch.column(0)[int(np.flatnonzero(~finite)[0])])
        parts.append(pa.array(values.argmax(axis=1), mask=~valid))
    return pa.chunked_array(parts)


def not_finite(predictions: Predictions, id_: Any) -> InputError:
    return InputError(
        f"{predictions.name}: the {predictions.scores} of id {id_} hold NaN or infinity. "
        "Expected finite numbers; leave the row's scores empty if the model failed on it."
    )


def check_scores(connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str) -> None:
    """Predictions that follow from scores on disk: no pass over the scores comes after that would find a fault."""
    if "prediction" in predictions.columns or isinstance(predictions.source, pa.Table):
        return
    scores, width = predictions.scores, predictions.score_width
    bad = f"len({scores}) <> {width} OR NOT isfinite(list_sum({scores}))"
    for id_, length in connection.sql(f"SELECT id, len({scores}) FROM {view} WHERE {bad} LIMIT 1").fetchall():
        if length != width:
            raise wrong_length(predictions.name, id_, length, width)
        raise not_finite(predictions, id_)


def describe(
    connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str, *, observe: bool = False
) -> Side:
    """What the file says of classes; class indices are checked against their number on the way.

    `observe` also collects the indices that occur, for a file without class names that is matched by name.
    """
    found: dict[str, tuple[str, ...] | None] = {"label": None, "prediction": None}
    has_indices = False
    for column in found:
        if column == "label" and column not in predictions.columns:
            continue
        text = column in predictions.columns and is_text(predictions.schema.field(column).type)
        if not text:
            has_indices = True
            below_zero = _check_range(connection, predictions, view, column)
        if text or (predictions.classes is None and (observe or below_zero)):
            rows = connection.sql(f"SELECT DISTINCT {column} FROM {view} WHERE {column} IS NOT NULL").fetchall()
            found[column] = tuple(str(value) for (value,) in rows)
            _check_lengths(max(map(len, found[column] or ()), default=0), f"{predictions.name}: a {column}")
    _check_lengths(max(map(len, predictions.classes or ()), default=0), f"{predictions.name}: a class")
    return Side(predictions.name, predictions.classes, found["label"], found["prediction"], has_indices)


def _check_lengths(longest: int, what: str) -> None:
    """Names stand in tables, reports and files, many times over."""
    if longest > MOST_CHARACTERS:
        raise InputError(f"{what} has {longest:,} characters; names of more than {MOST_CHARACTERS:,} are refused.")


def _check_range(connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str, column: str) -> bool:
    """Refuse a class index that is too large for its file; say whether there are negative ones.

    A label beyond the width of the scores is no fault in a file without class names: the other file may know it.
    """
    bounds = predictions.stored_bounds(column)
    low, high = bounds or connection.sql(f"SELECT min({column}), max({column}) FROM {view}").fetchall()[0]
    count = predictions.class_count
    if count is None or low is None or (column == "label" and predictions.classes is None):
        return low is not None and low < 0
    if low < 0 or high >= count:
        bad = low if low < 0 else high
        rows = connection.execute(f"SELECT id FROM {view} WHERE {column} = ? LIMIT 1", [bad]).fetchall()
        if not rows:
            raise InputError(
                f"{predictions.name} is damaged: its footer speaks of {column} {bad}, which no row has. Write it again."
            )
        raise InputError(
            f"{predictions.name}: {column} {bad} (id {rows[0][0]}) is outside its {count} classes (0 to {count - 1})."
        )
    return False


def coded_table(
    connection: duckdb.DuckDBPyConnection,
    predictions: Predictions,
    view: str,
    codes: Mapping[Value, int] | None,
    *,
    id_as_text: bool,
    slices: Mapping[str, str] | None = None,
    relabelled: str | None = None,
    aside: str | None = None,
    scores: bool = False,
) -> tuple[duckdb.DuckDBPyRelation, frozenset[str]]:
    """The file with classes as codes, and the names of its columns.

    `slices` are the further columns to take, and their new names. `relabelled` and `aside` name views of (id, label)
    that overrule labels, and of (id) to set aside.
    """
    key = "CAST(r.id AS VARCHAR)" if id_as_text else "r.id"
    joins, columns = "", {"id": key}
    for column in ("label", "prediction"):
        if column == "label" and column not in predictions.columns:
            continue
        columns[column] = f"r.{column}"
        if codes is not None:
            text = column in predictions.columns and is_text(predictions.schema.field(column).type)
            mapping = f"{view}_{column}_codes"
            connection.register(mapping, _code_table(codes, text=text))
            joins += f" LEFT JOIN {mapping} ON r.{column} = {mapping}.value"
            columns[column] = f"{mapping}.code"
    if relabelled is not None:
        joins += f" LEFT JOIN {relabelled} ON {key} = {relabelled}.id"
        columns["label"] = f"coalesce({relabelled}.label, {columns.get('label', 'NULL')})"
    for column, alias in {"weight": "weight", "split": "split", **(slices or {})}.items():
        if column in predictions.columns:
            columns[alias] = f"r.{quoted(column)}"
    if aside is not None:
        joins += f" LEFT JOIN {aside} ON {key} = {aside}.id"
        columns["split"] = f"CASE WHEN {aside}.id IS NOT NULL THEN 'validation' ELSE {columns.get('split', 'NULL')} END"
    if predictions.scores and scores:
        columns["scores"] = f"r.{predictions.scores}"
    chosen = ", ".join(f"{value} AS {quoted(name)}" for name, value in columns.items())
    return connection.sql(f"SELECT {chosen} FROM {view} r{joins}"), frozenset(columns)


def _code_table(codes: Mapping[Value, int], *, text: bool) -> pa.Table:
    chosen = {value: code for value, code in codes.items() if isinstance(value, str) == text}
    kind = pa.string() if text else pa.int64()
    return pa.table({"value": pa.array(list(chosen), kind), "code": pa.array(list(chosen.values()), pa.int32())})


def count(sources: Sources, old: Predictions, new: Predictions, *, on_missing: str, vocabulary: Vocabulary) -> Counted:
    """Run the expression on DuckDB, and turn the faults it found into errors."""
    table = counts(sources.old, sources.new, sources.plan).collect("pyarrow").to_native()
    cell = table["cell"].to_numpy().astype(np.int64)
    number = table["count"].to_numpy().astype(np.int64)
    outcome = cell & 15
    example = table["example"]
    only_old, only_new = int(number[outcome == ONLY_OLD].sum()), int(number[outcome == ONLY_NEW].sum())
    matched = int(number.sum()) - only_old - only_new
    refuse_duplicates(sources, old, new, duplicates(old.rows, new.rows, matched, only_old, only_new))
    if only_old or only_new:
        refuse_missing(sources, old, new, outcome, example, only_old, only_new, matched, on_missing)
    contradicting = int(number[(cell & CONTRADICTION) > 0].sum())
    if contradicting:
        refuse_contradiction(sources, old, new, contradicting, vocabulary)
    if not (outcome < ONLY_OLD).any():
        by_column = any("split" in predictions.columns for predictions in (old, new))
        refuse_set_aside(sources, (old.name, new.name), matched, by_column=by_column)
    return counted_rows(table, as_codes(table["label"]), sources.slices, (old.name, new.name))


def counted_rows(table: pa.Table, label: Codes, slices: Mapping[str, str], names: tuple[str, str]) -> Counted:
    """What the expression counted, without the rows that are not compared; `label` are its groups' codes."""
    cell, number = table["cell"].to_numpy().astype(np.int64), table["count"].to_numpy().astype(np.int64)
    outcome = cell & 15
    kept = outcome < ONLY_OLD
    only_old, only_new = int(number[outcome == ONLY_OLD].sum()), int(number[outcome == ONLY_NEW].sum())
    if not kept.any():
        matched = int(number.sum()) - only_old - only_new
        raise InputError(
            f"no rows are left to compare: all {matched:,} shared ids of {names[0]} and {names[1]} are set aside."
            if matched
            else f"{names[0]} and {names[1]} share no id."
        )
    differing = _differing(table, slices)
    table = table.filter(pa.array(kept))
    for name, column in {"id": "example", **slices}.items():
        if is_text(table[column].type):
            longest = pc.max(pc.utf8_length(table[column])).as_py() or 0
            _check_lengths(longest, f"{names[0]} and {names[1]}: a value of {name}")
    weighted = "weight" in table.column_names
    return Counted(
        outcome=outcome[kept],
        label=label[kept],
        count=number[kept],
        missing_old=(cell[kept] & MISSING_OLD) > 0,
        missing_new=(cell[kept] & MISSING_NEW) > 0,
        weight=table["weight"].fill_null(0.0).to_numpy() if weighted else None,
        weight_squared=table["weight_squared"].fill_null(0.0).to_numpy() if weighted else None,
        example=table["example"],
        by={name: table[column] for name, column in slices.items()},
        dropped_old=only_old,
        dropped_new=only_new,
        calibration=int(number[outcome == CALIBRATION].sum()),
        other_splits=int(number[outcome == OTHER_SPLIT].sum()),
        differing=differing,
    )


def _differing(table: pa.Table, slices: Mapping[str, str]) -> dict[str, int]:
    """Over all rows: those that are set aside may be so by a split that the other file denies."""
    columns = {name: f"differs_{alias}" for name, alias in {"split": "split", **slices}.items()}
    return {name: pc.sum(table[c]).as_py() or 0 for name, c in columns.items() if c in table.column_names}
