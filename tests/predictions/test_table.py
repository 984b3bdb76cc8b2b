"""Predictions in memory and on disk: facts, scores, writing."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, read_predictions
from flipguard.files import EMPTY_SEAL
from flipguard.predictions import Predictions
from flipguard.types import DamagedFile


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


def test_every_flipped_bit_is_found_and_the_file_named(tmp_path: Path) -> None:
    """A bit of every byte; only in the text of the seal itself may one be overlooked, and then nothing is lost."""
    path = tmp_path / "p.parquet"
    rows = Predictions.from_arrays(id=[2, 3, 5], label=[0, 1, 1], prediction=[0, 1, 0])
    rows.write(path)
    whole = path.read_bytes()
    text = range((start := whole.index(b"sha256:")), start + len(EMPTY_SEAL))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        if place in text:
            with suppress(DamagedFile):
                assert read_predictions(path).table().equals(rows.table())
            continue
        with pytest.raises(DamagedFile) as caught:
            read_predictions(path)
        assert caught.value.path == path
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_another_program_makes_of_a_file_is_no_damage(tmp_path: Path) -> None:
    """It carries our metadata on; the checksum was for the bytes that it read."""
    Predictions.from_arrays(id=[2, 3, 5], label=[0, 1, 1], prediction=[0, 1, 0]).write(tmp_path / "p.parquet")
    pq.write_table(pq.read_table(tmp_path / "p.parquet").slice(0, 2), tmp_path / "q.parquet")
    assert read_predictions(tmp_path / "q.parquet").rows == 2
    with pytest.raises(DamagedFile, match=r"r\.parquet"):
        read_predictions(_with_broken_pages(tmp_path / "q.parquet", tmp_path / "r.parquet")).table()
    with pytest.raises(DamagedFile, match=r"r\.parquet"):
        list(read_predictions(tmp_path / "r.parquet").batches(["id"], size=7))


def _with_broken_pages(path: Path, out: Path) -> Path:
    """A copy whose footer can be read and whose rows cannot."""
    out.write_bytes(b"PAR1" + b"\xff" * 40 + path.read_bytes()[44:])
    return out


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
