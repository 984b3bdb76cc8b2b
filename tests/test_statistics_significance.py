"""Tests, sample sizes, means, calibration and the noise floor: against scipy.stats, enumeration, and at their edges."""

import numpy as np
import pytest
from scipy import special, stats

from flipguard import statistics as st
from flipguard.types import InputError


def test_mcnemar_equals_the_binomial_summed_by_hand():
    for b in range(9):
        for c in range(9):
            terms = [special.comb(b + c, k) / 2 ** (b + c) for k in range(min(b, c) + 1)]
            assert st.mcnemar_exact(b, c) == pytest.approx(min(1.0, 2 * sum(terms)), rel=1e-12)
    assert st.mcnemar_exact(0, 0) == 1.0


def test_mcnemar_equals_scipy_and_is_symmetric():
    b, c = np.array([0, 3, 17, 101]), np.array([[5], [29], [97]])
    got = st.mcnemar_exact(b, c)
    assert got.shape == (3, 4)
    for (i, j), p in np.ndenumerate(got):
        assert p == pytest.approx(stats.binomtest(int(b[j]), int(b[j] + c[i, 0])).pvalue, rel=1e-10)
    np.testing.assert_array_equal(got, st.mcnemar_exact(c, b))
    with pytest.raises(InputError, match="must not be below 0"):
        st.mcnemar_exact(-1, 3)


@pytest.mark.parametrize(("b", "c"), [(10**8, 10**8 + 40_000), (10**8, 10**8 + 300_000), (100, 1000), (0, 1000)])
def test_mcnemar_is_right_for_huge_counts_and_tiny_p(b, c):
    """The binomial's tail summed term by term from the largest down, until the terms no longer matter."""
    m, k = b + c, np.arange(b, max(b - 200_000, -1), -1, dtype=float)
    # log2 of the first term by Stirling-accurate gammaln; the rest by their exact ratios k / (m - k + 1).
    first = special.gammaln(m + 1) - special.gammaln(b + 1) - special.gammaln(c + 1) - m * np.log(2)
    steps = np.concatenate([[0.0], np.cumsum(np.log(k[:-1] / (m - k[:-1] + 1)))])
    expected = 2 * np.exp(first) * np.exp(steps).sum()
    assert st.mcnemar_exact(b, c) == pytest.approx(expected, rel=1e-5)
    assert st.mcnemar_exact(b, c) > 0


def test_benjamini_hochberg_equals_scipy_and_holm_a_loop():
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = rng.random(17) ** 3
        np.testing.assert_allclose(st.benjamini_hochberg(p), stats.false_discovery_control(p), rtol=1e-12)
        order, running, expected = np.argsort(p), 0.0, np.empty(17)
        for rank, index in enumerate(order):
            running = max(running, min(1.0, (17 - rank) * p[index]))
            expected[index] = running
        np.testing.assert_allclose(st.holm(p), expected, rtol=1e-12)


@pytest.mark.parametrize("method", ["holm", "bh"])
def test_adjusted_p_values_skip_nan_and_keep_order(method):
    p = np.array([0.2, np.nan, 0.001, 0.04, np.nan])
    got = st.adjust(p, method=method)
    assert np.isnan(got[[1, 4]]).all()
    np.testing.assert_array_equal(got[[0, 2, 3]], st.adjust(p[[0, 2, 3]], method=method))
    assert np.all(got[[0, 2, 3]] >= p[[0, 2, 3]])
    assert st.adjust([], method=method).shape == (0,)
    assert st.adjust([0.03], method=method) == [0.03]


def test_adjusting_refuses_what_is_not_a_p_value_or_a_method():
    with pytest.raises(InputError, match="between 0 and 1"):
        st.holm([0.5, 1.5])
    with pytest.raises(InputError, match="'holm' or 'bh'"):
        st.adjust([0.5], method="bonferroni")


