"""The file of changed predictions: complete, right, and never half written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, compare

CHANGED = {"negative_flip", "positive_flip", "both_wrong_different", "unlabelled_different"}


def read(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
        return found
    if path.suffix == ".jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        return [json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is no JSON")) for line in lines]
    frame = pd.read_csv(path, dtype={"label": str, "old": str, "new": str})
    return [{k: None if pd.isna(v) else v for k, v in row.items()} for row in frame.to_dict("records")]


def example(rows: int = 101) -> tuple[dict[str, Any], dict[str, Any]]:
    random = np.random.default_rng(0)
    label = [None if i % 11 == 0 else int(c) for i, c in enumerate(random.integers(0, 3, rows))]
    country = [("de", "at", None)[i % 3] for i in range(rows)]
    said = [[None if v == 3 else int(v) for v in random.integers(0, 4, rows)] for _ in range(2)]
    base = {"id": list(range(rows)), "label": label}
    split = ["validation" if i % 13 == 0 else "test" for i in range(rows)]
    return {**base, "prediction": said[0], "country": country}, {**base, "prediction": said[1], "split": split}


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("names", [None, ["x", "y", "z"]])
def test_every_changed_row_is_there(naive: Any, tmp_path: Path, suffix: str, names: list[str] | None) -> None:
    old, new = ({**c, **({"classes": names} if names else {})} for c in example())
    path = tmp_path / f"flips.{suffix}"
    compare(old, naive.shuffled(new, np.random.default_rng(1).permutation(101)), flips=path)
    rows = [row for row in naive.rows(old, new) if row["outcome"] in CHANGED]
    fields = ("id", "label", "old", "new", "outcome", "country")
    expected = sorted(([row[f] for f in fields] for row in rows), key=lambda row: row[0])
    assert [[row[f] for f in fields] for row in read(path)] == expected
    assert {row["outcome"] for row in rows} == CHANGED
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
@pytest.mark.parametrize("order", ["aligned", "shuffled"])
def test_scores_stand_beside_the_flips(naive: Any, tmp_path: Path, suffix: str, order: str) -> None:
    old, new = naive.scored_pair()
    path = tmp_path / f"flips.{suffix}"
    second = naive.shuffled(new, np.random.default_rng(1).permutation(101)) if order == "shuffled" else new
    compare(old, second, flips=path)
    found = {row["id"]: row for row in read(path)}
    changed = np.flatnonzero(old["logits"].argmax(1) != new["logits"].argmax(1))
    assert found.keys() == set(old["id"][changed].tolist())
    for i in changed:
        row, z = found[old["id"][i]], old["logits"][i].astype(float)
        assert row["old_confidence"] == pytest.approx((np.exp(z) / np.exp(z).sum()).max(), rel=1e-4)
        assert row["displacement"] == pytest.approx(np.linalg.norm(z - new["logits"][i]), rel=1e-4)
        rank = 1 + int((z > z[new["logits"][i].argmax()]).sum())
        assert row["rank"] == (rank if row["outcome"] == "negative_flip" else None)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_scores_that_are_not_known_are_missing(naive: Any, tmp_path: Path, suffix: str) -> None:
    """Only the new file has logits, and not for every row."""
    old, new = naive.scored_pair()
    said = new["logits"].argmax(1)
    logits = [row.tolist() if i % 3 else None for i, row in enumerate(new["logits"])]
    first = {"id": old["id"], "label": old["label"], "prediction": old["logits"].argmax(1)}
    path = tmp_path / f"flips.{suffix}"
    compare(first, {**new, "prediction": said, "logits": logits}, flips=path)
    found = read(path)
    place = {int(id_): i for i, id_ in enumerate(old["id"])}
    assert len(found) == int((first["prediction"] != said).sum())
    for row in found:
        assert row["old_confidence"] is None
        assert row["displacement"] is None
        assert (row["new_confidence"] is None) == (place[row["id"]] % 3 == 0)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_columns_of_any_name_and_type(tmp_path: Path, suffix: str) -> None:
    base = {"id": [1, 2, 3], "label": [0, 0, 0]}
    more = {
        "old": ["a", "b", "c"],
        "rank": [7, 8, 9],
        'x"; DROP TABLE old_rows': ["p", "q", "r"],
        "Outcome": ["u", "v", "w"],
        "day": pa.array(np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]")),
    }
    path = tmp_path / f"flips.{suffix}"
    logits = np.array([[1, 2], [1, 2], [2, 1]], np.float32)
    result = compare({**base, "prediction": [0, 0, 0], **more}, {**base, "logits": logits}, flips=path)
    assert set(result.slices) == set(more)
    found = read(path)
    assert [row["id"] for row in found] == [1, 2]
    assert [row["old"] for row in found] == ["0", "0"]
    assert [row["slice_old"] for row in found] == ["a", "b"]
    assert [row["slice_rank"] for row in found] == [7, 8]
    assert [row['x"; DROP TABLE old_rows'] for row in found] == ["p", "q"]
    assert [row["Outcome"] for row in found] == ["u", "v"]
    assert [str(row["day"])[:10] for row in found] == ["2024-01-01", "2024-01-02"]


def test_no_changes_make_a_file_without_rows(tmp_path: Path) -> None:
    old, _ = example()
    for suffix in ("csv", "parquet", "jsonl"):
        compare(old, old, flips=tmp_path / f"f.{suffix}")
        assert read(tmp_path / f"f.{suffix}") == []


@pytest.mark.parametrize("place", ["missing/f.csv", "folder.csv", "file/f.jsonl", "f.xlsx", "f"])
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file").write_text("keep me")
    with pytest.raises(InputError, match=r"cannot be written|by the file's ending") as caught:
        compare(*example(), flips=tmp_path / place)
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.csv"]
