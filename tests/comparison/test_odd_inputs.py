"""Files as people really have them: other integer types, one class list of two, renamed classes, parts that differ."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, Predictions, compare, matrix, read_predictions
from flipguard.comparison.tables import compare_tables

NAMES = ("cat", "dog", "bird")


def scored(n: int = 211, seed: int = 3) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, n)
    logits = rng.normal(size=(n, 3))
    logits[np.arange(n), label] += 1.5
    return label, logits


@pytest.mark.parametrize("swap", [False, True])
def test_scores_keep_their_class_order_beside_a_file_of_names(swap: bool) -> None:
    """NEW names its classes in the rows only; OLD's columns follow its own list, not the alphabet."""
    label, logits = scored()
    names = np.array(NAMES)
    _, other = scored(seed=4)
    with_list = Predictions.from_arrays(label=label, logits=logits, classes=NAMES)
    named = Predictions.from_arrays(label=names[label], prediction=names[other.argmax(1)])
    both = Predictions.from_arrays(label=label, prediction=other.argmax(1), classes=NAMES)
    pair, truth = (with_list, named), (with_list, both)
    if swap:
        pair, truth = pair[::-1], truth[::-1]
    found, wanted = compare(*pair), compare(*truth)
    side = "new" if swap else "old"
    for field in (f"nll_{side}", f"ece_{side}", "negative_flip_rate", "churn"):
        assert getattr(found, field).value == pytest.approx(getattr(wanted, field).value, rel=1e-9)
    assert [flip.id for flip in found.worst_flips] == [flip.id for flip in wanted.worst_flips]


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint64, np.int8, np.int64])
@pytest.mark.parametrize("ids", ["text", "dense", "sparse"])
@pytest.mark.parametrize("logits", [False, True])
def test_any_integer_type_holds_a_class(kind: Any, ids: str, logits: bool) -> None:
    label, scores = scored(53)
    id_ = {"text": [f"s{i}" for i in range(53)], "dense": np.arange(53), "sparse": np.arange(53) * 10**9}[ids]
    extra = {"logits": scores} if logits else {}
    said = scores.argmax(1)
    narrow = {"id": id_, "label": label.astype(kind), "prediction": said.astype(kind), **extra}
    plain = {"id": id_, "label": label, "prediction": said, **extra}
    assert compare(narrow, plain).error_rate_old == compare(plain, plain).error_rate_old


def test_a_wide_label_is_not_cut_to_32_bits() -> None:
    label = [2**32 + 3, 1, 1, 1]
    old = {"id": [0, 1, 2, 3], "label": label, "prediction": [3, 1, 1, 1]}
    new = {"id": [0, 1, 2, 3], "label": label, "prediction": [1, 1, 1, 1]}
    found = compare(old, new)
    assert found.negative_flips == 0
    assert found.error_rate_old is not None
    assert found.error_rate_old.value == 0.25


def test_copies_of_the_old_model_speak_its_language() -> None:
    """Renamed classes, and indices without names, are read as the old file's: a copy equal to old never flips."""
    label, logits = scored(101)
    said = logits.argmax(1)
    old = Predictions.from_arrays(label=label, prediction=said, classes=NAMES)
    new = Predictions.from_arrays(label=(label + 1) % 3, prediction=(said + 1) % 3, classes=("bird", "feline", "dog"))
    options: dict[str, Any] = {"class_map": {"cat": "feline"}}
    unnamed = Predictions.from_arrays(label=label, prediction=said)
    back = np.arange(101)[::-1]
    turned = Predictions.from_arrays(id=back, label=label[back], prediction=said[back], classes=NAMES)
    for copy in (turned, unnamed):
        noise = compare(old, new, noise=[copy], **options).noise
        assert noise is not None
        assert noise.rates == [0.0]


def test_nan_in_a_copy_on_disk_is_refused(tmp_path: Path) -> None:
    label, logits = scored(11)
    old = Predictions.from_arrays(label=label, logits=logits)
    logits = logits.copy()
    logits[4, 1] = np.nan
    Predictions.from_arrays(label=label, logits=logits).write(tmp_path / "copy.parquet")
    with pytest.raises(InputError, match="id 4 hold NaN"):
        compare(old, old, noise=[tmp_path / "copy.parquet"])


