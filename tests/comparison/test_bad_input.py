"""Bad input is one line that says what to do; what random input may bring is never a traceback."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard import InputError, compare, read_predictions

GOOD = {"id": [1, 2, 3, 4, 5], "label": [0, 1, 1, 0, 1], "prediction": [0, 1, 0, 0, 1]}
INFINITY = float("inf")

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "duplicate ids in old": ({"id": [1, 2, 2, 4, 5]}, {}, {}, r"old has duplicate ids \(first: 2, 2 times\)"),
    "duplicate ids in new": ({}, {"id": [1, 2, 3, 4, 4]}, {}, r"new has duplicate ids \(first: 4, 2 times\)"),
    "duplicate ids in both": ({"id": [1, 1, 3, 4, 5]}, {"id": [1, 1, 3, 4, 5]}, {}, "old has duplicate ids"),
    "duplicates in spite of drop": ({"id": [1, 2, 2, 4, 5]}, {}, {"on_missing": "drop"}, "old has duplicate ids"),
    "no id in common": ({"id": [6, 7, 8, 9, 10]}, {}, {}, r"share no id \(first: 6 and 1\): are they predictions"),
    "long ids": (
        {"id": [f"{'long/' * 20}{i}/end" for i in range(5)]},
        {"id": [f"{'long/' * 20}{i}" for i in range(6, 11)]},
        {},
        rf"\(first: …{'long/' * 6}0/end and …{'long/' * 6}10\)",
    ),
    "none in spite of drop": ({"id": [6, 7, 8, 9, 10]}, {}, {"on_missing": "drop"}, "share no id"),
    "one id elsewhere": ({"id": [1, 2, 3, 4, 6]}, {}, {}, r"1 is only in old \(first: 6\).*--on-missing drop"),
    "an id is missing": ({"id": [1, 2, 3, 4, None]}, {}, {}, "old has 1 rows without an id"),
    "ids are missing in both": (
        {"id": [1, 2, 3, None, None]},
        {"id": [1, 2, 3, None, None]},
        {"on_missing": "drop"},
        "old has 2 rows without an id",
    ),
    "contradicting labels": (
        {},
        {"label": [0, 1, 0, 0, 0]},
        {},
        "old and new disagree on 2 labels .first: id 3 is '1' in old, '0' in new.*--labels old",
    ),
    "negative weight": (
        {"weight": [1, 1, -2, 1, 1]},
        {},
        {},
        "the weight of id 3 must be a number of at least 0, it is -2",
    ),
    "no weight": ({"weight": [1, 1, None, 1, 1]}, {}, {}, "the weight of id 3 .* it is none"),
    "nan weight": ({"weight": pa.array([1, 1, float("nan"), 1, 1])}, {}, {}, "the weight of id 3 .* it is nan"),
    "infinite weight": ({}, {"weight": [1, 1, INFINITY, 1, 1]}, {}, "new: the weight of id 3 .* it is inf"),
    "unknown split": ({"split": ["a"] * 5}, {}, {"split": "test"}, "no row is of the split 'test': split holds a 5"),
    "no split": ({}, {}, {"split": "test"}, "--split needs a column 'split'"),
    "labels of old without any": ({"label": None}, {}, {"labels": "old"}, "--labels old: old has no column 'label'"),
    "labels from nowhere": ({}, {}, {"labels": "none.csv"}, "none.csv does not exist"),
    "labels twice": ({}, {}, {"labels": {"id": [1, 1], "label": [0, 1]}}, r"labels has duplicate ids \(first: 1\)"),
    "labels of others": ({}, {}, {"labels": {"id": [77], "label": [0]}}, "labels holds none of the ids"),
    "labels without labels": ({}, {}, {"labels": {"id": [1]}}, "labels has no column 'label'"),
    "confidence": ({}, {}, {"confidence": 95}, "the confidence must lie between 0 and 1, it is 95"),
    "on_missing": ({}, {}, {"on_missing": "ignore"}, "on_missing must be error or drop"),
    "correction": ({}, {}, {"correction": "sidak"}, "the correction must be holm or bh"),
    "alpha": ({}, {}, {"alpha": 0}, "alpha, the exponent of surrogate churn, must be above 0"),
    "cost": ({}, {}, {"cost_ratio": -1}, "the cost ratio must not be negative"),
    "memory": ({}, {}, {"memory": "much"}, "--memory must be a size such as 4GB, not 'much'"),
}


@pytest.mark.parametrize("form", ["memory", "parquet"])
@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line(case: str, form: str, tmp_path: Path) -> None:
    first, second, options, message = CASES[case]
    sources: list[Any] = []
    for name, changes in (("old", first), ("new", second)):
        columns = {k: v for k, v in {**GOOD, **changes}.items() if v is not None}
        source = read_predictions(columns, name=name)
        if form == "parquet":
            source.write(tmp_path / f"{name}.parquet")
            source = read_predictions(tmp_path / f"{name}.parquet", name=name)
        sources.append(source)
    with pytest.raises(InputError, match=message) as caught:
        compare(*sources, **options)
    assert "\n" not in str(caught.value)


def test_nothing_is_written_when_the_input_is_bad(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("keep me")
    with pytest.raises(InputError):
        compare(GOOD, {**GOOD, "id": [1, 1, 2, 3, 4]}, flips=tmp_path / "f.csv")
    assert (tmp_path / "f.csv").read_text() == "keep me"
    assert [p.name for p in tmp_path.iterdir()] == ["f.csv"]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.sampled_from([0.0, 1.0, 1.5, float("nan"), INFINITY, 2**40, 2**63, "", "a", "0", "1", "ü", "x;y", b"z"]),
)
vectors = st.lists(st.floats(-5, 5), min_size=0, max_size=3)


@st.composite
def anything(draw: st.DrawFn) -> dict[str, Any]:
    """Columns that are often nonsense, and often of one kind so that they get past the first check."""
    rows = draw(st.integers(0, 5))
    names = draw(
        st.sets(st.sampled_from(["label", "prediction", "logits", "probabilities", "weight", "split", "kind"]))
    )
    columns: dict[str, Any] = {"id": list(range(rows))}
    for name in ("id", *sorted(names)):
        if name == "id" and draw(st.integers(0, 3)):
            continue
        pool = vectors if name in ("logits", "probabilities") and draw(st.integers(0, 4)) else scalars
        if pool is scalars and draw(st.booleans()):
            pool = st.sampled_from(
                draw(st.sampled_from([[0, 1, None], ["a", "b"], [1.0, 0.0], ["test", "val"], [-1, 1]]))
            )
        columns[name] = draw(st.lists(pool, min_size=rows, max_size=rows))
    if draw(st.integers(0, 3)) == 0:
        columns["classes"] = draw(st.lists(st.sampled_from(["a", "b", "0", "1"]), max_size=3))
    return columns


@settings(max_examples=400, deadline=None)
@given(
    anything(),
    anything(),
    st.fixed_dictionaries(
        {},
        optional={
            "labels": st.sampled_from(["old", "new"]),
            "on_missing": st.just("drop"),
            "split": st.just("test"),
            "cluster": st.just("kind"),
            "cost_ratio": st.just(2.0),
            "class_map": st.just({"a": "b"}),
        },
    ),
)
def test_random_input_never_ends_in_a_traceback(old: Any, new: Any, options: dict[str, Any]) -> None:
    refused: InputError | None = None
    try:
        result = compare(old, new, **options)
    except InputError as error:
        refused = error
    if refused is not None:
        assert "\n" not in str(refused)
        assert len(str(refused)) > 10
        return
    if result.labelled:
        change = float(result.error_rate_new) - float(result.error_rate_old)
        assert float(result.negative_flip_rate) - float(result.positive_flip_rate) == pytest.approx(change, abs=1e-12)
    assert sum(g.n for g in result.classes) == result.labelled <= result.n


def test_the_same_object_on_both_sides() -> None:
    whole = read_predictions({**GOOD, "logits": np.eye(2, dtype=np.float32)[GOOD["prediction"]]})
    result = compare(whole, whole)
    assert (result.negative_flips, result.positive_flips, float(result.churn)) == (0, 0, 0.0)
    assert result.mcnemar_p == 1.0
