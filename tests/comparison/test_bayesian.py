"""The rules of Bayesian prediction updates against a sample-by-sample loop in plain probabilities."""

import math

import numpy as np
import pytest

from flipguard.comparison.bayesian import confusion, diagonal, flips, likelihood, update
from flipguard.types import InputError

C, T, N = 7, 4, 199


def chain(seed: int = 0, missing: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Versions that are right 50 to 80 times in a hundred, each wrong in its own way."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, C, N)
    said = np.stack(
        [np.where(rng.random(N) < 0.5 + 0.1 * t, label, (label + rng.integers(1, C, N)) % C) for t in range(T)]
    )
    return np.where(rng.random((T, N)) < missing, -1, said), label


def loop(said: np.ndarray, pis: list[np.ndarray], rule: str, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    stored, final = np.empty_like(said), np.empty((said.shape[1], C))
    for n in range(said.shape[1]):
        p, now = [1 / C] * C, -1
        for t in range(len(said)):
            entropy = -sum(v * math.log(v) for v in p)
            if said[t, n] >= 0:
                p = [v * pis[t][said[t, n], k] for k, v in enumerate(p)]
                p = [v / sum(p) for v in p]
            best = max(range(C), key=lambda k: p[k])
            after = -sum(v * math.log(v) for v in p)
            allowed = {"mb": 1.0, "mbme": 1.0 if after < entropy - 1e-12 else math.inf, "cr": ratio}[rule]
            if now < 0:
                now = said[t, n]
            elif p[best] / p[now] > allowed * (1 + 1e-12):
                now = best
            stored[t, n] = now
        final[n] = p
    return stored, final


@pytest.mark.parametrize("form", ["confusion", "diagonal"])
@pytest.mark.parametrize(("rule", "ratio"), [("mb", 5.0), ("mbme", 5.0), ("cr", 2.0), ("cr", 5.0), ("cr", 10.0)])
def test_rules_by_a_loop(rule: str, ratio: float, form: str) -> None:
    said, label = chain(missing=0.05)
    pis = [likelihood(version, label, C, form) for version in said]  # type: ignore[arg-type]
    done = update(said, pis, rule=rule, cost_ratio=ratio, posteriors=True)  # type: ignore[arg-type]
    stored, final = loop(said, pis, rule, ratio)
    np.testing.assert_array_equal(done.stored, stored)
    assert done.log_posterior is not None
    np.testing.assert_allclose(np.exp(done.log_posterior), final, rtol=1e-9)
    assert (done.stored != said).any()


def test_a_tie_keeps_what_is_stored() -> None:
    """p(best)/p(stored) must exceed the ratio: at exactly 1.5 nothing changes, above it the best is stored."""
    flat = np.full((2, 2), 0.5)
    for right, kept in ((0.75, 0), (0.8, 1)):
        second = np.array([[0.5, 1 - right], [0.5, right]])
        done = update(np.array([[0], [1]]), [flat, second], rule="cr", cost_ratio=1.5)
        assert done.stored[-1, 0] == kept


def test_more_rows_than_a_block_are_the_same_rows() -> None:
    said, label = chain()
    pis = [likelihood(version, label, C) for version in said]
    many = np.tile(said, 97)
    assert many.shape[1] > 8192
    done = update(many, pis, posteriors=True)
    one = update(said, pis, posteriors=True)
    np.testing.assert_array_equal(done.stored, np.tile(one.stored, 97))
    assert done.log_posterior is not None
    assert done.log_posterior.shape == (97 * N, C)


def test_a_dearer_flip_means_fewer_of_both_kinds() -> None:
    said, label = chain()
    pis = [likelihood(version, label, C) for version in said]
    found = [flips(update(said, pis, cost_ratio=c).stored, label) for c in (1.0, 2.0, 5.0, 10.0, 1e6)]
    plain = flips(said, label)
    assert plain.negative > found[0].negative >= found[1].negative >= found[2].negative >= found[3].negative
    assert found[-1].negative == found[-1].positive == 0
    assert found[-1].positive_per_negative is None
    assert found[2].negative_flip_rate == found[2].negative / (N * (T - 1))


def test_confusion_matrices() -> None:
    said, label = chain(missing=0.1)
    pi = confusion(said[0], label, C)
    assert pi.sum(axis=0) == pytest.approx(np.ones(C))
    there = said[0] >= 0
    for i in range(C):
        for k in range(C):
            count = int((there & (said[0] == i) & (label == k)).sum())
            assert pi[i, k] == pytest.approx((count + 1 / C) / (int((there & (label == k)).sum()) + 1))
    spread = diagonal(said[0], label, C)
    assert spread.sum(axis=0) == pytest.approx(np.ones(C))
    off = spread.copy()
    np.fill_diagonal(off, np.nan)
    assert np.nanstd(off, axis=0) == pytest.approx(np.zeros(C), abs=1e-12)
    np.testing.assert_array_equal(likelihood(said[0], label, C), pi)
    np.testing.assert_array_equal(likelihood(said[0, :48], label[:48], C), diagonal(said[0, :48], label[:48], C))


def test_refusals() -> None:
    said, label = chain()
    pis = [likelihood(version, label, C) for version in said]
    with pytest.raises(InputError, match="the rule must be one of mb, mbme, cr, not 'map'"):
        update(said, pis, rule="map")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="cost ratio must be at least 1"):
        update(said, pis, cost_ratio=0.5)
    with pytest.raises(InputError, match="likelihood must be one of"):
        likelihood(said[0], label, C, "full")  # type: ignore[arg-type]
