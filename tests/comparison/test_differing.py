"""Columns that both files have, with other values for the same sample: the new file's hold, and that is said."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from flipguard import compare, read_predictions
from flipguard.comparison.tables import compare_tables

ROWS = 53
PLACES = np.array(["de", "fr", "us"])[np.arange(ROWS) % 3]


def pair(**columns: tuple[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two models on the same samples, and further columns with the old file's values and the new one's."""
    plain = {"id": [f"s{i:02}" for i in range(ROWS)], "label": np.arange(ROWS) % 5}
    old = {**plain, "prediction": np.arange(ROWS) % 7 % 5}
    new = {**plain, "prediction": np.arange(ROWS) % 11 % 5}
    return (
        {**old, **{name: values[0] for name, values in columns.items()}},
        {**new, **{name: values[1] for name, values in columns.items()}},
    )


def told(result: Any) -> list[str]:
    return [note for note in result.notes if "differs between the files" in note]


def note(column: str, number: str) -> str:
    return f"{column} differs between the files in {number}: the new file's value is used."


@pytest.mark.parametrize("way", ["memory", "shuffled", "parquet", "scores"])
def test_slices_that_differ_are_counted(way: str, naive: Any, tmp_path: Path) -> None:
    moved = np.where(np.arange(ROWS) < 13, "gb", PLACES)
    sources: list[Any] = list(pair(country=(PLACES, moved), year=(np.arange(ROWS) % 2, np.arange(ROWS) % 2)))
    if way == "scores":
        for source in sources:
            source["logits"] = np.eye(5)[source["prediction"]]
    if way == "shuffled":
        sources[1] = naive.shuffled(sources[1], np.random.default_rng(3).permutation(ROWS))
    if way == "parquet":
        sources = [read_predictions(s).write(tmp_path / f"{i}.parquet").name for i, s in enumerate(sources)]
    result = compare(*sources)
    assert told(result) == [note("country", "13 rows")]
    assert {group.value for group in result.slices["country"]} == {"de", "fr", "us", "gb"}
    assert told(compare(*sources, by=["year"])) == []
    assert told(compare(*sources, by=["country", "year"])) == [note("country", "13 rows")]


def test_clusters_and_splits_that_differ_are_counted() -> None:
    videos = np.arange(ROWS) // 5
    split = np.where(np.arange(ROWS) % 2, "test", "train")
    moved = np.where(np.arange(ROWS) == 7, "train", split)
    old, new = pair(video=(videos, np.where(videos < 1, 99, videos)), split=(split, moved))
    assert told(compare(old, new, cluster="video", by=[])) == [note("split", "1 row"), note("video", "5 rows")]
    assert told(compare(old, new, by=[], split="test")) == [note("split", "1 row")]


def test_a_value_that_only_one_file_has_does_not_differ() -> None:
    gaps: list[Any] = [None if i % 2 else place for i, place in enumerate(PLACES.tolist())]
    assert told(compare(*pair(country=(PLACES, gaps)))) == []
    old, new = pair(country=(PLACES, PLACES[::-1]))
    assert told(compare(old, {name: column for name, column in new.items() if name != "country"})) == []


def test_tables_of_another_engine_tell_it_too() -> None:
    old, new = (pa.table(side) for side in pair(country=(PLACES, np.where(PLACES == "de", "gb", PLACES))))
    with duckdb.connect() as connection:
        tables = [connection.from_arrow(side) for side in (old, new)]
        assert told(compare_tables(*tables, by=["country"])) == [note("country", "18 rows")]
        assert told(compare_tables(*tables)) == []
