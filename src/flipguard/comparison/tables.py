"""Two tables of another engine, a Spark's for one: joined and counted there, judged here."""

from collections.abc import Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.counted import Codes, as_codes
from flipguard.comparison.engine import counted_rows
from flipguard.comparison.expression import CONTRADICTION, ONLY_NEW, ONLY_OLD, Plan, counts, duplicates
from flipguard.comparison.gate import GateSettings, judge
from flipguard.comparison.groups import clusters_of, counted_tally, families, groups_of
from flipguard.comparison.measure import figures
from flipguard.comparison.notes import notes_on_counts, notes_on_labels
from flipguard.comparison.options import Options, options_of
from flipguard.comparison.refusals import no_id_shared
from flipguard.comparison.result import Comparison, File
from flipguard.comparison.run import samples_to_significance
from flipguard.predictions.columns import RESERVED, check_columns, is_text
from flipguard.types import InputError


def compare_tables(
    old: Any,
    new: Any,
    *,
    names: tuple[str, str] = ("old", "new"),
    by: Sequence[str] = (),
    confidence: float = 0.95,
    labels: str = "agree",
    on_missing: str = "error",
    cluster: str | None = None,
    split: str | None = None,
    correction: str = "holm",
    cost_ratio: float | None = None,
    gate: GateSettings | Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare two tables where they lie: Spark data frames, DuckDB relations, Polars lazy frames.

    The options are those of `compare`, and so are the columns. One join counts all outcomes, and each table's rows
    are counted besides, which shows ids that stand twice; only counts come back. Scores are not read, so there are
    neither their figures nor temperatures; slices are those of `by` alone; single flips are named by one example for
    each class.

    >>> import duckdb
    >>> old = duckdb.sql("SELECT * FROM (VALUES (1, 0, 0), (2, 1, 1), (3, 1, 0)) AS t(id, label, prediction)")
    >>> new = duckdb.sql("SELECT * FROM (VALUES (1, 0, 1), (2, 1, 1), (3, 1, 1)) AS t(id, label, prediction)")
    >>> found = compare_tables(old, new)
    >>> found.negative_flips, found.positive_flips, found.negative_flip_rate.value
    (1, 1, 0.3333333333333333)
    """
    if labels not in ("agree", "old", "new"):
        raise InputError(f"labels must be agree, old or new where tables are compared, not '{labels}'.")
    options = options_of(
        by=tuple(by),
        confidence=confidence,
        labels=labels,
        on_missing=on_missing,
        cluster=cluster,
        split=split,
        correction=correction,
        cost_ratio=cost_ratio,
        gate=gate,
    )
    sides = [_Side(table, name) for table, name in zip((old, new), names, strict=True)]
    slices = {name: f"by_{i}" for i, name in enumerate(dict.fromkeys([*by, *([cluster] if cluster else [])]))}
    plan, left, right = _planned(sides, slices, options)
    table = counts(left, right, plan, checked=True).collect("pyarrow").to_native()
    rows, labelled = zip(*(side.sizes() for side in sides), strict=True)
    _refuse(table, names, rows, on_missing=on_missing)
    files = [File(name=n, rows=r) for n, r in zip(names, rows, strict=True)]
    notes = notes_on_labels(names, (labelled[0] > 0, labelled[1] > 0)) if labels == "agree" else []
    return _judged(table, slices, options, files, notes)


class _Side:
    """One of the two tables, and what its schema says."""

    def __init__(self, native: Any, name: str) -> None:
        self.name = name
        self.table: nw.LazyFrame[Any] = nw.from_native(native).lazy()
        known = self.table.collect_schema()
        plain = {column: kind for column, kind in known.items() if column in RESERVED}
        self.schema = nw.Schema(plain).to_arrow()
        self.columns = frozenset(known)
        check_columns(self.schema, name, "prediction")
        if "prediction" not in known:
            raise InputError(f"{name} has no column 'prediction', and scores are not read where tables are compared.")
        for column in ("id", "label", "prediction"):
            if column in plain and pa.types.is_floating(self.schema.field(column).type):
                raise InputError(f"{name}: column '{column}' must hold whole numbers or names, it holds floats.")

    def is_text(self, column: str) -> bool:
        return is_text(self.schema.field(column).type)

    def sizes(self) -> tuple[int, int]:
        """How many rows it has, and how many of them have a label."""
        asked = {"rows": nw.len()} | ({"labels": nw.col("label").count()} if "label" in self.columns else {})
        found = self.table.select(**asked).collect("pyarrow").to_native().to_pylist()[0]
        return int(found["rows"]), int(found.get("labels", 0))


def _planned(sides: list[_Side], slices: Mapping[str, str], options: Options) -> tuple[Plan, Any, Any]:
    """The plan of the expression, and the two tables with the columns that it needs, one type for each meaning."""
    for name in slices:
        if name in RESERVED or not any(name in side.columns for side in sides):
            raise InputError(f"neither table has a column '{name}' to slice by.")
    if options.split is not None and not any("split" in side.columns for side in sides):
        raise InputError("--split needs a column 'split' in one of the tables, and neither has one.")
    for side, which in zip(sides, ("old", "new"), strict=True):
        if options.labels == which and "label" not in side.columns:
            raise InputError(f"--labels {which}: {side.name} has no column 'label'.")
    text = [side.is_text("id") for side in sides]
    values = [(side, c) for side in sides for c in ("label", "prediction") if c in side.columns]
    named = {side.is_text(column) for side, column in values}
    if len(named) > 1:
        texts = [f"{side.name}.{column}" for side, column in values if side.is_text(column)]
        raise InputError(f"classes are names in {', '.join(texts)} and numbers elsewhere: write them alike.")
    kinds = {
        "id": nw.String() if any(text) else nw.Int64(),
        **dict.fromkeys(("label", "prediction"), nw.String() if True in named else nw.Int64()),
        "weight": nw.Float64(),
        "split": nw.String(),
    }
    tables, columns = [], []
    for side in sides:
        chosen = {name: nw.col(name).cast(kind) for name, kind in kinds.items() if name in side.columns}
        chosen |= {alias: nw.col(name) for name, alias in slices.items() if name in side.columns}
        tables.append(nw.to_native(side.table.select(**chosen)))
        columns.append(frozenset(chosen))
    plan = Plan(columns[0], columns[1], labels=options.labels, by=tuple(slices.values()), split=options.split)
    return plan, tables[0], tables[1]


def _refuse(table: pa.Table, names: tuple[str, str], rows: Sequence[int], *, on_missing: str) -> None:
    """Faults that the counts show, each with an example where there is one."""
    cell, number = table["cell"].to_numpy().astype(np.int64), table["count"].to_numpy().astype(np.int64)
    outcome = cell & 15
    if sum(table["unnamed"].to_pylist()):
        raise InputError(f"{sum(table['unnamed'].to_pylist()):,} rows have no id: every sample needs one.")
    only = {side: int(number[outcome == code].sum()) for side, code in (("old", ONLY_OLD), ("new", ONLY_NEW))}
    matched = int(number.sum()) - only["old"] - only["new"]
    twice = duplicates(rows[0], rows[1], matched, only["old"], only["new"])
    for name, repeated in zip(names, twice, strict=True):
        if repeated:
            raise InputError(f"{name} has duplicate ids. Each id must name one sample: remove the copies.")
    if not matched:
        first = [_first(table, outcome == code) for side, code in (("old", ONLY_OLD), ("new", ONLY_NEW)) if only[side]]
        raise InputError(no_id_shared(names, first))
    if on_missing == "error" and (only["old"] or only["new"]):
        parts = [
            f"{number:,} only in {side} (first: {_first(table, outcome == (ONLY_OLD if side == 'old' else ONLY_NEW))})"
            for side, number in only.items()
            if number
        ]
        raise InputError(
            f"{names[0]} has {rows[0]:,} ids and {names[1]} {rows[1]:,}; {', '.join(parts)}. "
            f"Pass --on-missing drop to compare the {matched:,} shared ones."
        )
    against = (cell & CONTRADICTION) > 0
    if against.any():
        raise InputError(
            f"{names[0]} and {names[1]} disagree on {int(number[against].sum()):,} labels (first: id "
            f"{_first(table, against)}). Pass --labels old or --labels new to say which are right."
        )
    if "lightest" in table.column_names:
        lightest = pc.min(table["lightest"]).as_py()
        total = pc.sum(table["weight"]).as_py()
        if (lightest is not None and lightest < 0) or (total is not None and not np.isfinite(total)):
            raise InputError("every weight must be a number of at least 0: one is negative or not finite.")


def _first(table: pa.Table, rows: Any) -> Any:
    return pc.min(table["example"].filter(pa.array(rows))).as_py()


def _judged(
    table: pa.Table, slices: Mapping[str, str], options: Options, files: list[File], notes: list[str]
) -> Comparison:
    vocabulary, label = _vocabulary(table["label"])
    counted = counted_rows(table, label, slices, (files[0].name, files[1].name))
    groupings = families(counted, tuple(options.by or ()))
    tallies = [counted_tally(family, counted) for family in groupings]
    whole = tallies[0].total()
    settings: dict[str, Any] = {
        "confidence": options.confidence,
        "cost_ratio": options.cost_ratio,
        "displacement": False,
    }
    classes, groups = groups_of(vocabulary, counted, groupings, tallies, options, settings)
    found = figures(whole, clusters=clusters_of(counted, options), **settings)
    comparison = Comparison(
        **found,
        old=files[0],
        new=files[1],
        confidence=options.confidence,
        cluster=options.cluster,
        cost_ratio=options.cost_ratio,
        correction=options.correction,
        classes=classes,
        slices=groups,
        samples_to_significance=samples_to_significance(found, options),
        notes=[*notes, *notes_on_counts(counted, whole, options)],
    )
    return comparison.model_copy(update={"gate": judge(comparison, options.gate)})


def _vocabulary(label: pa.ChunkedArray) -> tuple[Vocabulary, Codes]:
    """Codes for the labels that occur, in their order; a number is called by its decimal text."""
    values = pc.unique(label).drop_null().sort()
    names = tuple(str(value) for value in values.to_pylist())
    return Vocabulary(names, None, None, None, None), as_codes(pc.index_in(label, value_set=values))
