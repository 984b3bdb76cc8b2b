"""A chain of versions, against pairwise comparisons."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard import InputError, compare, matrix, read_predictions


def chain(versions: int = 4, rows: int = 101) -> list[dict[str, Any]]:
    label = np.random.default_rng(0).integers(0, 5, rows)
    found = []
    for seed in range(versions):
        random = np.random.default_rng(seed + 1)
        wrong = random.random(rows) < 0.4 - 0.05 * seed
        said = np.where(wrong, random.integers(0, 5, rows), label)
        order = random.permutation(rows)
        found.append({"id": order, "label": label[order], "prediction": said[order]})
    return found


def test_each_pair_is_its_own_comparison(tmp_path: Path) -> None:
    versions = chain()
    found = matrix(versions, confidence=0.9)
    for i in range(4):
        for j in range(4):
            pair = compare(versions[i], versions[j], confidence=0.9)
            assert found.negative_flips[i][j] == pair.negative_flips
            assert found.negative_flip_rate[i][j].value == float(pair.negative_flip_rate)
            assert found.churn[i][j].value == float(pair.churn)
            if i != j:
                assert found.negative_flip_rate[i][j] == pair.negative_flip_rate
                assert found.churn[i][j] == pair.churn
            assert found.error_rate[i] == pair.error_rate_old
    steps = [found.negative_flips[i][i + 1] for i in range(3)]
    assert found.sum_negative_flips == sum(steps) > 0
    assert found.mean_negative_flip_rate == pytest.approx(sum(steps) / (3 * 101))
    upper = [found.negative_flip_rate[i][j].value for i in range(4) for j in range(i + 1, 4)]
    assert found.mean_pairwise_negative_flip_rate == pytest.approx(np.mean(upper))
    assert (found.n, found.versions, found.notes) == (101, [f"version {i}" for i in range(1, 5)], [])
    paths = [read_predictions(v).write(tmp_path / f"v{i}.parquet").name for i, v in enumerate(versions)]
    assert matrix(paths, confidence=0.9).negative_flips == found.negative_flips
    assert matrix(paths).versions == paths


def test_versions_are_called_by_what_their_files_say() -> None:
    one, other = chain(2)
    found = matrix([{**one, "model": "resnet", "version": "v1"}, {**other, "version": "v2"}])
    assert found.versions == ["resnet v1", "v2"]


def test_versions_that_share_different_samples() -> None:
    one, other, last = chain(3)
    short = {name: column[:89] for name, column in last.items()}
    with pytest.raises(InputError, match="Pass --on-missing drop"):
        matrix([one, other, short])
    found = matrix([one, other, short], on_missing="drop")
    assert found.notes == ["the pairs share different numbers of samples; rates are over each pair's own."]
    assert found.negative_flips[1][2] == compare(other, short, on_missing="drop").negative_flips


@pytest.mark.parametrize("form", ["memory", "parquet"])
def test_scores_that_are_not_finite_are_refused(form: str, tmp_path: Path) -> None:
    """Here no pass over the scores would find them."""
    one, other = chain(2)
    del other["prediction"]
    logits = np.ones((101, 5), np.float32)
    logits[13, 2] = np.nan
    bad: Any = {**other, "logits": logits}
    if form == "parquet":
        bad = read_predictions(bad).write(tmp_path / "x.parquet").name
    with pytest.raises(InputError, match=f"the logits of id {other['id'][13]} hold NaN"):
        matrix([one, bad])


def test_too_little_for_a_matrix() -> None:
    one, other = chain(2)
    with pytest.raises(InputError, match="at least two versions, 1 came"):
        matrix([one])
    with pytest.raises(InputError, match="a matrix needs labels"):
        matrix([{"id": c["id"], "prediction": c["prediction"]} for c in (one, other)])
    with pytest.raises(InputError, match="confidence must lie between 0 and 1"):
        matrix([one, other], confidence=1.5)
