"""Variances that rows lend each other: what they are drawn towards is found again where it is known."""

import numpy as np
import pytest
from scipy import optimize, special, stats

from flipguard.statistics import moderated_variance
from flipguard.types import InputError


@pytest.mark.parametrize(("prior", "common"), [(3.0, 0.5), (6.0, 7.0)])
def test_the_common_variance_is_found_again(prior: float, common: float) -> None:
    """Tens of thousands of rows, drawn as the paper's model says: each one's variance, and its degrees of freedom."""
    draw = np.random.default_rng(5)
    true = prior * common / draw.chisquare(prior, 60_000)
    own = draw.choice([2, 4], 60_000)
    seen = true * draw.chisquare(own) / own
    variance, freedom = moderated_variance(seen, own)
    drawn = freedom > own
    assert drawn.mean() > 0.999, "hardly any is far out by chance"
    assert np.allclose((freedom - own)[drawn], prior, rtol=0.1)
    assert np.allclose(variance[drawn], ((prior * common + own * seen) / (prior + own))[drawn], rtol=0.1)


def test_the_moments_hold() -> None:
    """Against a solver that knows nothing of Newton's steps."""
    seen, own = np.array([0.1, 2.0, 30.0, 0.004, 5.0]), np.array([2.0, 2.0, 1.0, 4.0, 2.0])
    e = np.log(seen) - special.digamma(own / 2) + np.log(own / 2)
    wanted = np.var(e, ddof=1) - np.mean(special.polygamma(1, own / 2))
    prior = optimize.brentq(lambda d: special.polygamma(1, d / 2) - wanted, 1e-3, 1e3)
    common = np.exp(np.mean(e) + special.digamma(prior / 2) - np.log(prior / 2))
    variance, freedom = moderated_variance(seen, own)
    assert freedom == pytest.approx(np.minimum(own + prior, own.sum()))
    assert variance == pytest.approx((prior * common + own * seen) / (prior + own))


def test_rows_that_scatter_no_more_than_by_chance_have_one_variance() -> None:
    variance, freedom = moderated_variance([1.0, 1.5, 2.0], [2, 2, 4])
    # ψ(1) = -γ and ψ(2) = 1 - γ.
    e = np.log([1.0, 1.5, 2.0]) + np.euler_gamma + [0, 0, np.log(2) - 1]
    assert variance == pytest.approx(np.full(3, np.exp(np.mean(e))))
    assert freedom.tolist() == [8, 8, 8]


def test_a_row_without_spread_has_that_of_the_others_and_one_row_its_own() -> None:
    variance, freedom = moderated_variance([0.0, 1.0, 1.2], [2, 2, 2])
    assert variance[0] > 0
    assert freedom.tolist() == [4, 4, 4]
    for alone in ([0.7], [0.7, 0.0], [0.0, 0.0]):
        variance, freedom = moderated_variance(alone, 2)
        assert variance.tolist() == alone
        assert freedom.tolist() == [2] * len(alone)


def test_its_t_is_students_over_many_rows() -> None:
    """Of rows without an effect, as many are below 5 % as should be."""
    draw = np.random.default_rng(7)
    values = draw.normal(size=(20_000, 3)) * np.sqrt(4 / draw.chisquare(4, (20_000, 1)))
    variance, freedom = moderated_variance(values.var(1, ddof=1), np.full(20_000, 2))
    p = 2 * stats.t.sf(np.abs(values.mean(1)) / np.sqrt(variance / 3), freedom)
    assert np.mean(p < 0.05) == pytest.approx(0.05, abs=0.006)
    alone = stats.ttest_1samp(values, 0, axis=1).pvalue
    assert np.mean(alone < 0.05) == pytest.approx(0.05, abs=0.006)
    shifted = 2 * stats.t.sf(np.abs(values.mean(1) + 3) / np.sqrt(variance / 3), freedom)
    assert np.mean(shifted < 0.05) > np.mean(stats.ttest_1samp(values + 3, 0, axis=1).pvalue < 0.05) + 0.1


def test_no_row_has_more_degrees_of_freedom_than_the_estimate() -> None:
    """Three variances that scatter a little more than by chance, π²/6: by their model 14 each, and they have 6."""
    seen = np.exp([-1.35, 0.0, 1.35])
    assert 0 < np.var(np.log(seen), ddof=1) - np.pi**2 / 6 < 0.2
    variance, freedom = moderated_variance(seen, [2, 2, 2])
    assert variance[0] < variance[1] < variance[2]
    assert freedom.tolist() == [6, 6, 6]


def test_a_row_that_diverged_does_not_widen_the_others() -> None:
    seen = np.array([1.0, 1.4, 0.7, 2.0, 1.1, 0.9, 1.8, 1.2, 0.6, 1.5])
    alone, free = moderated_variance(seen, np.full(10, 2))
    beside, freedom = moderated_variance([*seen, 1e8], np.full(11, 2))
    assert beside[:10] == pytest.approx(alone)
    assert freedom[:10].tolist() == free.tolist()
    assert (beside[10], freedom[10]) == (1e8, 2), "what the others have in common is not its own"


def test_a_row_that_is_far_out_is_as_seldom_taken_for_worse_as_any() -> None:
    """Ten rows that scatter alike and one thirty times as much, without an effect in any."""
    draw, wrong = np.random.default_rng(11), 0
    for _ in range(400):
        values = draw.normal(size=(11, 3)) * np.array([1.0] * 10 + [30.0])[:, None]
        variance, freedom = moderated_variance(values.var(1, ddof=1), np.full(11, 2))
        wrong += 2 * stats.t.sf(abs(values[10].mean()) / np.sqrt(variance[10] / 3), freedom[10]) < 0.05
    assert wrong / 400 < 0.1


@pytest.mark.parametrize(
    ("variance", "freedom"), [([np.nan, 1.0], 2), ([np.inf, 1.0], 2), ([-1.0, 1.0], 2), ([1.0, 1.0], 0), ([[1.0]], 2)]
)
def test_bad_input(variance: list[float], freedom: float) -> None:
    with pytest.raises(InputError, match="for each row"):
        moderated_variance(variance, freedom)
