"""Paired quantities, tests, sample sizes, means, calibration and the noise floor: enumeration, scipy.stats, edges."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from flipguard import statistics as st
from flipguard.types import InputError

COUNTS = [[80, 6, 4, 7, 3], [997, 0, 0, 3, 0], [50, 11, 0, 0, 2], [0, 0, 7, 5, 1], [313, 1, 29, 17, 5]]


def tables(n, cells):
    """Every way to spread n samples over the cells."""
    bars = itertools.combinations(range(n + cells - 1), cells - 1)
    return np.array([np.diff([-1, *bar, n + cells - 1]) - 1 for bar in bars])


def multinomial_probability(count, p):
    return np.exp(
        special.gammaln(count.sum(axis=1) + 1) + (special.xlogy(count, p) - special.gammaln(count + 1)).sum(axis=1)
    )


def relative(count):
    a, b, c, d, e = (np.asarray(count, dtype=float)[..., k] for k in range(5))
    n = a + b + c + d + e
    return (b / n) / ((a + b) / n * ((b + d + e) / n))


# Error difference


def tango_accepts(delta, b, c, n, z):
    """The score test by numerical maximisation: q is the best positive flip rate given the difference."""
    q = np.linspace(max(0, -delta), (1 - delta) / 2, 400_001)[1:-1]
    likelihood = special.xlogy(b, q + delta) + special.xlogy(c, q) + special.xlogy(n - b - c, 1 - 2 * q - delta)
    best = q[np.nanargmax(likelihood)]
    return abs(b - c - n * delta) <= z * np.sqrt(n * (2 * best + delta * (1 - delta)))


@pytest.mark.parametrize(("b", "c", "n"), [(7, 3, 61), (1, 13, 101), (5, 5, 29), (40, 2, 71)])
def test_error_difference_ends_where_the_score_test_begins_to_reject(b, c, n):
    low, high = st.error_difference(b, c, n)
    z = stats.norm.ppf(0.975)
    for end, inwards in ((low, 1e-4), (high, -1e-4)):
        assert tango_accepts(end + inwards, b, c, n, z)
        assert not tango_accepts(end - inwards, b, c, n, z)


def test_error_difference_covers_close_to_its_level_by_enumeration():
    """All tables of 40 samples: exact coverage, between 92 % and 100 % where flips are rare, 95 % on average."""
    count = tables(40, 3)
    interval = st.error_difference(count[:, 0], count[:, 1], 40)
    coverage = []
    for p in ([0.02, 0.05], [0.1, 0.1], [0.2, 0.05], [0.3, 0.3], [0.15, 0.25]):
        probability = multinomial_probability(count, np.array([*p, 1 - sum(p)]))
        truth = p[0] - p[1]
        coverage.append(probability[(interval.low <= truth) & (truth <= interval.high)].sum())
    assert min(coverage) > 0.92
    assert 0.94 < np.mean(coverage) < 0.97


def test_error_difference_holds_its_estimate_and_is_negated_by_swapping_the_models():
    b, c = np.divmod(np.arange(11 * 13), 13)
    interval, swapped = st.error_difference(b, c, 23), st.error_difference(c, b, 23)
    assert np.all(interval.low <= (b - c) / 23 + 1e-12)
    assert np.all((b - c) / 23 <= interval.high + 1e-12)
    np.testing.assert_allclose(interval.low, -swapped.high, atol=1e-12)
    assert np.all(interval.high - interval.low > 0.01)
    assert tuple(st.error_difference(0, 0, 0)) == (-1.0, 1.0)
    low, high = st.error_difference(0, 7, 7)
    assert low == pytest.approx(-1.0)
    assert -1.0 < high < 0.0
    with pytest.raises(InputError, match=r"negative \+ positive"):
        st.error_difference(5, 7, 11)


def test_error_difference_is_wald_for_large_counts():
    b, c, n = 2_000_000, 1_900_000, 10**8
    low, high = st.error_difference(b, c, n)
    reach = stats.norm.ppf(0.975) * np.sqrt(b + c - (b - c) ** 2 / n) / n
    assert (low, high) == pytest.approx(((b - c) / n - reach, (b - c) / n + reach), rel=1e-4)


# Relative negative flip rate


def test_relative_rate_holds_its_estimate_everywhere():
    count = tables(11, 5)
    low, high = st.relative_negative_flip_rate(count)
    known = (count[:, 0] + count[:, 1] > 0) & (count[:, 1] + count[:, 3] + count[:, 4] > 0)
    assert np.all(low[~known] == 0)
    assert np.all(np.isinf(high[~known]))
    value = relative(count[known])
    assert np.all(np.isfinite(high[known]))
    assert np.all(low[known] <= value + 1e-12)
    assert np.all(value <= high[known] + 1e-12)
    assert np.all(low[known][value == 0] == 0)
    assert np.all(high[known][value == 0] > 0)


def test_relative_rate_covers_close_to_its_level_by_enumeration():
    count = tables(60, 4)
    five = np.column_stack([count, np.zeros(len(count), dtype=int)])
    low, high = st.relative_negative_flip_rate(five)
    coverage = []
    for p in ([0.6, 0.1, 0.1, 0.2], [0.5, 0.05, 0.15, 0.3], [0.4, 0.2, 0.2, 0.2], [0.7, 0.1, 0.1, 0.1]):
        truth = relative([*p, 0])
        coverage.append(multinomial_probability(count, np.array(p))[(low <= truth) & (truth <= high)].sum())
    assert min(coverage) > 0.935
    assert max(coverage) < 0.975


def test_relative_rate_is_the_delta_method_for_large_counts():
    count = 10_000 * np.array([850, 20, 35, 60, 35])
    p = count / count.sum()
    gradient = np.array([(relative(p + h) - relative(p - h)) / 2e-7 for h in 1e-7 * np.eye(5)])
    # `relative` divides by the sum, which the simplex fixes at 1; so do the covariance's rows.
    reach = stats.norm.ppf(0.975) * np.sqrt(st.linear_variance(st.multinomial_covariance(count), gradient))
    low, high = st.relative_negative_flip_rate(count)
    assert (low, high) == pytest.approx((relative(p) - reach, relative(p) + reach), rel=1e-3)


def test_relative_rate_merges_the_two_ways_of_both_being_wrong():
    first, second = st.relative_negative_flip_rate([80, 6, 4, 7, 3]), st.relative_negative_flip_rate([80, 6, 4, 0, 10])
    assert tuple(first) == pytest.approx(tuple(second), rel=1e-12)
    with pytest.raises(InputError, match="five labelled outcomes"):
        st.relative_negative_flip_rate([80, 6, 4, 7])


@pytest.mark.parametrize("count", COUNTS)
def test_covariance_forms_collapse_to_the_forms_for_counts(count):
    count = np.array(count)
    n = count.sum()
    share, covariance = count / n, st.multinomial_covariance(count)
    got = st.error_difference_from_covariance(share, covariance, n)
    assert tuple(got) == pytest.approx(tuple(st.error_difference(count[1], count[2], n)), rel=1e-6)
    got = st.relative_negative_flip_rate_from_covariance(share, covariance, n)
    assert tuple(got) == pytest.approx(tuple(st.relative_negative_flip_rate(count)), rel=1e-6)


@pytest.mark.parametrize("form", [st.error_difference_from_covariance, st.relative_negative_flip_rate_from_covariance])
def test_covariance_forms_widen_with_clustering_and_with_fewer_degrees_of_freedom(form):
    outcome = np.repeat(np.arange(5), [80, 6, 4, 7, 3])
    share = np.bincount(outcome) / 100
    covariance = st.clustered_covariance(7 * np.eye(5)[outcome])
    once, many = form(share, covariance, 100), form(share, covariance, 700)
    assert tuple(many) == pytest.approx(tuple(once), rel=0.02)
    few = form(share, covariance, 700, degrees_of_freedom=5)
    assert few.low < many.low < many.high < few.high
    independent = form(share, st.multinomial_covariance(np.bincount(outcome) * 7), 700)
    assert many.low < independent.low < independent.high < many.high


def test_covariance_forms_take_groups_and_know_nothing_of_a_single_cluster():
    count = np.array([[80, 6, 4, 7, 3], [70, 0, 0, 20, 10]])
    share, covariance = count / 100, st.multinomial_covariance(count)
    low, high = st.error_difference_from_covariance(share, covariance, np.array([100, 100]))
    assert low.shape == high.shape == (2,)
    assert high[1] == pytest.approx(st.error_difference(0, 0, 100).high)
    copied = st.clustered_covariance(7 * np.eye(5)[np.repeat(np.arange(5), count[1])])
    got = st.error_difference_from_covariance(share[1], copied, 700)
    assert got.high == pytest.approx(st.error_difference(0, 0, 99).high), "without flips, as many as the clusters"
    single = st.clustered_covariance(count[:1])
    assert tuple(st.error_difference_from_covariance(share[0], single, 100)) == (-1.0, 1.0)
    assert tuple(st.relative_negative_flip_rate_from_covariance(share[0], single, 100)) == (0.0, np.inf)
