"""Per-sample scores against torch, scikit-learn and torchmetrics, and at the edges of what floats hold."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from flipguard.metrics import (
    ece_new,
    ece_old,
    logit_displacement_per_sample,
    negative_log_likelihood,
    nll_new,
    nll_old,
    prediction_confidence_per_sample,
    predictive_entropy_per_sample,
    rank_per_sample,
    score_rows,
    surrogate_churn_per_sample,
    tally,
    top_probability_per_sample,
)
from flipguard.types import InputError

N, C = 307, 11
Kind = Callable[[np.ndarray], Any]
KINDS: list[Kind] = [np.asarray, torch.from_numpy]


@pytest.fixture
def logits() -> np.ndarray:
    return 3 * np.random.default_rng(0).normal(size=(2, N, C))


@pytest.fixture
def label() -> np.ndarray:
    return np.random.default_rng(1).integers(0, C, N)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_one_model_equal_torch(kind: Kind, logits: np.ndarray, label: np.ndarray) -> None:
    z = torch.from_numpy(logits[0])
    p = z.softmax(1)
    top, second = p.topk(2).values.T
    close = np.testing.assert_allclose
    cross_entropy = torch.nn.functional.cross_entropy(z, torch.from_numpy(label), reduction="none")
    close(negative_log_likelihood(kind(logits[0]), kind(label)), cross_entropy)
    close(top_probability_per_sample(kind(logits[0])), top)
    close(prediction_confidence_per_sample(kind(logits[0])), top - second)
    close(predictive_entropy_per_sample(kind(logits[0])), torch.distributions.Categorical(p).entropy())


@pytest.mark.parametrize("kind", KINDS)
def test_scores_of_a_pair_equal_torch(kind: Kind, logits: np.ndarray, label: np.ndarray) -> None:
    old, new = torch.from_numpy(logits)
    close = np.testing.assert_allclose
    close(logit_displacement_per_sample(kind(logits[0]), kind(logits[1])), torch.linalg.vector_norm(old - new, dim=1))
    order = old.argsort(dim=1, descending=True)
    expected = (order == torch.from_numpy(label)[:, None]).int().argmax(1) + 1
    np.testing.assert_array_equal(rank_per_sample(kind(logits[0]), kind(label)), expected)


def test_surrogate_churn_tends_to_churn(logits: np.ndarray) -> None:
    differ = logits[0].argmax(1) != logits[1].argmax(1)
    assert 0.1 < differ.mean() < 0.99
    far = surrogate_churn_per_sample(logits[0], logits[1], alpha=1e7)
    np.testing.assert_allclose(far, differ, atol=1e-9)
    near = surrogate_churn_per_sample(logits[0], logits[1], alpha=1.0)
    assert np.abs(near - differ).max() > 0.1


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_surrogate_churn_may_exceed_one_and_reaches_half_the_classes(classes: int) -> None:
    """All classes but one as probable as each other, against that one alone: each class adds a half."""
    last = np.where(np.arange(classes) == classes - 1, 200.0, 0.0)[None]
    np.testing.assert_allclose(surrogate_churn_per_sample(last, 200.0 - last), classes / 2, rtol=1e-12)


def test_calibration_and_likelihood_equal_torchmetrics_and_sklearn(logits: np.ndarray, label: np.ndarray) -> None:
    t = tally(label, None, None, old_logits=logits[0], new_logits=logits[1])
    for z, ece, nll in zip(logits, (ece_old, ece_new), (nll_old, nll_new), strict=True):
        p = torch.from_numpy(z).softmax(1)
        expected = multiclass_calibration_error(p, torch.from_numpy(label), num_classes=C, n_bins=15, norm="l1")
        assert ece(t) == pytest.approx(expected.item(), abs=1e-6)
        assert nll(t) == pytest.approx(log_loss(label, p.numpy(), labels=range(C)), rel=1e-9)


@pytest.mark.parametrize("classes", [1, 3, 5, 15])
def test_a_probability_on_an_edge_belongs_to_the_bin_below(classes: int) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        t = tally([0], None, [0], old_logits=np.zeros((1, classes), dtype=dtype))
        assert t.models is not None
        assert t.models.bins[0, :, 0].nonzero()[0].tolist() == [15 // classes - 1]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_huge_logits_stay_finite(kind: Kind, dtype: type) -> None:
    old = np.array([[1e4, -1e4, 0.0], [-1e4, 1e4, -1e4]], dtype=dtype)
    rows = score_rows(
        kind(np.array([1, 1])),
        None,
        None,
        old_logits=kind(old),
        new_logits=kind(old[:, ::-1].copy()),
        temperature=(0.01, 9.0),
    )
    assert rows.models is not None
    assert rows.calibrated is not None
    assert rows.nll is not None
    for scores in (rows.models, rows.calibrated):
        for value in vars(scores).values():
            assert np.isfinite(np.asarray(value)).all()
    np.testing.assert_allclose(np.asarray(rows.nll)[:, 0], [2e4, 0.0], rtol=1e-3)
    np.testing.assert_allclose(rows.displacement, np.linalg.norm(old.astype(float) - old[:, ::-1], axis=1), rtol=1e-6)


def test_a_confident_row_keeps_the_digits_of_its_loss() -> None:
    loss = negative_log_likelihood(np.array([[20.0, 0.0]], dtype=np.float32), [0])
    np.testing.assert_allclose(loss, np.log1p(np.exp(-20.0)), rtol=1e-6)


def test_ties_go_to_the_first_class() -> None:
    z = np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]])
    for kind in KINDS:
        rows = score_rows(kind(np.array([1, 0])), None, None, old_logits=kind(z), new_logits=kind(z))
        assert rows.outcome.tolist() == [0, 0]
    np.testing.assert_allclose(prediction_confidence_per_sample(z), 0.0, atol=1e-15)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_finite_have_no_scores(kind: Kind) -> None:
    z = np.array([[2.0, 1.0], [np.nan, 1.0], [-np.inf, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
    rows = score_rows(kind(np.zeros(5, dtype=int)), None, kind(np.zeros(5, dtype=int)), old_logits=kind(z))
    assert rows.models is not None
    assert rows.models.scored[:, 0].tolist() == [True, False, False, False, False]
    assert not rows.models.scored[:, 1].any()
    assert rows.missing[:, 0].tolist() == [False, True, False, False, True]
    assert rows.outcome.tolist() == [0, 2, 2, 0, 2]
    t = rows.tally().numpy()
    assert t.models is not None
    assert t.models.n.tolist() == [1, 0]
    assert t.models.labelled.tolist() == [1, 0]
    np.testing.assert_allclose(t.models.nll, [np.log1p(np.exp(-1.0)), 0.0])


def test_labels_outside_the_classes_have_no_loss() -> None:
    loss = negative_log_likelihood(np.zeros((3, 2)), [0, 2, -1])
    np.testing.assert_allclose(loss, [np.log(2.0), np.nan, np.nan])


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(InputError, match=r"shape \(rows, classes\).*got \(3,\)"):
        predictive_entropy_per_sample(np.zeros(3))
    with pytest.raises(InputError, match="logits 3, label 2"):
        negative_log_likelihood(np.zeros((3, 2)), [0, 1])
    with pytest.raises(InputError, match=r"mixture \(numpy, torch\)"):
        negative_log_likelihood(np.zeros((2, 2)), torch.tensor([0, 1]))
