"""Predictions in memory and on disk: facts, scores, writing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, read_predictions
from flipguard.predictions import Predictions


def example(**changes: Any) -> Predictions:
    columns: dict[str, Any] = {
        "id": ["a", "b", "c"],
        "label": [0, 1, None],
        "logits": np.array([[1, 2], [3, 4], [5, 6]], np.float16),
        "weight": [1.0, 0.5, 2.0],
        "split": ["test", "test", "validation"],
        "features": np.ones((3, 5), np.float32),
        "slices": {"country": ["de", None, "at"]},
        "classes": ["cat", "dog"],
        "model": "resnet",
        "version": "v7",
        "metadata": {"seed": 3, "note": "ünï"},
    }
    return Predictions.from_arrays(**{**columns, **changes})


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = example()
    path = tmp_path / "deep" / "folder" / "x.parquet"
    returned = written.write(path)
    found = read_predictions(path)
    assert found.table().equals(written.table())
    assert found.classes == ("cat", "dog")
    assert (found.model, found.version) == ("resnet", "v7")
    assert found.metadata == {"seed": 3, "note": "ünï"}
    assert found.fingerprint == returned.fingerprint == written.data_fingerprint() == found.data_fingerprint()
    assert found.slices == ("country",)
    assert found.scores == "logits"
    assert (found.class_count, found.score_width, found.rows) == (2, 2, 3)
    assert [p.name for p in path.parent.iterdir()] == ["x.parquet"]
    assert read_predictions(path).write(tmp_path / "again.parquet").fingerprint == found.fingerprint


def test_the_facts_are_json_in_the_footer(tmp_path: Path) -> None:
    example().write(tmp_path / "x.parquet")
    stored = json.loads(pq.read_schema(tmp_path / "x.parquet").metadata[b"flipguard"])
    assert stored["classes"] == ["cat", "dog"]
    assert stored["format"] == 1


def test_a_fingerprint_in_a_part_is_not_that_of_the_whole(tmp_path: Path) -> None:
    for i in range(2):
        example(id=[f"{i}{c}" for c in "abc"]).write(tmp_path / f"{i}.parquet")
    found = read_predictions(tmp_path)
    assert found.fingerprint is None
    assert found.classes == ("cat", "dog")
    assert found.data_fingerprint().startswith("fg1-6-")


@pytest.mark.parametrize("place", ["a folder.parquet", "under a file"])
def test_nothing_half_written_is_left(tmp_path: Path, place: str) -> None:
    (tmp_path / "a folder.parquet").mkdir()
    (tmp_path / "file").write_text("keep me")
    target = tmp_path / "a folder.parquet" if place == "a folder.parquet" else tmp_path / "file" / "x.parquet"
    with pytest.raises(InputError, match="cannot be written") as caught:
        example().write(target)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a folder.parquet", "file"]
    assert (tmp_path / "file").read_text() == "keep me"


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    example().write(path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="outside the 1 classes"):
        example(classes=["cat"]).write(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.parquet"]


def test_the_width_of_scores_is_that_of_the_first_row_that_has_any() -> None:
    lists = pa.array([None, [1.0, 2.0, 3.0]], pa.list_(pa.float32()))
    assert Predictions.from_arrays(logits=lists).score_width == 3
    with pytest.raises(InputError, match="every row of its column 'logits' is missing"):
        _ = Predictions.from_arrays(logits=pa.array([None, None], pa.list_(pa.float32()))).score_width
    with pytest.raises(InputError, match="neither logits nor probabilities"):
        _ = Predictions.from_arrays(prediction=[1]).score_width


def test_batches_hold_all_rows_in_order(tmp_path: Path) -> None:
    memory = Predictions.from_arrays(id=np.arange(101), prediction=np.arange(101) % 7)
    memory.write(tmp_path / "x.parquet")
    for source in (memory, read_predictions(tmp_path / "x.parquet")):
        batches = list(source.batches(["prediction", "id"], size=13))
        assert [b.num_rows for b in batches] == [13] * 7 + [10]
        assert np.concatenate([b.column(1).to_numpy() for b in batches]).tolist() == list(range(101))
