"""Fitted temperatures against a general optimiser, and at the ends of the range."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from flipguard.metrics import cnll_old, fit_temperature, negative_log_likelihood, nll_old, tally
from flipguard.types import InputError

N, C = 10_007, 7


def sample(scale: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn from the softmax of some logits, and these logits times a scale."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(N, C))
    label = (z + rng.gumbel(size=(N, C))).argmax(1)
    return scale * z, label


@pytest.mark.parametrize("scale", [0.07, 0.5, 1.0, 3.0, 40.0])
def test_is_the_minimum_of_the_loss(scale: float) -> None:
    logits, label = sample(scale)
    found = minimize_scalar(
        lambda tau: negative_log_likelihood(logits / tau, label).mean(),
        bounds=(scale / 3, scale * 3),
        method="bounded",
        options={"xatol": 1e-9 * scale},
    )
    assert fit_temperature(logits, label) == pytest.approx(found.x, rel=1e-5)
    assert fit_temperature(logits, label) == pytest.approx(scale, rel=0.05)


def test_torch_and_half_precision_agree() -> None:
    logits, label = sample(3.0)
    expected = fit_temperature(logits, label)
    assert fit_temperature(torch.from_numpy(logits), torch.from_numpy(label)) == pytest.approx(expected, rel=1e-9)
    assert fit_temperature(logits.astype(np.float16), label) == pytest.approx(expected, rel=1e-3)


def test_the_fit_lowers_the_calibrated_loss() -> None:
    logits, label = sample(3.0)
    tau = fit_temperature(logits[: N // 2], label[: N // 2])
    t = tally(label, None, label, old_logits=logits, temperature=(tau, 1.0))
    assert cnll_old(t) < nll_old(t) - 0.1
    same = tally(label, None, label, old_logits=logits, temperature=(1.0, 1.0))
    assert cnll_old(same) == pytest.approx(nll_old(same), rel=1e-12)


def test_rows_without_a_label_or_finite_logits_are_left_out() -> None:
    logits, label = sample(2.0)
    expected = fit_temperature(logits[7:], label[7:])
    label[:3] = [-1, C, C + 4]
    logits[3:7, 0] = [np.nan, np.inf, -np.inf, np.nan]
    assert fit_temperature(logits, label) == expected


def test_the_ends_of_the_range() -> None:
    right = np.array([[9.0, 0.0], [0.0, 5.0]])
    assert fit_temperature(right, [0, 1]) == pytest.approx(0.01)
    assert fit_temperature(right, [1, 0]) == pytest.approx(100.0)
    with pytest.raises(InputError, match="at least one row"):
        fit_temperature(right, [-1, -1])
