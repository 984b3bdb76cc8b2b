"""Temperatures: which rows they come from, and what they do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard import InputError, compare, read_predictions
from flipguard.metrics import FIGURES, fit_temperature, tally

Columns = dict[str, Any]
ASIDE = np.arange(211) % 3 == 0
ORDER = np.random.default_rng(7).permutation(211)


def expected(old: Columns, new: Columns, fit: Any, rows: Any) -> dict[str, float]:
    """The temperatures fitted on some rows, and the calibrated figures of others."""
    t = tuple(float(fit_temperature(c["logits"][fit], c["label"][fit])) for c in (old, new))
    sums = tally(
        old["label"][rows], None, None, old_logits=old["logits"][rows], new_logits=new["logits"][rows], temperature=t
    )
    names = ("cnll_old", "cnll_new", "cece_old", "cece_new", "nll_old", "nll_new", "negative_flip_rate")
    return {"temperature_old": t[0], "temperature_new": t[1], **{n: float(FIGURES[n](sums)) for n in names}}


def found(result: Any) -> dict[str, float]:
    names = ("cnll_old", "cnll_new", "cece_old", "cece_new", "nll_old", "nll_new", "negative_flip_rate")
    temperatures = {f"temperature_{side}": getattr(result, f"temperature_{side}") for side in ("old", "new")}
    return {**temperatures, **{name: float(getattr(result, name)) for name in names}}


@pytest.mark.parametrize("name", ["validation", "val", "calibration"])
@pytest.mark.parametrize("order", [np.arange(211), ORDER], ids=["aligned", "shuffled"])
@pytest.mark.parametrize("side", ["old", "new"])
def test_validation_rows_calibrate_and_are_not_compared(naive: Any, name: str, order: Any, side: str) -> None:
    old, new = naive.scored_pair(rows=211)
    (old if side == "old" else new)["split"] = np.where(ASIDE, name, "test")
    result = compare(old, naive.shuffled(new, order))
    assert found(result) == pytest.approx(expected(old, new, ASIDE, ~ASIDE), rel=1e-5)
    assert result.n == int((~ASIDE).sum())
    assert f"{int(ASIDE.sum())} validation samples were set aside to fit the temperatures." in result.notes


@pytest.mark.parametrize("ids", [int, str])
@pytest.mark.parametrize("form", ["memory", "parquet"])
def test_a_file_of_ids_sets_aside_the_same_rows(naive: Any, tmp_path: Path, ids: type, form: str) -> None:
    old, new = naive.scored_pair(rows=211)
    # An id that stands twice, or in neither file, is no harm in a list of ids.
    listed = {"id": [ids(i) for i in [*old["id"][ASIDE], old["id"][0], 999_983]]}
    sources: list[Any] = [old, naive.shuffled(new, ORDER)]
    if form == "parquet":
        sources = [read_predictions(s).write(tmp_path / f"{i}.parquet").name for i, s in enumerate(sources)]
    want = pytest.approx(expected(old, new, ASIDE, ~ASIDE), rel=1e-5)
    assert found(compare(*sources, calibrate_on=[listed])) == want
    assert found(compare(*sources, calibrate_on=listed)) == want


@pytest.mark.parametrize("columns", [["id", "label", "logits"], ["logits", "label", "id"]])
def test_two_files_calibrate_one_model_each(naive: Any, tmp_path: Path, columns: list[str]) -> None:
    """In whatever order their columns stand."""
    old, new = naive.scored_pair(rows=211)
    first, second = naive.scored_pair(rows=103, seed=5)
    paths = []
    for i, source in enumerate((first, second)):
        table = read_predictions(source).table().select(columns)
        paths.append(read_predictions(table).write(tmp_path / f"{i}.parquet").name)
    t = [float(fit_temperature(c["logits"], c["label"])) for c in (first, second)]
    for sources in (paths, [first, second]):
        result = compare(old, new, calibrate_on=sources)
        assert [result.temperature_old, result.temperature_new] == pytest.approx(t, rel=1e-6)
        assert result.n == 211
    sums = tally(old["label"], None, None, old_logits=old["logits"], new_logits=new["logits"], temperature=(t[0], t[1]))
    assert float(result.cnll_new) == pytest.approx(float(FIGURES["cnll_new"](sums)), rel=1e-5)


def test_each_file_may_name_its_own_classes(naive: Any) -> None:
    old, new = naive.scored_pair(rows=211)
    first, second = naive.scored_pair(rows=103, seed=5)
    names = list("abcdefg")
    named = {**second, "label": np.array(names)[second["label"]], "classes": names}
    plain = compare(old, new, calibrate_on=[first, second])
    assert compare(old, new, calibrate_on=[first, named]).temperature_new == pytest.approx(plain.temperature_new)


@pytest.mark.parametrize("order", [np.arange(211), ORDER], ids=["aligned", "shuffled"])
def test_probabilities_with_gaps_calibrate(naive: Any, order: Any) -> None:
    old, new = naive.scored_pair(rows=211)
    there = np.arange(211) % 7 > 0
    for columns in (old, new):
        p = np.exp(columns["logits"].astype(np.float64))
        columns["p"] = p / p.sum(axis=1, keepdims=True)
    listed = [row.tolist() if ok else None for row, ok in zip(old["p"], there, strict=True)]
    first = {"id": old["id"], "label": old["label"], "prediction": old["p"].argmax(1), "probabilities": listed}
    second = {
        "id": new["id"],
        "label": new["label"],
        "probabilities": new["p"],
        "split": np.where(ASIDE, "val", "test"),
    }
    result = compare(first, naive.shuffled(second, order))
    use = ASIDE & there
    assert result.temperature_old == pytest.approx(fit_temperature(old["logits"][use], old["label"][use]), rel=1e-4)
    assert result.n == int((~ASIDE).sum())


def test_nothing_to_calibrate_on_is_said(naive: Any) -> None:
    old, new = naive.scored_pair()
    with pytest.raises(InputError, match="none of the ids to calibrate on is a labelled row of both files"):
        compare(old, new, calibrate_on=[{"id": [999_983]}])
    bare = {"id": old["id"], "label": old["label"], "prediction": old["label"]}
    with pytest.raises(InputError, match="--calibrate-on needs logits or probabilities in both files"):
        compare(bare, new, calibrate_on=[{"id": old["id"][:3]}])
    with pytest.raises(InputError, match=r"calibrate_on \(old\) cannot calibrate: it needs labels"):
        compare(old, new, calibrate_on=[bare, new])
    with pytest.raises(InputError, match="one file of ids, or two prediction files"):
        compare(old, new, calibrate_on=[old, new, new])
    assert compare(old, new).cnll_old is None
