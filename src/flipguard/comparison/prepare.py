"""Everything that is settled before a row is counted: classes, columns, labels, splits, who overrules whom."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.corrected import relabelled
from flipguard.comparison.counted import Counted
from flipguard.comparison.dense import dense_counts
from flipguard.comparison.engine import coded_table, count, register
from flipguard.comparison.expression import Plan
from flipguard.comparison.options import Options
from flipguard.comparison.slices import settled_slices
from flipguard.comparison.sources import Sources
from flipguard.comparison.splits import note_on_training, split_sizes
from flipguard.comparison.stream import Block, aligned_blocks, joined_blocks, same_order
from flipguard.comparison.vocabulary import settled_vocabulary
from flipguard.predictions import Predictions, read_predictions
from flipguard.predictions.columns import plain_type
from flipguard.types import InputError


@dataclass(frozen=True)
class Prepared:
    """Two files, ready to be counted and streamed."""

    old: Predictions
    new: Predictions
    sources: Sources
    vocabulary: Vocabulary
    slices: tuple[str, ...]
    aligned: bool
    id_as_text: bool
    relabelled: bool
    notes: tuple[str, ...]

    @property
    def has_scores(self) -> bool:
        return bool(self.old.scores or self.new.scores)

    def count(self, *, on_missing: str) -> Counted:
        """Count by address where the ids allow it, else by the expression on DuckDB: the same counts."""
        plan = self.sources.plan
        found = None if self.relabelled else dense_counts(self.old, self.new, plan, self.vocabulary)
        if found is not None:
            return found
        return count(self.sources, self.old, self.new, on_missing=on_missing, vocabulary=self.vocabulary)

    def blocks(self) -> Iterator[Block]:
        """The rows of both files side by side, with their scores."""
        plan = self.sources.plan
        if self.aligned:
            return aligned_blocks(self.old, self.new, plan, tuple(self.sources.slices), self.vocabulary)
        return joined_blocks(self.sources.old, self.sources.new, plan, self.sources.slices)


def prepare(connection: duckdb.DuckDBPyConnection, old: Predictions, new: Predictions, options: Options) -> Prepared:
    corrected, aside = _overruling(old, new, options)
    named = [p for p in (old, new, corrected, aside) if p is not None]
    whole = [pa.types.is_integer(plain_type(p.schema.field("id").type)) for p in named]
    id_as_text = any(whole) and not all(whole)
    has_scores = bool(old.scores or new.scores)
    aligned = has_scores and corrected is None and aside is None and same_order(old, new)
    joins_scores = has_scores and not aligned
    for predictions, view in ((old, "old_rows"), (new, "new_rows")):
        register(connection, predictions, view, scores=joins_scores)
        _check_weight(connection, predictions, view)
    vocabulary = settled_vocabulary(connection, old, new, options.class_map)
    slices, notes = settled_slices(connection, old, new, options)
    grouped = dict.fromkeys((*slices, *([options.cluster] if options.cluster else [])))
    shared: dict[str, Any] = {
        "id_as_text": id_as_text,
        "slices": {name: f"by_{i}" for i, name in enumerate(grouped)},
        "relabelled": relabelled(connection, corrected, vocabulary, id_as_text) if corrected is not None else None,
        "aside": _aside(connection, aside, id_as_text) if aside is not None else None,
        "scores": joins_scores,
    }
    left, left_columns = coded_table(connection, old, "old_rows", vocabulary.old, **shared)
    right, right_columns = coded_table(connection, new, "new_rows", vocabulary.new, **shared)
    plan = Plan(
        old_columns=left_columns,
        new_columns=right_columns,
        labels="agree" if corrected is not None else options.labels,
        by=tuple(shared["slices"].values()),
        split=options.split,
        scores=joins_scores,
    )
    if options.split is not None and not plan.has("split"):
        raise InputError("--split needs a column 'split' in one of the files, and neither has one.")
    # Counted of whole files, which tells what is compared where both have as many rows and no list sets some aside.
    if options.split is None and not options.calibrate_on and old.rows == new.rows:
        notes += note_on_training(split_sizes(connection, old, new))
    sources = Sources(connection, left, right, plan, shared["slices"])
    return Prepared(
        old,
        new,
        sources,
        vocabulary,
        slices,
        aligned,
        id_as_text=id_as_text,
        relabelled=corrected is not None,
        notes=(*vocabulary.notes, *notes),
    )


def _overruling(old: Predictions, new: Predictions, options: Options) -> tuple[Predictions | None, Predictions | None]:
    """The file of corrected labels and that of ids to calibrate on, where there are any."""
    corrected = aside = None
    if not isinstance(options.labels, str) or options.labels not in ("agree", "old", "new"):
        path = isinstance(options.labels, str | Path)
        corrected = read_predictions(options.labels, name=None if path else "labels", need="label")
    for side, predictions in (("old", old), ("new", new)):
        if corrected is None and options.labels == side and "label" not in predictions.columns:
            raise InputError(f"--labels {side}: {predictions.name} has no column 'label'.")
    if len(options.calibrate_on) == 1:
        if not (old.scores and new.scores):
            raise InputError("--calibrate-on needs logits or probabilities in both files.")
        path = isinstance(options.calibrate_on[0], str | Path)
        aside = read_predictions(options.calibrate_on[0], name=None if path else "calibrate_on", need="id")
    return corrected, aside


def _check_weight(connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str) -> None:
    if "weight" not in predictions.columns:
        return
    # A comparison alone would pass over NaN: the bounds that a Parquet file states leave it out.
    bad = f"FROM {view} WHERE weight IS NULL OR NOT isfinite(weight::DOUBLE) OR weight < 0 LIMIT 1"
    for id_, weight in connection.sql(f"SELECT id, weight {bad}").fetchall():
        came = "none" if weight is None else f"{weight:g}"
        raise InputError(f"{predictions.name}: the weight of id {id_} must be a number of at least 0, it is {came}.")


def _aside(connection: duckdb.DuckDBPyConnection, source: Predictions, id_as_text: bool) -> str:
    """A view of the ids to calibrate on."""
    ids = pc.unique(source.table(["id"])["id"])
    connection.register("aside", pa.table({"id": ids.cast(pa.string()) if id_as_text else ids}))
    return "aside"