def test_simultaneous_confidence_of_intervals_agrees_with_the_adjusted_tests():
    """Holm's smallest adjusted p is below α exactly when that slice's Bonferroni interval leaves the null out."""
    level = st.simultaneous_confidence(0.95, tests=10)
    for p in (0.004, 0.006):
        assert (st.holm([p] + [1.0] * 9)[0] < 0.05) == (p < 1 - level)
    assert st.simultaneous_confidence(0.95, tests=1) == pytest.approx(0.95)
    assert st.simultaneous_confidence(0.9, tests=7, selected=7, method="bh") == pytest.approx(0.9)
    assert st.simultaneous_confidence(0.9, tests=7, selected=0, method="bh") == pytest.approx(1 - 0.1 / 7)
    with pytest.raises(InputError, match="selected"):
        st.simultaneous_confidence(0.95, tests=7, method="bh")


# Sample sizes


@pytest.mark.parametrize(("x", "n", "limit"), [(0, 100, 0.01), (1, 100, 0.02), (7, 50, 0.3), (1, 3, 0.5), (2, 7, 0.9)])
def test_samples_for_limit_is_the_first_number_that_suffices(x, n, limit):
    got = st.samples_for_limit(x, n, limit)
    trials = np.arange(1, 3 * got)
    enough = st.clopper_pearson(x / n * trials, trials).high <= limit
    assert got == trials[enough][0]
    assert enough[got - 1 :].all()


