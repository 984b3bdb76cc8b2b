"""A column of scores for each class says what one column of lists says."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard import InputError, Predictions, compare, read_predictions

NAMES = ["cat", "dog", "ant"]


def scores(seed: int, n: int = 53) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).dirichlet(np.ones(3), n)


def columns(found: np.ndarray[Any, Any], prefix: str, names: list[str]) -> dict[str, Any]:
    return {f"{prefix}{name}": found[:, i] for i, name in enumerate(names)}


def sides(*, names: bool, prefix: str = "p_") -> tuple[list[Any], list[Any]]:
    """Both models with a column for each class, and with one column of lists. The new one has another order of them."""
    label = np.arange(53) % 3
    spread, lists = [], []
    for seed, order in ((1, [0, 1, 2]), (2, [2, 0, 1])):
        found = scores(seed)
        said = found.argmax(axis=1)
        base = {"id": np.arange(53), "country": ["de", "fr"] * 26 + ["it"]}
        base |= {k: [NAMES[i] for i in v] if names else v for k, v in (("label", label), ("prediction", said))}
        written = [NAMES[i] if names else str(i) for i in order]
        spread.append(base | columns(found[:, order], prefix, written))
        lists.append(base | {"probabilities": found} | ({"classes": NAMES} if names else {}))
    return spread, lists


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "columns"])
@pytest.mark.parametrize("names", [True, False])
def test_they_compare_as_lists_do(names: bool, kind: str, tmp_path: Path) -> None:
    spread, lists = sides(names=names)
    given: list[Any] = spread
    if kind != "columns":
        given = [pd.DataFrame(one) for one in spread]
    if kind in ("csv", "parquet"):
        paths = [tmp_path / f"{name}.{kind}" for name in ("old", "new")]
        for frame, path in zip(given, paths, strict=True):
            frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
        given = paths
    expected, found = compare(*lists, cost_ratio=2), compare(*given, cost_ratio=2)
    assert found.nll_new is not None
    assert expected.nll_new is not None
    for figure in ("nll_old", "nll_new", "surrogate_churn", "prediction_confidence_new"):
        assert getattr(found, figure).value == pytest.approx(getattr(expected, figure).value, rel=1e-6), figure
    assert list(found.slices) == ["country"]
    assert found.notes == expected.notes


@pytest.mark.parametrize("prefix", ["probability_", "prob_", "proba_", "p_", "logit_", "logits_"])
def test_prefixes(prefix: str) -> None:
    (old, _), _ = sides(names=True, prefix=prefix)
    read = read_predictions(old)
    kind = "logits" if prefix.startswith("logit") else "probabilities"
    assert read.scores == kind
    assert read.classes == ("cat", "dog", "ant")
    assert np.allclose(read.table([kind])[kind].to_pylist(), scores(1))


def test_what_is_no_score_stays_a_slice() -> None:
    rows = {"id": [1, 2, 3], "label": ["cat", "dog", "cat"], "prediction": ["cat", "cat", "dog"]}
    other = rows | {"p_value": [0.1, 0.2, 0.3], "p_rank": [1.0, 2.0, 3.0]}
    assert read_predictions(other).slices == ("p_value", "p_rank")
    whole = {"id": [1, 2], "label": [0, 1], "prediction": [0, 1], "p_0": [0.5, 0.2], "p_2": [0.5, 0.8]}
    assert read_predictions(whole).slices == ("p_0", "p_2")
    numbers = {"id": [1, 2], "label": [0, 4], "prediction": [4, 0], "p_0": [0.5, 0.2], "p_1": [0.5, 0.8]}
    assert read_predictions(numbers).slices == ("p_0", "p_1")
    beyond = numbers | {"prediction": [0, 1]}
    assert read_predictions(beyond).slices == ("p_0", "p_1")
    heads = rows | {"p_cat": [0.9, 0.2, 0.7], "p_fur": [0.9, 0.9, 0.1]}
    assert read_predictions(heads).slices == ("p_cat", "p_fur")
    beside = rows | {"logits": [[1.0, 0.0]] * 3, "p_cat": [0.7, 0.7, 0.7], "p_dog": [0.3, 0.3, 0.3]}
    assert Predictions.from_table(pa.table(beside), classes=["cat", "dog"]).scores == "logits"


def test_scores_among_other_columns_of_their_prefix_are_found() -> None:
    said = {"id": [1, 2, 3], "label": ["ham", "ham", "spam"], "prediction": ["ham", "spam", "spam"]}
    found = {"p_ham": [0.6, 0.2, 0.1], "p_spam": [0.4, 0.8, 0.9]}
    for other in ({"p_max": [0.6, 0.8, 0.9]}, {"prob_ood": [0.1, 0.1, 0.1], "prob_drift": [0.2, 0.0, 0.1]}):
        read = read_predictions(said | found | other)
        assert (read.scores, read.classes, read.slices) == ("probabilities", ("ham", "spam"), tuple(other))
    # A class that never occurs is one of them where the others alone do not sum to 1.
    third = read_predictions(said | {"p_ham": [0.5, 0.1, 0.0], "p_spam": [0.4, 0.8, 0.9], "p_scam": [0.1, 0.1, 0.1]})
    assert third.classes == ("ham", "spam", "scam")


def test_a_large_file_stays_on_disk_where_such_columns_are_no_scores(tmp_path: Path) -> None:
    rows = {"id": [1, 2], "label": [0, 1], "prediction": [0, 1], "p_value": [0.5, 0.2], "p_rank": [1.0, 2.0]}
    pq.write_table(pa.table(rows), tmp_path / "on_disk.parquet")
    assert isinstance(read_predictions(tmp_path / "on_disk.parquet").source, tuple)


def test_columns_that_stand_twice_are_said_as_ever() -> None:
    table = pa.table([[1, 2], ["a", "b"], ["a", "b"], [0.5, 0.5], [0.5, 0.5]], ["id", "label", "label", "p_a", "p_b"])
    with pytest.raises(InputError, match="two columns named 'label'"):
        Predictions.from_table(table)


def test_known_classes_decide_the_order_and_a_row_that_lacks_one_score_has_none(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "label": [0, 1], "prob_dog": [0.7, None], "prob_cat": [0.3, 0.6]})
    read = Predictions.from_table(table, classes=["cat", "dog"])
    assert read.classes == ("cat", "dog")
    assert read.table(["probabilities"])["probabilities"].to_pylist() == [[0.3, 0.7], None]
    read.write(tmp_path / "p.parquet")
    written = read_predictions(tmp_path / "p.parquet")
    assert (written.scores, written.classes) == ("probabilities", ("cat", "dog"))
    pq.write_table(table.append_column("prediction", [[0, 1]]), tmp_path / "bare.parquet")
    assert read_predictions(tmp_path / "bare.parquet").scores is None
