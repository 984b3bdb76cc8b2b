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


def test_a_clustered_p_value_is_the_intervals_and_never_below_the_exact_one():
    rng, found = np.random.default_rng(17), 0
    for _ in range(200):
        clusters = rng.multinomial(rng.integers(1, 8), rng.dirichlet([20, 1, 1.5, 2, 1]), size=rng.integers(2, 61))
        count, covariance = clusters.sum(axis=0), st.clustered_covariance(clusters)
        n, degrees = count.sum(), len(clusters) - 1
        p = st.mcnemar_from_covariance(count / n, covariance, n, degrees_of_freedom=degrees)
        exact = st.mcnemar_exact(count[1], count[2])
        assert exact <= p * (1 + 1e-9) <= 1 + 1e-9
        if exact * (1 + 1e-9) < p < 0.99:
            for confidence, holds in ((1 - 1.001 * p, False), (1 - 0.999 * p, True)):
                options = {"degrees_of_freedom": degrees, "confidence": confidence}
                low, high = st.error_difference_from_covariance(count / n, covariance, n, **options)
                assert (low <= 0 <= high) == holds
                found += 1
    assert found > 100


def test_a_clustered_p_value_at_its_edges():
    count = np.array([80, 6, 4, 7, 3]) / 100
    plain = st.multinomial_covariance(100 * count)
    assert st.mcnemar_from_covariance(count, plain, 100) == pytest.approx(st.mcnemar_exact(6, 4))
    found = [st.mcnemar_from_covariance([0.8, 0.16, 0.04, 0, 0], plain * 0 + times, 100) for times in (np.nan,)]
    assert np.isnan(found).all()
    assert st.mcnemar_from_covariance([0.9, 0, 0, 0.1, 0], st.multinomial_covariance([9, 0, 0, 1, 0]), 10) == 1
    many = st.mcnemar_from_covariance(np.stack([count, count]), np.stack([plain, 9 * plain]), [100, 100])
    assert many[0] < many[1]


# Two shares together


@pytest.mark.parametrize("factors", [(5, -1), (1, 2), (0.2, -1), (-1, 5), (0, -1), (-2, -3)])
def test_two_shares_together_by_a_loop(factors):
    """Against the formula written out; ends inside what the sum can be, and swapped sides give the same."""
    z = stats.norm.ppf(0.975)
    for x, y, n in ((3, 11, 101), (0, 7, 59), (5, 0, 13), (0, 0, 50), (13, 0, 13), (3, 4, 7)):
        value, squares, cross = 0.0, [0.0, 0.0], [1.0, 1.0]
        for factor, part in zip(factors, (x, y), strict=True):
            p = part / n
            centre, reach = (p + z * z / 2 / n), z * np.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
            ends = sorted(factor * (centre + side * reach) / (1 + z * z / n) for side in (-1, 1))
            value += factor * p
            for end in (0, 1):
                squares[end] += (ends[end] - factor * p) ** 2
                cross[end] *= abs(ends[end] - factor * p)
        room = (n - x) * (n - y)
        correlation = -np.sign(factors[0] * factors[1]) * (np.sqrt(min(x * y / room, 1)) if room else 1.0)
        reach = [np.sqrt(max(squares[end] + 2 * correlation * cross[end], 0)) for end in (0, 1)]
        low, high = st.combined_shares(x, y, n, factors=factors)
        assert low == pytest.approx(max(value - reach[0], min(0, *factors)), abs=1e-12)
        assert high == pytest.approx(min(value + reach[1], max(0, *factors)), abs=1e-12)
        assert st.combined_shares(y, x, n, factors=factors[::-1]) == pytest.approx((low, high))
    assert st.combined_shares(0, 0, 0, factors=factors) == (min(0, *factors), max(0, *factors))
    with pytest.raises(InputError, match="first \\+ second"):
        st.combined_shares(6, 6, 11, factors=factors)


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
