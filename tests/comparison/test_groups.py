"""Classes, slices and clusters: that groups add up, whatever they are called, and what they are adjusted for."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from flipguard import InputError, compare, read_predictions
from flipguard.metrics import OUTCOMES
from flipguard.statistics import (
    clopper_pearson,
    clustered_covariance,
    error_difference_from_covariance,
    holm,
    mcnemar_exact,
)

Columns = dict[str, Any]


def example(rows: int = 211, seed: int = 0) -> tuple[Columns, Columns]:
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, rows)
    said = [np.where(random.random(rows) < share, random.integers(0, 3, rows), label) for share in (0.2, 0.4)]
    base = {"id": np.arange(rows), "label": label}
    return {**base, "prediction": said[0]}, {**base, "prediction": said[1]}


NAMES = [
    "cell",
    "old",
    "new",
    "count",
    "example",
    "scores",
    "old_scores",
    "weight_squared",
    "outcome",
    "old_id",
    "by_0",
    "r",
    "Country",
    "select",
    "a b",
    "a'b",
    'x"; DROP TABLE old_rows; --',
    "größe 📏",
    "%s {0} $1",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_slice_may_have_any_name(name: str, naive: Any, tmp_path: Path) -> None:
    """With scores, joined and in step, in memory and on disk."""
    old, new = example(rows=53)
    values = np.array(["p", "q"])[np.arange(53) % 2]
    for columns in (old, new):
        columns["logits"] = np.eye(3, dtype=np.float32)[columns["prediction"]]
    flipped = (old["prediction"] == old["label"]) & (new["prediction"] != new["label"])
    expected = {v: (int((values == v).sum()), int((flipped & (values == v)).sum())) for v in ("p", "q")}
    other = naive.shuffled(new, np.random.default_rng(1).permutation(53))
    path = read_predictions({**old, name: values}).write(tmp_path / "old.parquet").name
    for result in (compare({**old, name: values}, new), compare({**old, name: values}, other), compare(path, other)):
        assert {g.value: (g.n, g.negative_flips) for g in result.slices[name]} == expected
        assert all(g.nll_new is not None for g in result.slices[name])


def test_a_cluster_may_have_any_name() -> None:
    old, new = example(rows=53)
    video = np.arange(53) // 5
    expected = compare({**old, "video": video}, new, cluster="video").mcnemar_p
    for name in ("cell", "count", 'x"; DROP TABLE old_rows; --'):
        assert compare({**old, name: video}, new, cluster=name).mcnemar_p == expected


DAY = np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "datetime64[D]")
KINDS: dict[str, tuple[Any, list[str | None]]] = {
    "text": (["p", "q", None], ["p", "q", None]),
    "wide text": (pa.array(["p", "q", None], pa.large_string()), ["p", "q", None]),
    "categories": (pa.array(["p", "q", None]).dictionary_encode(), ["p", "q", None]),
    "integers": (np.array([1, 2, 3], np.int8), ["1", "2", "3"]),
    "booleans": ([True, False, None], ["True", "False", None]),
    "days": (DAY, ["2024-01-01", "2024-01-02", "2024-01-03"]),
    "times": (DAY.astype("datetime64[ns]"), ["2024-01-01 00:00:00", "2024-01-02 00:00:00", "2024-01-03 00:00:00"]),
    "nothing": ([None, None, None], [None, None, None]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ["aligned", "shuffled"])
@pytest.mark.parametrize("form", ["memory", "parquet"])
def test_a_slice_may_hold_any_kind_of_value(kind: str, order: str, form: str, naive: Any, tmp_path: Path) -> None:
    """With scores, which go by another way than counts."""
    values, names = KINDS[kind]
    old, new = example()
    new["logits"] = np.eye(3, dtype=np.float32)[new["prediction"]]
    if order == "shuffled":
        new = naive.shuffled(new, np.random.default_rng(1).permutation(211))
    array = values if isinstance(values, pa.Array) else pa.array(values)
    first: Any = {**old, "kind": array.take(pa.array(np.arange(211) % 3))}
    if form == "parquet":
        first = read_predictions(first).write(tmp_path / "x.parquet").name
    groups = compare(first, new).slices["kind"]
    found = {g.value: g.n for g in groups}
    expected: dict[str | None, int] = {}
    for i in range(211):
        expected[names[i % 3]] = expected.get(names[i % 3], 0) + 1
    assert found == expected
    assert all(g.nll_new is not None for g in groups)


def test_a_slice_may_stand_in_either_file_and_the_new_one_rules(naive: Any) -> None:
    old, new = example()
    first, second = np.where(np.arange(211) % 2, "p", "q"), np.array([None, "s"], object)[np.arange(211) % 2]
    frame = pl.DataFrame({**old, "kind": first})
    result = compare(frame, {**new, "kind": second})
    assert {g.value: g.n for g in result.slices["kind"]} == {"s": 105, "q": 106}
    result = compare(pd.DataFrame({**old, "kind": first}).astype({"kind": "category"}), {**new, "kind": second})
    assert {g.value: g.n for g in result.slices["kind"]} == {"s": 105, "q": 106}
    with pytest.raises(InputError, match="column 'kind' holds string in old and int64 in new: write it alike"):
        compare({**old, "kind": first}, {**new, "kind": np.arange(211) % 2})


def test_columns_with_many_values_are_left_out_unless_asked_for() -> None:
    old, new = example(rows=107)
    many = {"user": [f"u{i}" for i in range(107)], "score": np.linspace(0, 1, 107)}
    result = compare({**old, **many}, new)
    assert result.slices == {}
    assert "not sliced by user: it has over 100 values (--by user does it)." in result.notes
    assert len(compare({**old, **many}, new, by=["user"]).slices["user"]) == 107
    assert compare({**old, **many}, new, by="score").slices.keys() == {"score"}
    assert compare({**old, "kind": ["p"] * 107}, new, by=[]).slices == {}


def test_groups_are_ordered_and_adjusted_among_each_other() -> None:
    old, new = example()
    kinds = {"one": np.array(list("pqrst"))[np.arange(211) % 5], "two": np.array(list("uv"))[np.arange(211) // 150]}
    result = compare({**old, **kinds}, new)
    groups = [g for column in result.slices.values() for g in column]
    expected = holm([float(mcnemar_exact(g.negative_flips, g.positive_flips)) for g in groups])
    assert [g.adjusted_p for g in groups] == pytest.approx(expected.tolist())
    for group in groups:
        wide = clopper_pearson(group.negative_flips, group.labelled, confidence=1 - 0.05 / 7)
        assert group.simultaneous_negative_flip_rate.low == pytest.approx(float(wide.low))  # type: ignore[union-attr]
        assert group.simultaneous_negative_flip_rate.high == pytest.approx(float(wide.high))  # type: ignore[union-attr]
    for column in (result.classes, *result.slices.values()):
        lows = [g.negative_flip_rate.low for g in column]  # type: ignore[union-attr]
        assert lows == sorted(lows, reverse=True)


def test_examples_are_the_first_flips_by_id(naive: Any) -> None:
    old, new = example()
    kind = np.array(list("pqr"))[np.arange(211) % 3]
    flipped = (old["prediction"] == old["label"]) & (new["prediction"] != new["label"])
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(211)
        result = compare({**old, "kind": kind, "other": np.arange(211) % 7}, naive.shuffled(new, order))
        for group in result.slices["kind"]:
            assert group.example == int(np.flatnonzero(flipped & (kind == group.value))[0])


def test_clusters_are_counted_as_in_a_loop(naive: Any) -> None:
    old, new = example()
    customer = np.array([f"c{i}" for i in np.random.default_rng(2).integers(0, 23, 211)])
    result = compare({**old, "customer": customer}, new, cluster="customer")
    rows = naive.rows({**old, "customer": customer}, new)
    names = sorted(set(customer))
    clusters = np.zeros((len(names), len(OUTCOMES)))
    for row in rows:
        clusters[names.index(row["customer"]), OUTCOMES.index(row["outcome"])] += 1
    covariance = clustered_covariance(clusters[:, :5])
    count = clusters[:, :5].sum(axis=0)
    expected = error_difference_from_covariance(count / 211, covariance, 211, degrees_of_freedom=22, confidence=0.95)
    assert (result.error_difference.low, result.error_difference.high) == pytest.approx(  # type: ignore[union-attr]
        (float(expected.low), float(expected.high))
    )
    assert result.cluster == "customer"
    assert "customer" not in result.slices
    alone = compare(old, new)
    assert result.negative_flips == alone.negative_flips
    assert result.mcnemar_p != alone.mcnemar_p


def test_clusters_widen_intervals_of_samples_that_come_in_copies() -> None:
    """Five copies of each row say no more than one."""
    old, new = example(rows=101)
    copied = [{n: np.repeat(v, 5) for n, v in c.items()} | {"id": np.arange(505)} for c in (old, new)]
    naive_width, honest = (
        compare(*copied),
        compare({**copied[0], "video": np.repeat(np.arange(101), 5)}, copied[1], cluster="video"),
    )
    single = compare(old, new)

    def width(figure: Any) -> float:
        return float(figure.high - figure.low)

    assert width(naive_width.churn) < 0.6 * width(single.churn)
    assert width(honest.churn) == pytest.approx(width(single.churn), rel=0.15)
    assert width(honest.error_difference) == pytest.approx(width(single.error_difference), rel=0.15)


def test_columns_that_cannot_group_are_refused() -> None:
    old, new = example()
    lists = pa.array([[i] for i in range(211)])
    with pytest.raises(InputError, match="column 'kind' holds a list or struct per row"):
        compare({**old, "kind": lists}, new, by=["kind"])
    assert compare({**old, "kind": lists, "features": np.ones((211, 3))}, new).slices == {}
    with pytest.raises(InputError, match=r"neither file has a column 'contry'. Did you mean 'country'"):
        compare({**old, "country": ["x"] * 211}, new, by=["contry"])
    with pytest.raises(InputError, match=r"neither file has a column 'x'. Columns to slice by: none"):
        compare(old, new, cluster="x")
    with pytest.raises(InputError, match="--cluster needs a column such as customer"):
        compare(old, new, cluster="label")
    with pytest.raises(InputError, match="every sample must belong to a cluster"):
        compare({**old, "video": [None, *range(210)]}, new, cluster="video")
