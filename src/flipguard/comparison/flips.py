"""The changed predictions themselves: which samples, from what to what."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.expression import ONLY_OLD, joined
from flipguard.comparison.result import FlippedSample
from flipguard.comparison.sources import Sources
from flipguard.comparison.stream import FLIP_COLUMNS
from flipguard.files import whole_file
from flipguard.metrics import OUTCOMES
from flipguard.types import InputError


def flipped_samples(flips: pa.Table, vocabulary: Vocabulary) -> list[FlippedSample]:
    """Rows of a flip table (see stream.FLIP_COLUMNS) with class names for codes."""
    return [
        FlippedSample(
            id=row["id"],
            label=_name(row["label"], vocabulary),
            old=_name(row["old"], vocabulary),
            new=_name(row["new"], vocabulary),
            old_confidence=_number(row.get("old_confidence")),
            new_confidence=_number(row.get("new_confidence")),
            displacement=_number(row.get("displacement")),
            rank=row.get("rank") or None,
        )
        for row in flips.to_pylist()
    ]


def find_negative_flips(
    sources: Sources, label_of: Mapping[int | str, int], said: Mapping[int | str, int] | None
) -> pa.Table:
    """What the new model said about some negative flips, in the given order; the old one said the label.

    Unless it is known already, the new file is read once more, but only its ids and predictions.
    """
    beyond = any(isinstance(id_, int) and id_ >= 2**63 for id_ in label_of)
    if said is None:
        said = {}
    if label_of and not said:
        column: duckdb.Expression = duckdb.ColumnExpression("id")
        # DuckDB hands a plain filter on to Arrow, which takes no constant beyond 63 bits.
        column = column.cast("HUGEINT") if beyond else column
        wanted = column.isin(*(duckdb.ConstantExpression(id_) for id_ in label_of))
        said = dict(sources.new.filter(wanted).project("id, prediction").fetchall())
    ids = pa.array(list(label_of), pa.uint64() if beyond else None)
    labels = list(label_of.values())
    new = [None if said.get(id_, -1) == -1 else said[id_] for id_ in label_of]
    return pa.table({"id": ids, "label": labels, "old": labels, "new": pa.array(new, pa.int64())})


def changed_rows(sources: Sources) -> pa.Table:
    """Every compared sample whose prediction changed: id, label, old, new, outcome, weight and slices.

    A slice column that has the name of another column is called slice_NAME.
    """
    rows = joined(sources.old, sources.new, sources.plan).to_native()
    changed = ", ".join(str(OUTCOMES.index(n)) for n in _CHANGED)
    rows = rows.filter(f"cell & 15 < {ONLY_OLD} AND cell & 15 IN ({changed})")
    names = ["id", "label", "old", "new", "outcome", *(["weight"] if "weight" in rows.columns else [])]
    columns = [*("cell & 15 AS outcome" if name == "outcome" else name for name in names), *sources.slices.values()]
    table = rows.project(", ".join(columns)).order("id").to_arrow_table()
    return table.rename_columns(names + list(slice_columns(sources.slices).values()))


def slice_columns(slices: Iterable[str]) -> dict[str, str]:
    """What each slice column is called in a flip table.

    >>> slice_columns(["country", "rank"])
    {'country': 'country', 'rank': 'slice_rank'}
    """
    taken = {*FLIP_COLUMNS, "weight"}
    return {name: f"slice_{name}" if name in taken else name for name in slices}


_CHANGED = ("negative_flip", "positive_flip", "both_wrong_different", "unlabelled_different")


def named(flips: pa.Table, vocabulary: Vocabulary, measured: Sequence[pa.Table] = ()) -> pa.Table:
    """A flip table with names for codes; `measured` adds the confidences, displacement and rank by id."""
    for column in ("label", "old", "new"):
        place = flips.column_names.index(column)
        flips = flips.set_column(place, column, _names(flips[column], vocabulary))
    place = flips.column_names.index("outcome")
    flips = flips.set_column(place, "outcome", pa.array(OUTCOMES).take(flips["outcome"].combine_chunks()))
    if measured:
        scores = pa.concat_tables(measured).drop_columns(["label", "old", "new", "outcome"])
        scores = scores.set_column(0, "id", scores["id"].cast(flips["id"].type))
        for place, column in enumerate(scores.column_names[1:], start=1):
            known = pc.is_finite(scores[column]) if column != "rank" else pc.greater(scores[column], 0)
            values = pc.if_else(known, scores[column], pa.scalar(None, scores[column].type))
            scores = scores.set_column(place, column, values)
        flips = flips.join(scores, "id").sort_by("id")
    return flips


def _names(codes: pa.ChunkedArray, vocabulary: Vocabulary) -> pa.ChunkedArray:
    if vocabulary.names is None:
        return codes.cast(pa.string())
    known = pc.if_else(pc.greater_equal(codes, 0), codes, pa.scalar(None, codes.type))
    return pc.take(pa.array(vocabulary.names), known)


def write_flips(flips: pa.Table, path: str | Path) -> None:
    """Parquet, CSV or JSON lines, by the ending; written beside and renamed."""
    path = Path(path)
    writers: dict[str, Any] = {".parquet": pq.write_table, ".csv": pa_csv.write_csv, ".jsonl": _write_json_lines}
    writer = writers.get(path.suffix.lower())
    if writer is None:
        raise InputError(f"{path}: flips are written as .parquet, .csv or .jsonl, by the file's ending.")
    with whole_file(path) as beside:
        writer(flips, str(beside))


def _write_json_lines(flips: pa.Table, path: str) -> None:
    with Path(path).open("w", encoding="utf-8") as file:
        for row in flips.to_pylist():
            file.write(json.dumps(row, default=str, ensure_ascii=False) + "\n")


def _name(code: Any, vocabulary: Vocabulary) -> str | None:
    return None if code is None or code == -1 else vocabulary.name(int(code))


def _number(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