def test_samples_for_limit_reaches_huge_numbers_and_knows_when_none_helps():
    got = st.samples_for_limit(999_000, 10**9, 0.001)
    assert got > 10**9
    for trials, suffices in ((got, True), (got - max(1, got // 10**6), False)):
        assert (st.clopper_pearson(0.000999 * trials, trials).high <= 0.001) == suffices
    assert st.samples_for_limit(0, 10, 1e-9) == pytest.approx(np.log(0.025) / np.log1p(-1e-9), abs=2)
    assert st.samples_for_limit(5, 100, 0.05) is None
    assert st.samples_for_limit(6, 100, 0.05) is None
    assert st.samples_for_limit(0, 100, 0.0) is None
    assert st.samples_for_limit(5, 100, 1.0) == 1
    assert st.samples_for_limit(0, 100, 0.01, confidence=0.9) < st.samples_for_limit(0, 100, 0.01)
    with pytest.raises(InputError, match="trials is 0"):
        st.samples_for_limit(0, 0, 0.01)


def exact_power(b, c, n, samples):
    """Power of the exact two-sided McNemar test at 5 %, over all numbers of discordant samples."""
    discordant, share = (b + c) / n, b / (b + c)
    m = np.arange(stats.binom.ppf(1e-9, samples, discordant), stats.binom.ppf(1 - 1e-9, samples, discordant) + 1)
    fewer = stats.binom.ppf(0.025, m, 0.5)
    # The largest count that is still significant; ppf is the first at or above 2.5 %.
    critical = np.where(stats.binom.cdf(fewer, m, 0.5) <= 0.025, fewer, fewer - 1)
    assert np.all(st.mcnemar_exact(np.maximum(critical, 0), m - np.maximum(critical, 0))[critical >= 0] <= 0.05)
    rejects = stats.binom.cdf(critical, m, share) + stats.binom.cdf(critical, m, 1 - share)
    return (stats.binom.pmf(m, samples, discordant) * rejects).sum()


@pytest.mark.parametrize("power", [0.8, 0.9])
@pytest.mark.parametrize(("b", "c", "n"), [(30, 10, 1000), (60, 40, 1000), (4, 12, 1000), (300, 250, 10_000)])
def test_samples_for_mcnemar_gives_the_exact_test_its_power(b, c, n, power):
    samples = st.samples_for_mcnemar(b, c, n, power=power)
    assert power <= exact_power(b, c, n, samples) <= power + 0.03
    assert samples == st.samples_for_mcnemar(c, b, n, power=power)


def test_samples_for_mcnemar_at_its_edges():
    assert st.samples_for_mcnemar(5, 5, 100) is None
    assert st.samples_for_mcnemar(0, 0, 100) is None
    assert exact_power(5, 0, 1000, st.samples_for_mcnemar(5, 0, 1000)) >= 0.8
    assert st.samples_for_mcnemar(9, 5, 100, confidence=0.99) > st.samples_for_mcnemar(9, 5, 100)
    with pytest.raises(InputError, match="power"):
        st.samples_for_mcnemar(9, 5, 100, power=80)


# Means


def test_mean_interval_equals_scipy_on_groups():
    values = np.random.default_rng(0).gamma(0.5, size=(3, 101))
    low, high = st.mean_interval(values.sum(axis=1), (values**2).sum(axis=1), 101, confidence=0.9)
    reference = stats.ttest_1samp(values, 0.0, axis=1).confidence_interval(0.9)
    np.testing.assert_allclose(low, reference.low, rtol=1e-10)
    np.testing.assert_allclose(high, reference.high, rtol=1e-10)


def test_mean_interval_at_its_edges():
    assert tuple(st.mean_interval(0, 0, 0)) == (-np.inf, np.inf)
    assert tuple(st.mean_interval(3, 9, 1)) == (-np.inf, np.inf)
    # Three ones whose squares were summed one rounding error too low.
    assert tuple(st.mean_interval(3.0, np.nextafter(3.0, 0.0), 3)) == (1.0, 1.0)
    with pytest.raises(InputError, match="negative"):
        st.mean_interval(1, -1, 5)


# Calibration


def well_calibrated(n):
    centre = (np.arange(15) + 0.5) / 15
    count = np.full(15, n / 15)
    return np.stack([count, count * centre, count * centre, count * centre**2, count * centre**2], axis=1)


def test_calibration_interval_is_deterministic_and_does_not_depend_on_empty_bins():
    bins = well_calibrated(1500)
    bins[:, 1] *= 0.8
    bins[:, 4] *= 0.8
    interval = st.expected_calibration_error_interval
    first = interval(bins)
    assert tuple(first) == tuple(interval(bins))
    assert tuple(first) != tuple(interval(bins, seed=1))
    assert tuple(first) == tuple(interval(np.concatenate([bins, np.zeros((2, 5))])))
    narrower = interval(bins, confidence=0.5)
    assert first.low < narrower.low < narrower.high < first.high


def test_calibration_interval_holds_the_observed_value_and_starts_at_0_for_a_calibrated_model():
    low, high = st.expected_calibration_error_interval(well_calibrated(3000))
    assert low == 0.0
    assert 0.0 <= high < 0.02
    off = well_calibrated(3000)
    off[:, 1] *= 0.8
    off[:, 4] *= 0.8
    low, high = st.expected_calibration_error_interval(off)
    observed = np.abs(off[:, 1] - off[:, 2]).sum() / 3000
    assert 0.07 < low < observed < high < 0.13


def test_calibration_interval_of_one_bin_is_the_normal_one():
    low, high = st.expected_calibration_error_interval([[10_000, 9000, 8000, 6400, 7200]], resamples=40_000)
    assert (low, high) == pytest.approx((0.1 - 1.96 * 0.003, 0.1 + 1.96 * 0.003), abs=2e-4)


def test_calibration_interval_at_its_edges():
    interval = st.expected_calibration_error_interval
    assert tuple(interval(np.zeros((15, 5)))) == (0.0, 1.0)
    sure = interval([[1000, 1000, 990, 980.1, 990]])
    assert sure.high - sure.low > 0.001, "no error in 1000 samples does not prove that there is none"
    lucky = well_calibrated(3000)
    lucky[:, 1] += 0.5 * (-1.0) ** np.arange(15)
    low, high = interval(lucky)
    assert (low, high) == pytest.approx((0.0, 15 * 0.5 / 3000)), "less than noise alone would show"
    with pytest.raises(InputError, match=r"\(L, 5\)"):
        interval([[1, 1, 1]])


# Noise floor


def sums(x, copies):
    c = copies.mean(axis=0)
    return (x.size, x.sum(), c.sum(), (x * x).sum(), (c * c).sum(), (x * c).sum(), copies.mean(axis=1))


def test_a_noise_floor_needs_rows_and_copies():
    for n, rates in ((1, [0.5]), (5, []), (5, [[0.5]])):
        with pytest.raises(InputError, match="noise_floor needs two rows and one copy or more"):
            st.noise_floor(n, 1.0, 1.0, rates)


def test_noise_excess_with_one_copy_is_the_paired_normal_interval():
    rng = np.random.default_rng(0)
    x, copies = (rng.random(1009) < 0.05).astype(float), (rng.random((1, 1009)) < 0.03).astype(float)
    got = st.noise_excess(*sums(x, copies), confidence=0.9)
    d = x - copies[0]
    z = d.mean() / (d.std(ddof=1) / np.sqrt(d.size))
    assert got.excess == pytest.approx(d.mean())
    reach = stats.norm.ppf(0.95) * d.std(ddof=1) / np.sqrt(d.size)
    assert (got.low, got.high) == pytest.approx((d.mean() - reach, d.mean() + reach))
    assert got.p_value == pytest.approx(stats.norm.sf(z), rel=1e-6)


def test_noise_excess_with_copies_that_differ_a_lot_is_students_prediction_interval():
    rng = np.random.default_rng(1)
    copies = (rng.random((5, 20_011)) < np.array([[0.01], [0.03], [0.05], [0.02], [0.04]])).astype(float)
    x = (rng.random(20_011) < 0.08).astype(float)
    got = st.noise_excess(*sums(x, copies))
    rates = copies.mean(axis=1)
    scale = rates.std(ddof=1) * np.sqrt(1 + 1 / 5)
    assert got.p_value == pytest.approx(stats.t.sf(got.excess / scale, 4), rel=0.05)
    assert got.high - got.low == pytest.approx(2 * stats.t.ppf(0.975, 4) * scale, rel=0.05)


def test_noise_excess_adds_only_the_row_noise_that_the_copies_do_not_show():
    rng = np.random.default_rng(3)
    n, k = 1009, 3
    prone = np.where(rng.random(n) < 0.1, 0.3, 0.01)
    copies = (rng.random((k, n)) < prone * np.array([[0.5], [1.0], [1.5]])).astype(float)
    x = (rng.random(n) < 0.1).astype(float)
    between = copies.mean(axis=1).var(ddof=1) * (1 + 1 / k)
    pairs = [(copies[i] - copies[j]).var() / n / 2 for i, j in ((0, 1), (0, 2), (1, 2))]
    rows = (x - copies.mean(axis=0)).var(ddof=1) / n
    left = rows - np.mean(pairs) * (1 + 1 / k)
    assert 0.1 * rows < left < 0.9 * rows, "the case is about a part of the row noise"
    got = st.noise_excess(*sums(x, copies))
    expected = np.sqrt(stats.t.ppf(0.975, k - 1) ** 2 * between + stats.norm.ppf(0.975) ** 2 * left)
    assert got.high - got.excess == pytest.approx(expected, rel=1e-6)


def test_noise_excess_interval_and_p_value_agree():
    rng = np.random.default_rng(2)
    for copies_n, rate in [(1, 0.04), (3, 0.05), (3, 0.09), (7, 0.05), (7, 0.02)]:
        copies = (rng.random((copies_n, 1009)) < 0.03).astype(float)
        data = sums((rng.random(1009) < rate).astype(float), copies)
        p = st.noise_excess(*data).p_value
        assert 0 < p < 1
        level = 1 - 2 * min(p, 1 - p)
        if p < 0.5:
            assert st.noise_excess(*data, confidence=level + 1e-6).low <= 0 <= st.noise_excess(*data).high
            assert st.noise_excess(*data, confidence=level - 1e-3).low > 0


def test_noise_excess_is_never_surer_than_its_rows_and_refuses_nothing_to_compare():
    x, copies = np.zeros(101), np.zeros((2, 101))
    x[:9], copies[0, 20:23], copies[1, 30:33] = 1, 1, 1
    equal = st.noise_excess(*sums(x, copies))
    rows = x - copies.mean(axis=0)
    assert equal.high - equal.low >= 2 * 1.95 * rows.std(ddof=1) / np.sqrt(101)
    still = st.noise_excess(101, 0, 0, 0, 0, 0, [0.0, 0.0])
    assert still == (0.0, 0.0, 0.0, 0.5)
    with pytest.raises(InputError, match="one copy"):
        st.noise_excess(101, 0, 0, 0, 0, 0, [])
