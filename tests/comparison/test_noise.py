"""The noise floor, against a loop over rows and copies."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, compare
from flipguard.statistics import clopper_pearson, noise_excess

Columns = dict[str, Any]
LABEL = np.random.default_rng(0).integers(0, 3, 211)


def model(seed: int, *, error: float = 0.2, **more: Any) -> Columns:
    random = np.random.default_rng(seed)
    said = np.where(random.random(211) < error, (LABEL + random.integers(1, 3, 211)) % 3, LABEL)
    return {"id": np.arange(211), "label": LABEL, "prediction": said, **more}


def test_the_floor_is_that_of_a_loop(naive: Any) -> None:
    old, new = model(1), model(2, error=0.3)
    new["split"] = np.where(np.arange(211) % 10 == 0, "validation", "test")
    copies = [model(seed) for seed in (3, 4, 5)]
    shuffled = [naive.shuffled(copy, np.random.default_rng(i).permutation(211)) for i, copy in enumerate(copies)]
    for copy in shuffled:
        del copy["label"]
    found = compare(old, new, noise=shuffled).noise
    assert found is not None

    rows = []
    for i in range(211):
        if new["split"][i] == "test":
            right = old["prediction"][i] == LABEL[i]
            flips = [right and c["prediction"][i] != LABEL[i] for c in copies]
            rows.append((right and new["prediction"][i] != LABEL[i], sum(flips) / 3, *flips))
    n = len(rows)
    rates = [sum(row[2 + k] for row in rows) / n for k in range(3)]
    x, c = ([float(row[k]) for row in rows] for k in (0, 1))
    dot = lambda a, b: sum(p * q for p, q in zip(a, b, strict=True))  # noqa: E731
    expected = noise_excess(n, sum(x), sum(c), dot(x, x), dot(c, c), dot(x, c), rates)
    assert found.copies == 3
    assert found.rates == pytest.approx(rates)
    assert found.negative_flip_rate.value == pytest.approx(sum(rates) / 3)
    assert found.negative_flip_rate.low < sum(rates) / 3 < found.negative_flip_rate.high  # type: ignore[operator]
    assert found.excess.value == pytest.approx(sum(x) / n - sum(c) / n)
    assert (found.excess.low, found.excess.high) == pytest.approx((expected.low, expected.high))
    assert found.p == pytest.approx(expected.p_value)
    assert found.exceeds == (expected.low > 0)


def test_a_copy_of_a_better_kind_is_exceeded_and_one_like_the_update_is_not() -> None:
    old = model(1, error=0.02)
    copies = [model(seed, error=0.02) for seed in range(10, 16)]
    assert compare(old, model(2, error=0.4), noise=copies).noise.exceeds  # type: ignore[union-attr]
    assert not compare(old, model(2, error=0.02), noise=copies).noise.exceeds  # type: ignore[union-attr]


@pytest.mark.parametrize("compared", [int, str])
@pytest.mark.parametrize("copied", [int, str])
def test_ids_of_copies_may_be_text_or_numbers(compared: type, copied: type) -> None:
    old, new, copy = model(1), model(2), model(3)
    expected = compare(old, new, noise=[copy]).noise
    for columns, kind in ((old, compared), (new, compared), (copy, copied)):
        columns["id"] = [kind(i) for i in columns["id"]]
    assert compare(old, new, noise=[copy]).noise == expected
    assert compare(old, {**new, "id": [int(i) for i in new["id"]]}, noise=copy).noise == expected


def test_copies_speak_of_the_same_classes() -> None:
    names = ["a", "b", "c"]
    old, new, copy = model(1, classes=names), model(2, classes=names), model(3, classes=names)
    expected = compare(old, new, noise=[copy]).noise
    # Another order of classes, other classes besides, and names instead of indices.
    other = ["x", "c", "a", "b"]
    mapped = {**copy, "prediction": [other.index(names[i]) for i in copy["prediction"]], "classes": other}
    mapped["label"] = [other.index(names[i]) for i in LABEL]
    worded = {"id": copy["id"], "prediction": [names[i] for i in copy["prediction"]]}
    for form in (mapped, worded):
        assert compare(old, new, noise=[form]).noise == expected
    for columns in (old, new):
        del columns["classes"]
    with pytest.raises(InputError, match="noise 1 holds class names, the compared files hold class indices"):
        compare(old, new, noise=[worded])


def test_a_copy_that_fails_on_a_sample_flips_it() -> None:
    old, new, copy = model(1, error=0.0), model(2), model(1, error=0.0)
    copy["prediction"] = [None if i < 13 else int(v) for i, v in enumerate(copy["prediction"])]
    assert compare(old, new, noise=[copy]).noise.rates == [13 / 211]  # type: ignore[union-attr]


def test_copies_that_do_not_fit_are_refused() -> None:
    old, new = model(1), model(2)
    short = {name: column[:200] for name, column in model(3).items()}
    with pytest.raises(InputError, match="noise 2 lacks 11 of the 211 samples compared"):
        compare(old, new, noise=[model(3), short])
    double = {name: np.concatenate([column, column[:1]]) for name, column in model(3).items()}
    with pytest.raises(InputError, match=r"noise 1 has duplicate ids \(first: 0\)"):
        compare(old, new, noise=[double])
    bare = [{"id": c["id"], "prediction": c["prediction"]} for c in (old, new)]
    with pytest.raises(InputError, match="--noise needs labels"):
        compare(*bare, noise=[model(3)])


@pytest.mark.parametrize("kind", ["csv", "parquet", "columns"])
def test_what_the_old_model_said_is_no_copy_of_it(kind: str, tmp_path: Path) -> None:
    """A file that is named twice would be a noise floor of nothing."""
    given: list[Any] = [model(1), model(2, error=0.3), model(3)]
    if kind != "columns":
        table = [pa.table(one) for one in given]
        given = [tmp_path / f"{name}.{kind}" for name in ("old", "new", "copy")]
        for path, rows in zip(given, table, strict=True):
            (pa.csv.write_csv if kind == "csv" else pq.write_table)(rows, path)
    old, new, copy = given
    assert compare(old, new, noise=[copy]).noise is not None
    for one, whose in ((old, "old"), (new, "new")):
        with pytest.raises(InputError, match=f"--noise .* is what the {whose} model itself said, which is no noise"):
            compare(old, new, noise=[copy, one])


def test_of_one_copy_no_excess_is_told_from_one_more_retraining() -> None:
    """The update is far from the copy, and how far copies are from each other nobody knows."""
    old, new, copy = model(1, error=0.02), model(2, error=0.4), model(3, error=0.02)
    found = compare(old, new, noise=copy).noise
    assert found is not None
    assert found.excess.value is not None
    assert found.excess.value > 0.2
    assert (found.excess.low, found.excess.high, found.p, found.exceeds) == (None, None, None, False)
    exact = clopper_pearson(round(found.rates[0] * 211), 211)
    assert (found.negative_flip_rate.low, found.negative_flip_rate.high) == pytest.approx(
        (float(exact.low), float(exact.high))
    )
    with pytest.raises(InputError, match="needs two retrained copies or more: one does not tell how much they differ"):
        compare(old, new, noise=copy, gate={"max_noise_excess": 0.5})
    judged = compare(old, new, noise=copy, gate={"max_noise_excess": 0.5, "gate_on": "value"}).gate
    assert judged.passed


def test_the_floor_holds_what_copies_that_differ_have_in_common() -> None:
    """Two copies that flip 2 % and 6 %: the interval of their mean holds both."""
    n = 10_007
    rows = {"id": np.arange(n), "label": np.zeros(n, int), "prediction": np.zeros(n, int)}
    copies = [{**rows, "prediction": (np.arange(n) % 50 == 0).astype(int)}]
    copies.append({**rows, "prediction": (np.arange(n) % 50 >= 47).astype(int)})
    found = compare(rows, {**rows, "prediction": (np.arange(n) % 50 == 7).astype(int)}, noise=copies).noise
    assert found is not None
    low, high = found.negative_flip_rate.low, found.negative_flip_rate.high
    assert low is not None
    assert high is not None
    assert low <= min(found.rates) < max(found.rates) <= high
