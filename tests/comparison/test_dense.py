"""Counting by address gives the counts of the expression, or leaves the work to it."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.comparison.counted import Counted
from flipguard.comparison.dense import dense_counts
from flipguard.comparison.engine import count, engine
from flipguard.comparison.options import Options
from flipguard.comparison.prepare import prepare
from flipguard.predictions import Predictions


def both_ways(
    old: Predictions, new: Predictions, *, batch: int = 1 << 18, **options: Any
) -> tuple[Counted | None, Counted]:
    """The counts by address, and by the expression on DuckDB."""
    with engine() as connection:
        prepared = prepare(connection, old, new, Options(**options))
        plan, vocabulary = prepared.sources.plan, prepared.vocabulary
        by_address = dense_counts(old, new, plan, vocabulary, batch=batch)
        return by_address, count(prepared.sources, old, new, on_missing="error", vocabulary=vocabulary)


def cells(counted: Counted) -> dict[tuple[int, ...], int]:
    columns = (counted.outcome, counted.label, counted.missing_old, counted.missing_new)
    found: dict[tuple[int, ...], int] = {}
    for *key, number in zip(*(c.tolist() for c in columns), counted.count.tolist(), strict=True):
        found[tuple(key)] = found.get(tuple(key), 0) + number
    return found


def examples(counted: Counted) -> dict[int, int]:
    """The smallest negative flip of each label."""
    found: dict[int, int] = {}
    rows = zip(counted.outcome.tolist(), counted.label.tolist(), counted.example.to_pylist(), strict=True)
    for outcome, label, example in rows:
        if outcome == 1:
            found[label] = min(example, found.get(label, example))
    return found


def file(ids: Any, label: Any, prediction: Any) -> Predictions:
    def column(values: Any) -> pa.Array:
        return pa.array([None if v is None or v < 0 else int(v) for v in values], pa.int16())

    return Predictions.from_table(
        pa.table({"id": pa.array(ids, pa.int64()), "label": column(label), "prediction": column(prediction)})
    )


rows = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4), st.integers(-1, 4)), min_size=1, max_size=37)


@settings(max_examples=60, deadline=None)
@given(rows=rows, low=st.integers(-50, 50), gap=st.integers(1, 3), seed=st.integers(0, 99))
@pytest.mark.parametrize("labels", ["agree", "old", "new"])
def test_equals_the_expression(labels: str, rows: list[tuple[int, int, int]], low: int, gap: int, seed: int) -> None:
    label, old, new = (np.array(column) for column in zip(*rows, strict=True))
    ids = low + gap * np.arange(len(rows))
    order = np.random.default_rng(seed).permutation(len(rows))
    by_address, by_join = both_ways(file(ids, label, old), file(ids[order], label[order], new[order]), labels=labels)
    assert by_address is not None
    assert cells(by_address) == cells(by_join)
    assert examples(by_address) == examples(by_join)
    said = dict(zip(ids.tolist(), new.tolist(), strict=True))
    assert by_address.said == {id_: said[id_] for id_ in examples(by_join).values()}


def test_labels_of_one_file_fill_in_for_the_other() -> None:
    old = file([0, 1, 2], [-1, 1, 2], [0, 1, 2])
    new = file([2, 1, 0], [-1, 1, 0], [2, 0, 1])
    by_address, by_join = both_ways(old, new)
    assert by_address is not None
    assert cells(by_address) == cells(by_join) == {(1, 0, 0, 0): 1, (1, 1, 0, 0): 1, (0, 2, 0, 0): 1}


ODD = {
    "an id twice in old": ([0, 0, 2], [0, 1, 2], [1, 1, 1]),
    "an id twice in new": ([0, 1, 2], [0, 1, 1], [1, 1, 1]),
    "an id in one file only": ([0, 1, 2], [0, 1, 3], [1, 1, 1]),
    "labels that contradict": ([0, 1, 2], [0, 1, 2], [1, 2, 1]),
    "sparse ids": ([0, 1, 10**9], [0, 1, 10**9], [1, 1, 1]),
}


@pytest.mark.parametrize("what", ODD)
def test_leaves_the_odd_to_the_expression(what: str) -> None:
    old_ids, new_ids, new_label = ODD[what]
    old, new = file(old_ids, [1, 1, 1], [1, 0, 1]), file(new_ids, new_label, [1, 1, 0])
    with engine() as connection:
        prepared = prepare(connection, old, new, Options())
        assert dense_counts(old, new, prepared.sources.plan, prepared.vocabulary) is None


def test_several_batches_and_parquet(tmp_path: Any) -> None:
    rng = np.random.default_rng(7)
    n = 1009
    ids, label = np.arange(n), rng.integers(0, 11, n)
    old_says, new_says = (np.where(rng.random(n) < 0.3, rng.integers(0, 11, n), label) for _ in range(2))
    order = rng.permutation(n)
    old = file(ids, label, old_says).write(tmp_path / "old.parquet")
    new = file(ids[order], label[order], new_says[order]).write(tmp_path / "new.parquet")
    by_address, by_join = both_ways(old, new, batch=97)
    assert by_address is not None
    assert cells(by_address) == cells(by_join)
    assert examples(by_address) == examples(by_join)
