"""Tables that are counted where they lie give what their files give, and say what is wrong with them."""

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from flipguard import compare
from flipguard.comparison.spark import master
from flipguard.comparison.tables import compare_tables
from flipguard.types import InputError

N, C = 509, 7
OPTIONS: dict[str, Any] = {"by": ["country"], "on_missing": "drop", "gate": {"max_nfr": 0.2, "max_slice_nfr": 0.5}}


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def logs(*, text: bool = False) -> tuple[pa.Table, pa.Table]:
    """Two logs in other orders with gaps, ids in one only, weights and slices."""
    random = np.random.default_rng(3)
    label = random.integers(0, C, N)
    found = []
    for i in range(2):
        said = np.where(random.random(N) < 0.2, random.integers(0, C, N), label)
        value = (lambda codes: np.array([f"class {c}" for c in codes])) if text else (lambda codes: codes)
        columns = {
            "id": pa.array(np.arange(N) + 3 * i),
            "label": pa.array(value(np.roll(label, -3 * i)), mask=random.random(N) < 0.03 if i else None),
            "prediction": pa.array(value(np.roll(said, -3 * i)), mask=random.random(N) < 0.05),
            "country": pa.array([("de", "at", None)[k % 3] for k in range(N)]),
            "customer": pa.array(np.arange(N) // 5),
        }
        if i:
            columns["weight"] = pa.array(random.integers(1, 5, N).astype(float))
            columns["split"] = pa.array(["validation" if k % 10 == 0 else "test" for k in range(N)])
        found.append(pa.table(columns).take(random.permutation(N)))
    return found[0], found[1]


def comparable(comparison: Any) -> dict[str, Any]:
    """Everything but single flips, which tables do not name, and the notes on slices that were not asked for."""
    return {k: v for k, v in json.loads(comparison.to_json()).items() if k not in ("worst_flips", "notes")}


def assert_alike(found: Any, expected: Any) -> None:
    """Equal but for the last bits of floats: groups come in another order, and so do sums over clusters."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_alike(found[name], expected[name])
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_alike(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    else:
        assert found == expected


@pytest.mark.parametrize("text", [False, True], ids=["codes", "names"])
@pytest.mark.parametrize(
    "further", [{}, {"labels": "new"}, {"split": "test"}, {"cluster": "customer"}, {"cost_ratio": 3.0}], ids=str
)
def test_tables_give_what_files_give(
    connection: duckdb.DuckDBPyConnection, further: dict[str, Any], text: bool
) -> None:
    old, new = logs(text=text)
    expected = compare(old, new, **OPTIONS, **further)
    relations = [connection.from_arrow(table) for table in (old, new)]
    found = compare_tables(*relations, **OPTIONS, **further)
    assert_alike(comparable(found), comparable(expected))
    assert set(found.notes) == set(expected.notes)
    assert found.negative_flips > 20
    on_polars = compare_tables(*(pl.from_arrow(table).lazy() for table in (old, new)), **OPTIONS, **further)
    assert_alike(comparable(on_polars), comparable(expected))


def changed(side: int, **columns: Any) -> tuple[pa.Table, pa.Table]:
    """Logs of five rows, in one of which columns are replaced; None takes one away."""
    rows: dict[str, Any] = {"id": [1, 2, 3, 4, 5], "label": [0, 1, 0, 1, 0], "prediction": [0, 1, 1, 1, 0]}
    other = {name: value for name, value in {**rows, **columns}.items() if value is not None}
    tables = [pa.table(rows), pa.table(rows)]
    tables[side] = pa.table(other)
    return tables[0], tables[1]


BAD: list[tuple[tuple[pa.Table, pa.Table], dict[str, Any], str]] = [
    (changed(1, id=[1, 2, 3, 4, 9]), {}, r"1 only in old \(first: 5\), 1 only in new \(first: 9\).*drop.*the 4 shared"),
    (changed(1, id=[1, 2, 3, 4, 4]), {"on_missing": "drop"}, "new has duplicate ids"),
    (changed(0, id=[1, 1, 3, 4, 5]), {"on_missing": "drop"}, "old has duplicate ids"),
    (changed(1, id=[6, 7, 8, 9, 10]), {}, r"share no id \(first: 1 and 6\)"),
    (changed(1, id=[1, 2, 3, 4, None]), {}, "1 rows have no id"),
    (changed(1, label=[0, 1, 1, 1, 0]), {}, r"disagree on 1 labels \(first: id 3\)"),
    (changed(1, weight=[1.0, 1.0, -1.0, 1.0, 1.0]), {}, "one is negative or not finite"),
    (changed(1, weight=[1.0, 1.0, float("nan"), 1.0, 1.0]), {}, "one is negative or not finite"),
    (changed(1, prediction=None), {}, "has neither 'prediction' nor"),
    (changed(1, prediction=["a", "b", "b", "b", "a"]), {}, "names in new.prediction and numbers elsewhere"),
    (changed(1, prediction=[0.0, 1.0, 1.0, 1.0, 0.0]), {}, "must hold whole numbers or names"),
    (changed(1, prediction=None, logits=[[0.0, 1.0]] * 5), {}, "scores are not read"),
    (changed(1), {"by": ["country"]}, "neither table has a column 'country'"),
    (changed(1), {"split": "test"}, "--split needs a column 'split'"),
    (changed(1, label=None), {"labels": "new"}, "--labels new: new has no column 'label'"),
    (changed(1), {"labels": "file.csv"}, "labels must be agree, old or new"),
]


@pytest.mark.parametrize(("tables", "options", "message"), BAD, ids=[message for *_, message in BAD])
def test_what_is_wrong_with_a_table_is_said(
    connection: duckdb.DuckDBPyConnection, tables: tuple[pa.Table, pa.Table], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compare_tables(*(connection.from_arrow(table) for table in tables), **options)


def test_ids_that_are_text_in_one_table_are_matched_as_text(connection: duckdb.DuckDBPyConnection) -> None:
    tables = changed(1, id=["1", "2", "3", "4", "5"])
    assert compare_tables(*(connection.from_arrow(table) for table in tables)).n == 5


@pytest.mark.parametrize("url", ["head:7077", "spark://", "s3://bucket"])
def test_what_names_no_spark_is_said(url: str) -> None:
    with pytest.raises(InputError, match="a Spark is named as"):
        master(url)