def test_every_part_decides_how_a_column_is_read(tmp_path: Path) -> None:
    first = pa.table({"id": [0, 1, 2], "label": [0, 1, 1], "prediction": [0, 1, 1]})
    second = pa.table({"id": [3, 4], "label": pa.array([1.0, float("nan")]), "prediction": [1, 0]})
    pq.write_table(first, tmp_path / "a.parquet")
    pq.write_table(second, tmp_path / "b.parquet")
    whole = read_predictions(tmp_path)
    found = compare(whole, whole)
    assert (found.n, found.labelled) == (5, 4)


@pytest.mark.parametrize(("values", "sliced"), [(100, True), (101, False)])
def test_a_column_of_a_hundred_values_is_still_a_slice(values: int, sliced: bool) -> None:
    n = 1009
    rows = {"id": np.arange(n), "label": np.zeros(n, int), "prediction": np.zeros(n, int)}
    rows["city"] = np.array([f"city {i % values}" for i in range(n)])
    assert ("city" in compare(rows, rows).slices) == sliced


def test_clusters_that_are_all_alike_give_no_p_value() -> None:
    old = {"id": [0, 1], "label": [0, 0], "prediction": [0, 0], "video": ["a", "b"]}
    found = compare(old, {**old, "prediction": [1, 1]}, cluster="video")
    assert found.mcnemar_p is None
    assert any("take samples as independent" in note for note in found.notes)


@pytest.mark.parametrize(
    ("clusters", "labelled", "expected"),
    [
        (25, 25, "25 clusters widen the intervals of rates, differences and relative NFR; those"),
        (25, 0, "25 clusters widen the intervals of rates, differences and relative NFR; those"),
        (7, 7, "7 clusters widen the intervals of rates, differences and relative NFR, and so few say little"),
        (
            25,
            3,
            "3 clusters with labels, of 25, widen the intervals of rates, differences and relative NFR, and so few",
        ),
        (25, 1, "1 cluster with labels, of 25, cannot tell how clusters differ: intervals"),
        (1, 1, "1 cluster cannot tell how clusters differ: intervals"),
    ],
)
def test_how_many_clusters_there_are_is_said(clusters: int, labelled: int, expected: str) -> None:
    video = np.arange(100) % clusters
    label: list[int | None] = [0 if which < labelled else None for which in video.tolist()]
    old = {"id": np.arange(100), "label": label, "prediction": np.zeros(100, int), "video": video}
    new = {**old, "prediction": (np.arange(100) % 11 == 0).astype(int)}
    found = compare(old, new, cluster="video")
    assert any(note.startswith(expected) for note in found.notes), found.notes
    if labelled == 1:
        assert found.negative_flip_rate is not None
        assert (found.negative_flip_rate.low, found.negative_flip_rate.high) == (0, 1)
    if 0 < labelled < clusters:
        assert any(f"that of churn rests on all {clusters};" in note for note in found.notes), found.notes
        assert found.churn is not None
        assert 0 < found.churn.low < found.churn.high < 0.5


def test_the_confidence_may_be_in_percent() -> None:
    old = {"id": [0, 1, 2], "label": [0, 1, 1], "prediction": [0, 1, 0]}
    percent: Any = "90%"
    assert compare(old, old, confidence=percent) == compare(old, old, confidence=0.9)
    assert matrix([old, old], confidence=percent) == matrix([old, old], confidence=0.9)
    assert compare(old, old, confidence=np.float64(0.9)) == compare(old, old, confidence=0.9)
    assert compare(old, old, confidence=np.float32(0.9)).confidence == pytest.approx(0.9)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"the confidence must be a number such as 0\.95, or '95%', it is 'high'"):
        compare(old, old, confidence="high")  # type: ignore[arg-type]


def test_labels_that_were_overruled_are_counted() -> None:
    old = {"id": [0, 1, 2], "label": [0, 1, 1], "prediction": [0, 1, 0]}
    found = compare(old, {**old, "label": [0, 0, 0]}, labels="old")
    assert any(note.startswith("2 samples have other labels") for note in found.notes)


