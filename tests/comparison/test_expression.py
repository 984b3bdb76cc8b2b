"""The one table expression, on DuckDB and on Polars, against a loop; and what its cells mean."""

from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.comparison.expression import (
    CALIBRATION,
    CONTRADICTION,
    MISSING_NEW,
    MISSING_OLD,
    ONLY_NEW,
    ONLY_OLD,
    OTHER_SPLIT,
    Plan,
    counts,
    duplicates,
)

CODES = st.one_of(st.none(), st.integers(0, 2))
SPLITS = st.sampled_from([None, "test", "validation", "train"])
TYPES = {
    "id": pa.int64(),
    "label": pa.int64(),
    "prediction": pa.int64(),
    "weight": pa.float64(),
    "split": pa.string(),
    "by_0": pa.string(),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table, Plan]:
    optional = [draw(st.sets(st.sampled_from(["label", "weight", "split"]))) for _ in range(2)]
    pair = []
    for columns in optional:
        ids = draw(st.lists(st.integers(0, 12), unique=True, min_size=1))
        strategies = {
            "prediction": CODES,
            "label": CODES,
            "weight": st.integers(0, 5).map(float),
            "split": SPLITS,
            "by_0": st.sampled_from([None, "x", "y"]),
        }
        names = ["prediction", *sorted(columns), "by_0"]
        size = {"min_size": len(ids), "max_size": len(ids)}
        drawn = {n: draw(st.lists(strategies[n], **size)) for n in names}
        pair.append(pa.table({n: pa.array(v, TYPES[n]) for n, v in {"id": ids, **drawn}.items()}))
    plan = Plan(
        frozenset(pair[0].column_names),
        frozenset(pair[1].column_names),
        labels=draw(st.sampled_from(["agree", "old", "new"])),
        by=("by_0",),
        split="test" if plan_has_split(pair) and draw(st.booleans()) else None,
    )
    return pair[0], pair[1], plan


def plan_has_split(pair: list[pa.Table]) -> bool:
    return any("split" in table.column_names for table in pair)


def cell_of(a: dict[str, Any] | None, b: dict[str, Any] | None, plan: Plan) -> tuple[int, int | None]:
    """The cell and the label of one id, from its row in either table."""
    first, second = (b, a) if plan.labels == "new" else (a, b)
    labels = [row.get("label") for row in (first, second) if row is not None]
    label = next((v for v in labels if v is not None), None)
    if a is None or b is None:
        return (ONLY_NEW if a is None else ONLY_OLD), label
    split = b.get("split") or a.get("split")
    old, new = a["prediction"], b["prediction"]
    if split == "validation":
        cell = CALIBRATION
    elif plan.split is not None and split != plan.split:
        cell = OTHER_SPLIT
    elif label is None:
        cell = 5 if old == new else 6
    elif old == label:
        cell = 0 if new == label else 1
    else:
        cell = 2 if new == label else 3 if old == new else 4
    cell += MISSING_OLD * (old is None) + MISSING_NEW * (new is None)
    both = plan.labels == "agree" and a.get("label") is not None and b.get("label") is not None
    return cell + CONTRADICTION * bool(both and a["label"] != b["label"]), label


def by_loop(old: pa.Table, new: pa.Table, plan: Plan) -> dict[Any, Any]:
    left, right = ({row["id"]: row for row in table.to_pylist()} for table in (old, new))
    found: dict[Any, Any] = {}
    for id_ in left.keys() | right.keys():
        a, b = left.get(id_), right.get(id_)
        cell, label = cell_of(a, b, plan)
        merged = {**(a or {}), **{k: v for k, v in (b or {}).items() if v is not None}}
        entry = found.setdefault(
            (cell, label, merged.get("by_0")),
            {"count": 0, "example": id_, "weight": 0.0, "squared": 0.0, "split": 0, "by_0": 0},
        )
        for name in ("split", "by_0"):
            values = {row[name] for row in (a, b) if row is not None and row.get(name) is not None}
            entry[name] += len(values) == 2
        weight = merged.get("weight") or 0.0
        entry["count"] += 1
        entry["example"] = min(entry["example"], id_)
        entry["weight"] += weight
        entry["squared"] += weight**2
    return found


def as_found(table: pa.Table) -> dict[Any, Any]:
    return {
        (row["cell"], row["label"], row["by_0"]): {
            "count": row["count"],
            "example": row["example"],
            "weight": row.get("weight") or 0.0,
            "squared": row.get("weight_squared") or 0.0,
            **{name: row.get(f"differs_{name}", 0) for name in ("split", "by_0")},
        }
        for row in table.to_pylist()
    }


@settings(max_examples=60, deadline=None)
@given(tables())
def test_cells_are_those_of_a_loop(drawn: tuple[pa.Table, pa.Table, Plan]) -> None:
    old, new, plan = drawn
    expected = by_loop(old, new, plan)
    with duckdb.connect() as connection:
        relations = [connection.from_arrow(table) for table in (old, new)]
        assert as_found(counts(*relations, plan).collect("pyarrow").to_native()) == expected
    frames = [pl.LazyFrame(pl.from_arrow(table)) for table in (old, new)]
    assert as_found(counts(*frames, plan).collect("pyarrow").to_native()) == expected


@given(st.lists(st.integers(0, 6), max_size=23), st.lists(st.integers(0, 6), max_size=23))
def test_duplicates_follow_from_the_sums(old: list[int], new: list[int]) -> None:
    matched = sum(old.count(i) * new.count(i) for i in set(old) & set(new))
    only_old, only_new = sum(i not in new for i in old), sum(i not in old for i in new)
    expected = tuple(any(mine.count(i) > 1 and i in theirs for i in mine) for mine, theirs in ((old, new), (new, old)))
    assert duplicates(len(old), len(new), matched, only_old, only_new) == expected


@pytest.mark.parametrize("value", [ONLY_OLD, ONLY_NEW, CALIBRATION, OTHER_SPLIT])
def test_flags_do_not_run_into_outcomes(value: int) -> None:
    assert 7 <= value < 16
    assert not value & (CONTRADICTION | MISSING_OLD | MISSING_NEW)
