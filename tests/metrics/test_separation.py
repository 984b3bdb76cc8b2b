"""Entropy and separation of out-of-distribution samples, against loops and scikit-learn."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from flipguard.metrics import auroc, predictive_entropy, predictive_entropy_per_sample
from flipguard.types import InputError

N, M, C = 53, 31, 7

both = pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])


def scores(digits: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(0, 1, N).round(digits), rng.normal(0.7, 1, M).round(digits)


@both
@pytest.mark.parametrize("digits", [12, 0])
def test_auroc_as_scikit_learn_and_a_loop_have_it(kind: Any, digits: int) -> None:
    inside, outside = scores(digits)
    found = auroc(kind(inside), kind(outside))
    truth = np.concatenate([np.zeros(N), np.ones(M)])
    assert found == pytest.approx(roc_auc_score(truth, np.concatenate([inside, outside])), abs=1e-12)
    pairs = [1.0 if o > i else 0.5 if o == i else 0.0 for i in inside for o in outside]
    assert found == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_auroc_knows_only_the_order() -> None:
    inside, outside = scores()
    assert auroc(np.exp(inside), np.exp(outside)) == auroc(inside, outside)
    assert auroc(outside, inside) == pytest.approx(1 - auroc(inside, outside))
    assert auroc(inside, inside) == 0.5
    assert auroc(inside, inside.max() + np.ones(M)) == 1.0
    assert auroc(inside, outside[::-1]) == auroc(inside[::-1], outside)


@both
def test_predictive_entropy_by_a_loop(kind: Any) -> None:
    logits = np.random.default_rng(1).normal(0, 3, (N, C))
    rows = []
    for row in logits:
        p = np.exp(row) / np.exp(row).sum()
        rows.append(-sum(v * math.log(v) for v in p))
    assert predictive_entropy(kind(logits)) == pytest.approx(sum(rows) / N)
    broken = logits.copy()
    broken[3, 2] = np.nan
    assert predictive_entropy(kind(broken)) == pytest.approx((sum(rows) - rows[3]) / (N - 1))


def test_unsure_of_what_is_new() -> None:
    rng = np.random.default_rng(2)
    sure, unsure = rng.normal(0, 5, (N, C)), rng.normal(0, 1, (M, C))
    assert predictive_entropy(unsure) > predictive_entropy(sure)
    assert auroc(predictive_entropy_per_sample(sure), predictive_entropy_per_sample(unsure)) > 0.9


def test_refusals() -> None:
    with pytest.raises(InputError, match="inside must hold at least one score"):
        auroc([], [1.0])
    with pytest.raises(InputError, match="outside must hold at least one score, all of them finite"):
        auroc([1.0], [math.nan])
    with pytest.raises(InputError, match="one-dimensional"):
        auroc([[1.0]], [1.0])
    with pytest.raises(InputError, match="no row can be measured"):
        predictive_entropy([[math.nan, 0.0]])