def test_labels_of_one_file_alone_hold_for_both_and_that_is_said(tmp_path: Path) -> None:
    new = {"id": [0, 1, 2], "label": [0, 1, 1], "prediction": [0, 1, 0]}
    bare = {"id": [2, 1, 0], "prediction": [1, 1, 1]}
    empty = pa.table(bare | {"label": pa.array([None] * 3, pa.int64())})
    for without in (bare, empty):
        found = compare(without, new)
        assert found.notes == ["old has no labels: those of new hold for both."]
        assert (found.labelled, found.negative_flips, found.positive_flips) == (3, 1, 1)
    assert compare(new, bare).notes == ["new has no labels: those of old hold for both."]
    paths = [tmp_path / "v1.parquet", tmp_path / "v2.parquet"]
    pq.write_table(empty, paths[0])
    pq.write_table(pa.table(new), paths[1])
    (note,) = compare(*paths).notes
    assert note == f"{paths[0]} has no labels: those of {paths[1]} hold for both."
    for without in (pl.DataFrame(bare), pl.from_arrow(empty)):
        found = compare_tables(without, pl.DataFrame(new))
        assert found.notes == ["old has no labels: those of new hold for both."]


def test_labels_of_one_version_alone_are_said_to_hold_in_a_matrix() -> None:
    new = {"id": [0, 1, 2], "label": [0, 1, 1], "prediction": [0, 1, 0]}
    bare = {"id": [2, 1, 0], "prediction": [1, 1, 1]}
    assert matrix([bare, new, new]).notes == [
        "version 1 has no labels: those of version 2 hold for both.",
        "version 1 has no labels: those of version 3 hold for both.",
    ]
    other = {**new, "label": [0, 0, 0]}
    assert matrix([new, other], labels="old").notes == [
        "2 samples have other labels in version 2: those of version 1 hold."
    ]


def test_no_note_on_labels_that_both_files_have_none_has_or_that_were_asked_for() -> None:
    new = {"id": [0, 1, 2], "label": [0, 1, 1], "prediction": [0, 1, 0]}
    bare = {"id": [2, 1, 0], "prediction": [1, 1, 1]}
    half = pa.table(bare | {"label": pa.array([1, None, None], pa.int64())})
    corrected = pd.DataFrame({"id": [0, 1, 2], "label": [0, 0, 0]})
    assert compare(new, {**new}).notes == []
    assert compare(half, new).notes == []
    assert compare(bare, {**bare}).notes == ["3 samples have no label: only churn counts them."]
    assert compare(bare, new, labels="new").notes == []
    assert compare(bare, new, labels=corrected).notes == []
    assert compare_tables(pl.DataFrame(bare), pl.DataFrame(new), labels="new").notes == []


def test_a_name_that_nothing_else_knows_is_noted() -> None:
    old = {"id": [0, 1], "label": ["cat", "dog"], "prediction": ["cat", "dog"]}
    found = compare(old, {**old, "prediction": ["caat", "dog"]})
    assert any("'caat'" in note for note in found.notes)


def test_spark_keeps_its_own_files_in_a_folder(tmp_path: Path) -> None:
    table = pa.table({"id": [0, 1], "label": [0, 1], "prediction": [0, 1]})
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    pq.write_table(table, tmp_path / "part-0.parquet")
    pq.write_table(table, tmp_path / "_temporary" / "0" / "part-1.parquet")
    assert read_predictions(tmp_path).rows == 2


def test_csv_is_not_written_under_another_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Name the file x\.parquet"):
        Predictions.from_arrays(label=[0], prediction=[0]).write(tmp_path / "x.csv")


def test_lines_that_end_differently_are_lines(tmp_path: Path) -> None:
    """A header typed in by hand above rows from another system."""
    (tmp_path / "mixed.csv").write_bytes(b"id,label,prediction\na,x,x\r\nb,y,x\r\n")
    assert read_predictions(tmp_path / "mixed.csv").table(["label"])["label"].to_pylist() == ["x", "y"]


def test_the_noise_excess_is_not_judged_on_clustered_samples() -> None:
    old = {"id": [0, 1], "label": [0, 0], "prediction": [0, 0], "video": ["a", "b"]}
    with pytest.raises(InputError, match="--max-noise-excess takes samples as independent"):
        compare(old, old, noise=[{**old, "prediction": [0, 1]}], cluster="video", gate={"max_noise_excess": 0.1})
