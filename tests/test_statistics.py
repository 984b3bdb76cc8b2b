"""The statistics against enumeration, against scipy.stats, and at their edges."""

import numpy as np
import pytest
from scipy import stats

from flipguard import statistics as st
from flipguard.types import InputError


def covers(interval, truth):
    return (interval.low <= truth) & (truth <= interval.high)


# Rates


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 7, 23])
def test_clopper_pearson_covers_every_rate_at_least_as_often_as_it_says(n, confidence):
    rate = np.linspace(0.001, 0.999, 499)[:, None]
    x = np.arange(n + 1)
    coverage = (stats.binom.pmf(x, n, rate) * covers(st.clopper_pearson(x, n, confidence=confidence), rate)).sum(axis=1)
    assert coverage.min() >= confidence - 1e-12
    assert coverage.min() < 1 - 1e-6


@pytest.mark.parametrize(("x", "n"), [(0, 5), (3, 11), (11, 11), (17, 1009), (999_983, 10**9)])
def test_clopper_pearson_equals_scipy(x, n):
    low, high = st.clopper_pearson(x, n, confidence=0.9)
    reference = stats.binomtest(x, n).proportion_ci(0.9, method="exact")
    assert low == pytest.approx(reference.low, rel=1e-9, abs=1e-15)
    assert high == pytest.approx(reference.high, rel=1e-9)


def test_clopper_pearson_works_on_groups_and_mirrors():
    x, n = np.array([[0, 2, 3], [5, 7, 0]]), np.array([[3, 5, 3], [7, 11, 0]])
    low, high = st.clopper_pearson(x, n)
    assert low.shape == high.shape == (2, 3)
    assert (low[1, 2], high[1, 2]) == (0.0, 1.0)
    assert (low[0, 0], high[0, 2]) == (0.0, 1.0)
    other = st.clopper_pearson(n - x, n)
    np.testing.assert_allclose(low, 1 - other.high, atol=1e-12)
    assert isinstance(st.clopper_pearson(1, 3).low, float)


@pytest.mark.parametrize(("x", "n"), [(4, 3), (-1, 3), (float("nan"), 3)])
def test_clopper_pearson_refuses_impossible_counts(x, n):
    with pytest.raises(InputError, match="between 0 and trials"):
        st.clopper_pearson(x, n)


@pytest.mark.parametrize("confidence", [0, 1, 95])
def test_a_confidence_outside_its_range_is_refused(confidence):
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        st.clopper_pearson(1, 3, confidence=confidence)


def test_clustered_rate_of_single_samples_is_clopper_pearson():
    flips = np.zeros((2, 101))
    flips[0, :13] = 1
    got, exact = st.clustered_rate(flips, np.ones_like(flips)), st.clopper_pearson([13, 0], 101)
    np.testing.assert_allclose(got.low, exact.low, atol=1e-12)
    np.testing.assert_allclose(got.high, exact.high, atol=1e-12)


def test_clustered_rate_of_identical_samples_counts_clusters_not_samples():
    """Seven copies of every sample carry no more than one: the interval is that of the clusters, up to Student's t."""
    flips = np.zeros(101)
    flips[:13] = 1
    got = st.clustered_rate(7 * flips, np.full(101, 7))
    one_each, seven_each = st.clopper_pearson(13, 101), st.clopper_pearson(91, 707)
    assert got.low == pytest.approx(one_each.low, abs=0.002)
    assert got.high == pytest.approx(one_each.high, abs=0.002)
    assert got.high - got.low > 2 * (seven_each.high - seven_each.low)


def test_clustered_rate_at_its_edges():
    assert tuple(st.clustered_rate([3], [7])) == (0.0, 1.0)
    assert tuple(st.clustered_rate([0, 0], [0, 0])) == (0.0, 1.0)
    low, high = st.clustered_rate([0, 0, 0], [5, 7, 11])
    assert low == 0.0
    assert st.clopper_pearson(0, 23).high < high < 1.0
    capped = st.clustered_rate([0] * 50, [7] * 50, at_most=50)
    assert capped.high > st.clustered_rate([0] * 50, [7] * 50).high
    assert capped.high == pytest.approx(st.clopper_pearson(0, 50).high, rel=0.06)
    empty_too = st.clustered_rate([1, 0, 2, 0], [5, 7, 11, 0])
    assert tuple(empty_too) == pytest.approx(tuple(st.clustered_rate([1, 0, 2], [5, 7, 11])))


