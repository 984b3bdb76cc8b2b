"""Counting, against a loop over dicts, on random files."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard import InputError, compare, read_predictions
from flipguard.predictions import Predictions

NAMES = ["ant", "bee", "cat", "dog", "elk"]
Columns = dict[str, Any]


@st.composite
def sides(draw: st.DrawFn) -> tuple[Columns, Columns]:
    """Two files of the same samples that differ in order, in the type of ids, and in how classes are written."""
    rows = draw(st.integers(1, 23))
    known = draw(st.integers(1, len(NAMES)))
    label = draw(st.lists(st.sampled_from([*NAMES, None]), min_size=rows, max_size=rows))
    pair = []
    for classes in (draw(st.permutations(NAMES[:known])), draw(st.permutations(NAMES))):
        said = draw(st.lists(st.sampled_from([*classes, None]), min_size=rows, max_size=rows))
        order = draw(st.permutations(range(rows)))
        indexed = draw(st.booleans())
        # A label that this model does not know has no index in its list.
        written = [None if name not in classes else name for name in label] if indexed else label
        columns: Columns = {"id": list(range(rows)), "prediction": said}
        if draw(st.booleans()):
            columns["label"] = written
        if indexed:
            for column in {"label", "prediction"} & columns.keys():
                columns[column] = pa.array(
                    [None if v is None else classes.index(v) for v in columns[column]], pa.int16()
                ).to_pylist()
        if draw(st.booleans()):
            columns["id"] = [str(i) for i in columns["id"]]
        if draw(st.booleans()):
            columns["weight"] = draw(st.lists(st.integers(0, 9), min_size=rows, max_size=rows))
        for name, values in (("country", ["de", "at", None]), ("year", [2023, 2024]), ("mobile", [True, False, None])):
            if draw(st.booleans()):
                columns[name] = draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))
        if draw(st.booleans()):
            columns["split"] = draw(st.lists(st.sampled_from(["test", None]), min_size=rows, max_size=rows))
        columns = {name: [values[i] for i in order] for name, values in columns.items()}
        pair.append({**columns, "classes": list(classes)})
    return pair[0], pair[1]


TYPES = {"weight": pa.float64(), "country": pa.string(), "year": pa.int32(), "mobile": pa.bool_(), "split": pa.string()}


def arrow(columns: Columns) -> pa.Table:
    """With types that do not depend on whether all values happen to be missing."""
    indexed = any(isinstance(v, int) for name in ("label", "prediction") for v in columns.get(name, ()))
    kind = pa.int16() if indexed else pa.string()
    types = {**TYPES, "label": kind, "prediction": kind}
    return pa.table({n: pa.array(v, types.get(n)) for n, v in columns.items() if n != "classes"})


def stored(columns: Columns, folder: Path, name: str, *, parts: int) -> Predictions:
    """In memory (no parts), in one Parquet file, or in several."""
    table = arrow(columns)
    whole = Predictions.from_table(table, classes=columns["classes"], name=name)
    if not parts or table.num_rows < parts:
        return whole
    target = folder / name
    target.mkdir()
    bounds = np.linspace(0, table.num_rows, parts + 1).astype(int)
    for start, stop in pairwise(bounds):
        part = Predictions.from_table(table.slice(start, stop - start), classes=columns["classes"])
        part.write(target / f"{start}.parquet")
    return read_predictions(target)


@settings(max_examples=60, deadline=None)
@given(pair=sides(), parts=st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_random_files_count_as_a_loop_does(
    pair: tuple[Columns, Columns], parts: tuple[int, int], naive: Any, tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("files")
    old, new = (stored(c, folder, n, parts=p) for c, n, p in zip(pair, ("old", "new"), parts, strict=True))
    rows = naive.rows(*pair)
    result = compare(old, new)
    assert naive.counts_of(result) == naive.counts(rows)

    for group in result.classes:
        assert naive.counts_of(group) == naive.counts([r for r in rows if r["label"] == group.value])
    assert sum(group.n for group in result.classes) == result.labelled
    for column, groups in result.slices.items():
        assert sum(group.n for group in groups) == result.n
        for group in groups:
            own = [r for r in rows if (None if r.get(column) is None else str(r[column])) == group.value]
            assert naive.counts_of(group) == naive.counts(own), (column, group.value)
    assert set(result.slices) == {"country", "year", "mobile"} & (pair[0].keys() | pair[1].keys())

    if result.labelled:
        assert result.negative_flip_rate is not None
        change = float(result.error_rate_new) - float(result.error_rate_old)
        assert float(result.negative_flip_rate) - float(result.positive_flip_rate) == pytest.approx(change, abs=1e-12)
    if result.labelled == result.n:
        assert float(result.churn) <= float(result.churn_bound) + 1e-12

    weights = [float(r.get("weight", 0)) for r in rows if r["label"] is not None]
    if "weight" in pair[0] or "weight" in pair[1]:
        flipped = [float(r["weight"]) for r in rows if r["outcome"] == "negative_flip"]
        if sum(weights):
            assert float(result.weighted_negative_flip_rate) == pytest.approx(sum(flipped) / sum(weights))
        else:
            assert result.weighted_negative_flip_rate is None
    if result.old_classes is not None:
        own = [r for r in rows if r["label"] in pair[0]["classes"]]
        assert naive.counts_of(result.old_classes) == naive.counts(own)
    else:
        assert set(pair[0]["classes"]) == set(NAMES) or not any(r["label"] in pair[0]["classes"] for r in rows)


@settings(max_examples=25, deadline=None)
@given(pair=sides())
def test_swapping_the_files_swaps_the_flips(pair: tuple[Columns, Columns], naive: Any) -> None:
    one, other = (Predictions.from_table(arrow(c), classes=c["classes"]) for c in pair)
    there, back = compare(one, other, by=[]), compare(other, one, by=[])
    assert (there.negative_flips, there.positive_flips) == (back.positive_flips, back.negative_flips)
    assert (there.missing_old, there.missing_new) == (back.missing_new, back.missing_old)
    assert there.churn == back.churn
    assert there.error_rate_old == back.error_rate_new
    assert there.mcnemar_p == back.mcnemar_p


def plain(rows: int = 53, seed: int = 3, classes: int = 3, missing: float = 0.0) -> Columns:
    random = np.random.default_rng(seed)
    said = [None if random.random() < missing else int(random.integers(classes)) for _ in range(rows)]
    label = np.random.default_rng(1).integers(0, classes, rows).tolist()
    return {"id": list(range(rows)), "label": label, "prediction": said}


def test_missing_predictions_count_as_wrong_and_are_said(naive: Any) -> None:
    old, new = plain(seed=3, missing=0.2), plain(seed=4, missing=0.3)
    result = compare(old, new)
    assert naive.counts_of(result) == naive.counts(naive.rows(old, new))
    assert result.missing_old > 0
    assert result.missing_new > 0
    assert f"{result.missing_old:,} samples have no prediction of the old model: they count as wrong." in result.notes


@pytest.mark.parametrize("labels", ["old", "new"])
def test_one_file_overrules_the_labels_of_the_other(labels: str, naive: Any) -> None:
    old, new = plain(seed=3), plain(seed=4)
    new["label"] = [(label + 1) % 3 if i % 5 == 0 else label for i, label in enumerate(new["label"])]
    new["label"][7] = None
    old["label"][11] = None
    result = compare(old, new, labels=labels)
    assert naive.counts_of(result) == naive.counts(naive.rows(old, new, labels=labels))
    with pytest.raises(InputError, match=r"disagree on 11 labels.*--labels old"):
        compare(old, new)


@pytest.mark.parametrize("ids", [int, str])
@pytest.mark.parametrize("names", [None, ["x", "y", "z"]])
def test_a_file_of_labels_overrules_both(naive: Any, tmp_path: Path, ids: type, names: list[str] | None) -> None:
    old, new = ({**plain(seed=s), **({"classes": names} if names else {})} for s in (3, 4))
    new["label"] = [(label + 1) % 3 for label in new["label"]]
    corrected = {"id": [ids(i) for i in range(0, 60)], "label": [2 - (i % 3) for i in range(60)]}
    path = tmp_path / "corrected.parquet"
    pq.write_table(pa.table(corrected), path)
    expected = naive.counts(naive.rows(old, new, corrected={**corrected, **({"classes": names} if names else {})}))
    assert naive.counts_of(compare(old, new, labels=path)) == expected
    assert naive.counts_of(compare(old, new, labels=corrected)) == expected
    if names:
        by_name = {**corrected, "label": [names[i] for i in corrected["label"]]}
        assert naive.counts_of(compare(old, new, labels=by_name)) == expected


def test_a_file_of_labels_for_some_ids_leaves_the_others_as_they_are(naive: Any) -> None:
    old, new = plain(seed=3), plain(seed=4)
    corrected = {"id": [5, 6, 7], "label": [0, 1, None]}
    result = compare(old, new, labels=corrected)
    assert naive.counts_of(result) == naive.counts(naive.rows(old, new, corrected=corrected))


def test_signs_as_classes(naive: Any) -> None:
    """A support vector machine says -1 and +1: both are classes, neither is missing."""
    old, new = plain(classes=2, seed=3), plain(classes=2, seed=4)
    for columns in (old, new):
        columns["label"] = [2 * v - 1 for v in columns["label"]]
        columns["prediction"] = [2 * v - 1 for v in columns["prediction"]]
    corrected = {"id": list(range(53)), "label": [-1 if i % 3 else 1 for i in range(53)]}
    result = compare(old, new)
    assert naive.counts_of(result) == naive.counts(naive.rows(old, new))
    assert {g.value for g in result.classes} == {"-1", "1"}
    overruled = compare(old, new, labels=corrected)
    assert naive.counts_of(overruled) == naive.counts(naive.rows(old, new, corrected=corrected))


def test_ids_in_one_file_only_are_refused_or_dropped(naive: Any) -> None:
    old, new = plain(rows=53, seed=3), plain(rows=47, seed=4)
    old["id"][2], old["label"][2] = 1000, 0
    with pytest.raises(InputError) as caught:
        compare(old, new)
    assert str(caught.value) == (
        "old has 53 ids and new 47; 7 are only in old (first: 47), 1 is only in new (first: 2). "
        "Pass --on-missing drop to compare the 46 shared ones."
    )
    result = compare(old, new, on_missing="drop")
    assert naive.counts_of(result) == naive.counts(naive.rows(old, new))
    assert "7 ids that only old has and 1 that only new has were dropped." in result.notes


def test_only_one_split_is_compared(naive: Any) -> None:
    old, new = plain(seed=3), plain(seed=4)
    old["split"] = [("train", "test", "validation", None)[i % 4] for i in range(53)]
    for split in (None, "test", "train", "validation"):
        result = compare(old, new, split=split)
        assert naive.counts_of(result) == naive.counts(naive.rows(old, new, split=split)), split
    assert result.n == 13


def test_labels_may_be_missing_altogether(naive: Any) -> None:
    old, new = plain(seed=3), plain(seed=4)
    del old["label"], new["label"]
    result = compare(old, new)
    assert naive.counts_of(result) == naive.counts(naive.rows(old, new))
    assert result.negative_flip_rate is None
    assert result.mcnemar_p is None
    assert float(result.churn) == np.mean(np.array(old["prediction"]) != np.array(new["prediction"]))


def test_ids_meet_across_types() -> None:
    old, new = plain(seed=3), plain(seed=3)
    for ids in (
        np.arange(53, dtype=np.uint64) + 2**63,
        np.arange(53, dtype=np.int8),
        np.arange(53) - 2**62,
        [f"ïd {i} 'x\"; --" for i in range(53)],
    ):
        assert compare({**old, "id": ids}, {**new, "id": ids[::-1]}, labels="old").n == 53
    assert compare({**old, "id": np.arange(53, dtype=np.int8)}, {**new, "id": np.arange(53, dtype=np.uint64)}).n == 53
    padded = {**new, "id": [f"{i:03}" for i in range(53)]}
    with pytest.raises(InputError, match="share no id"):
        compare(old, padded)


def test_the_cost_of_flips(naive: Any) -> None:
    old, new = plain(seed=3), plain(seed=4)
    result = compare(old, new, cost_ratio=5.0)
    _, negative, positive, *_ = naive.counted(naive.rows(old, new))
    assert result.flip_cost is not None
    assert float(result.flip_cost) == pytest.approx((5 * negative - positive) / 53)
    assert result.flip_cost.low < float(result.flip_cost) < result.flip_cost.high