def test_weighted_rate_does_not_depend_on_the_weights_scale_and_widens_with_their_spread():
    rng = np.random.default_rng(0)
    weight, success = rng.lognormal(0, 0.8, 997), np.arange(997) % 11 == 0

    def interval(w):
        return st.weighted_rate(w[success].sum(), (w[success] ** 2).sum(), w.sum(), (w**2).sum())

    assert tuple(interval(weight)) == pytest.approx(tuple(interval(5 * weight)), rel=1e-12)
    plain, uneven = interval(np.ones(997)), interval(weight)
    exact = st.clopper_pearson(success.sum(), 997)
    assert tuple(plain) == pytest.approx(tuple(exact), rel=1e-9)
    assert uneven.high - uneven.low > 1.2 * (plain.high - plain.low)
    assert tuple(st.weighted_rate(0, 0, 0, 0)) == (0.0, 1.0)
    assert tuple(st.weighted_rate(0, 0, 10, 10)) == pytest.approx(tuple(st.clopper_pearson(0, 10)))


# Covariances


def linearised(y, p):
    """Covariance by a loop over the rows of y: what row i moves p by, squared and summed."""
    total = y.sum()
    cov = np.zeros((p.size, p.size))
    for row in y:
        u = (row - row.sum() * p) / total
        cov += np.outer(u, u)
    return cov


def test_covariances_equal_a_loop_over_samples_and_over_clusters():
    rng = np.random.default_rng(1)
    outcome, weight = rng.integers(0, 5, 101), rng.gamma(2, size=101)
    rows = np.eye(5)[outcome]
    count = rows.sum(axis=0)
    np.testing.assert_allclose(st.multinomial_covariance(count), linearised(rows, count / 101), atol=1e-15)
    weighted = rows * weight[:, None]
    share = weighted.sum(axis=0) / weight.sum()
    got = st.weighted_covariance(weighted.sum(axis=0), (weighted**2).sum(axis=0))
    np.testing.assert_allclose(got, linearised(weighted, share), atol=1e-15)
    table = rng.integers(0, 7, (13, 5)).astype(float)
    expected = 13 / 12 * linearised(table, table.sum(axis=0) / table.sum())
    np.testing.assert_allclose(st.clustered_covariance(table), expected, atol=1e-15)


def test_covariances_work_on_groups_and_say_nan_where_nothing_is_known():
    count = np.array([[3, 5, 7], [0, 0, 0]])
    got = st.multinomial_covariance(count)
    assert got.shape == (2, 3, 3)
    np.testing.assert_array_equal(got[0], st.multinomial_covariance(count[0]))
    assert np.isnan(got[1]).all()
    assert np.isnan(st.weighted_covariance([0, 0], [0, 0])).all()
    assert np.isnan(st.clustered_covariance([[3, 4], [0, 0]])).all()
    with pytest.raises(InputError, match="not negative"):
        st.multinomial_covariance([3, -1])


def test_effective_trials_is_the_number_of_samples_or_of_identical_clusters():
    count = np.array([71, 3, 5, 0, 11])
    assert st.effective_trials(count / 90, st.multinomial_covariance(count)) == pytest.approx(90)
    table = 7 * np.eye(5)[np.repeat(np.arange(5), count)]
    share = count / 90
    assert st.effective_trials(share, st.clustered_covariance(table)) == pytest.approx(90 * 89 / 90)


def test_linear_variance_is_that_of_the_difference():
    count = np.array([71, 3, 5, 2, 11])
    p = count / count.sum()
    got = st.linear_variance(st.multinomial_covariance(count), [0, 1, -1, 0, 0])
    assert got == pytest.approx((p[1] + p[2] - (p[1] - p[2]) ** 2) / count.sum())
