"""Intervals for what two models' errors on the same samples say: the error difference and the relative flip rate.

Both start from the shares of the five labelled outcomes (both right, negative flip, positive flip, both wrong
with the same class, both wrong with different classes). The `_from_covariance` forms take the shares'
covariance under clustered or weighted sampling, turn it into an effective sample size for the quantity at
hand, and use the interval for counts at that size: unlike a plain ± z·se they keep the counts' behaviour with
few or no flips.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from flipguard.statistics.covariance import effective_trials, linear_variance, multinomial_covariance
from flipguard.statistics.interval import Floats, Interval, as_result, counts, ratio, student_quantile
from flipguard.statistics.rates import wilson
from flipguard.statistics.significance import mcnemar_exact
from flipguard.types import InputError

_HALVINGS = 60
_ERROR_DIFFERENCE = np.array([0.0, 1.0, -1.0, 0.0, 0.0])


def error_difference(negative: ArrayLike, positive: ArrayLike, n: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Interval for ER_new - ER_old = NFR - PFR of two models on the same n samples: Tango's score interval.

    It holds every difference Δ that the score test does not reject (Tango, Statistics in Medicine 17, 1998):

        |b - c - n Δ| / √(n [2 q + Δ (1 - Δ)]) <= z,

    with b negative and c positive flips, and q the positive flip rate's maximum likelihood estimate given Δ.
    The Wald interval has width 0 without flips and falls short with few; this one does neither: without flips
    it is ± z² / (n + z²). Swapping the models negates it. Without samples it is (-1, 1).

    >>> low, high = error_difference(0, 0, 100)
    >>> print(f"{low:.5f} {high:.5f} {1.959964**2 / (100 + 1.959964**2):.5f}")
    -0.03699 0.03699 0.03699
    """
    b, _ = counts(negative, n, names=("negative", "n"))
    c, total = counts(positive, n, names=("positive", "n"))
    counts(b + c, total, names=("negative + positive", "n"))
    z = float(student_quantile(confidence))
    return Interval(as_result(-_tango_upper(c, b, total, z)), as_result(_tango_upper(b, c, total, z)))


def error_difference_from_covariance(
    share: ArrayLike,
    covariance: ArrayLike,
    trials: ArrayLike,
    *,
    degrees_of_freedom: ArrayLike = np.inf,
    confidence: float = 0.95,
) -> Interval:
    """The error difference under clustered or weighted sampling. share (…, 5), covariance (…, 5, 5), trials (…).

    Tango's interval at the effective sample size n* = (one sample's variance of NFR - PFR) / (its variance
    under the covariance), at most the number of samples `trials`, times (z / t)² for the degrees of freedom
    (clusters - 1; infinite for weights). Without flips that ratio is 0 / 0 and the outcomes' average,
    `effective_trials`, stands in. (-1, 1) where the covariance is unknown (a single cluster).

    >>> from flipguard.statistics import multinomial_covariance
    >>> count = np.array([80, 6, 4, 7, 3])
    >>> low, high = error_difference_from_covariance(count / 100, multinomial_covariance(count), 100)
    >>> plain = error_difference(6, 4, 100)
    >>> print(f"{abs(low - plain.low):.9f} {abs(high - plain.high):.9f}")
    0.000000000 0.000000000
    """
    p = _five(share)
    own, average = _own_trials(p, covariance, _ERROR_DIFFERENCE), effective_trials(p, covariance)
    size = np.where(np.isnan(own), average, own)
    size = _usable(size, covariance, trials, degrees_of_freedom, confidence)
    return error_difference(p[..., 1] * size, p[..., 2] * size, size, confidence=confidence)


def mcnemar_from_covariance(
    share: ArrayLike, covariance: ArrayLike, trials: ArrayLike, *, degrees_of_freedom: ArrayLike = np.inf
) -> Floats:
    """Two-sided p-value that both models err equally often, under clustered sampling: (…, 5), (…, 5, 5), (…) -> (…).

    What `error_difference_from_covariance` says of a difference of 0, where Tango's score is McNemar's: with n* the
    effective sample size, b and c the shares of negative and positive flips, and Student's degrees of freedom,

        t = |b - c| · √(n* / (b + c)).

    Never below the exact test of as many independent samples, which may be what the clusters come to. 1 without flips,
    nan where the covariance is unknown (a single cluster).

    >>> from flipguard.statistics import multinomial_covariance
    >>> count = np.array([80, 16, 4, 0, 0])
    >>> print(f"{mcnemar_from_covariance(count / 100, multinomial_covariance(count) * 2, 100):.4f}")
    0.0578
    >>> print(f"{2 * special.ndtr(-12 / 20**0.5 / 2**0.5):.4f} {mcnemar_exact(16, 4):.4f}")
    0.0578 0.0118
    """
    p, n, degrees = _five(share), np.asarray(trials, dtype=np.float64), np.asarray(degrees_of_freedom, dtype=np.float64)
    worse, better = p[..., 1], p[..., 2]
    own = _own_trials(p, covariance, _ERROR_DIFFERENCE)
    size = np.fmin(np.where(np.isnan(own), effective_trials(p, covariance), own), n)
    t = np.abs(worse - better) * np.sqrt(ratio(size, worse + better))
    known = np.isfinite(degrees) & (degrees > 0)
    tails = np.where(known, special.stdtr(np.where(known, degrees, 1.0), -t), special.ndtr(-t))
    found = np.where(worse + better > 0, np.maximum(2.0 * tails, mcnemar_exact(worse * n, better * n)), 1.0)
    unknown = np.isnan(np.asarray(covariance, dtype=np.float64)).any(axis=(-1, -2))
    return as_result(np.where(unknown, np.nan, found))


def relative_negative_flip_rate(count: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Interval for NFR / ((1 - ER_old) · ER_new), the flips relative to those of independent errors. (…, 5) -> (…).

    Yan et al., Positive-Congruent Training (CVPR 2021), equation 11. Write u = 1 - ER_old and ρ for the ratio
    of the new model's error where the old one was wrong to that where it was right. Then

        relative NFR = 1 / (u + (1 - u) ρ),

    where u and ρ are estimated by independent parts of the likelihood. ρ gets Koopman's score interval for a
    ratio of two binomial rates (Biometrics 40, 1984), u Wilson's, and the two distances from the estimate are
    squared and added on each side (the method of variance estimates recovery, Zou and Donner, Statistics in
    Medicine 27, 2008). The delta method has no answer without flips; here the lower end is then 0 and the
    upper end finite.

    Where the rate is not defined (no sample that the old model had right, or no error of the new model) the
    interval is (0, inf).

    >>> low, high = relative_negative_flip_rate([[80, 5, 5, 6, 4], [85, 0, 5, 6, 4], [90, 0, 10, 0, 0]])
    >>> print(low.round(3), high.round(3))
    [0.176 0.    0.   ] [0.676 0.318   inf]
    """
    table = _five(count)
    a, b, c = table[..., 0], table[..., 1], table[..., 2]
    d = table[..., 3] + table[..., 4]
    right, n = a + b, a + b + c + d
    u, rho = ratio(right, n), _ratio_of_rates(d, c + d, b, right)
    z = float(student_quantile(confidence))
    u_low, u_high = wilson(right, n, z)
    rho_low, rho_high = _koopman(d, c + d, b, right, z)
    centre = _relative(u, rho)
    by_u = np.stack([_relative(u_low, rho), _relative(u_high, rho)])
    low = centre - np.hypot(centre - _relative(u, rho_high), centre - by_u.min(axis=0))
    high = centre + np.hypot(_relative(u, rho_low) - centre, by_u.max(axis=0) - centre)
    known = (right > 0) & (b + d > 0)
    return Interval(as_result(np.where(known, np.maximum(low, 0.0), 0.0)), as_result(np.where(known, high, np.inf)))


def relative_negative_flip_rate_from_covariance(
    share: ArrayLike,
    covariance: ArrayLike,
    trials: ArrayLike,
    *,
    degrees_of_freedom: ArrayLike = np.inf,
    confidence: float = 0.95,
) -> Interval:
    """The relative negative flip rate under clustered or weighted sampling. share (…, 5), covariance (…, 5, 5).

    The interval for counts at the effective sample size of this quantity, by the delta method, or at the
    outcomes' average `effective_trials` where that is smaller: the rate is far from linear in the shares, and
    with few flips in few clusters its own variance comes out too small (200 clusters of 3 to 31 samples: 92 %
    coverage without the average, 96 % with it). `trials` and `degrees_of_freedom` as in
    `error_difference_from_covariance`.

    >>> from flipguard.statistics import multinomial_covariance
    >>> count = np.array([80, 6, 4, 7, 3])
    >>> low, high = relative_negative_flip_rate_from_covariance(count / 100, multinomial_covariance(count), 100)
    >>> plain = relative_negative_flip_rate(count)
    >>> print(f"{abs(low - plain.low):.9f} {abs(high - plain.high):.9f}")
    0.000000000 0.000000000
    """
    p = _five(share)
    size = np.fmin(_own_trials(p, covariance, _relative_gradient(p)), effective_trials(p, covariance))
    size = _usable(size, covariance, trials, degrees_of_freedom, confidence)
    return relative_negative_flip_rate(p * size[..., None], confidence=confidence)


def _five(values: ArrayLike) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim == 0 or table.shape[-1] != 5 or not np.all(table >= 0):
        raise InputError(
            f"expected the five labelled outcomes on the last axis, none negative; got shape {table.shape}."
        )
    return table


def _own_trials(share: Floats, covariance: ArrayLike, gradient: Floats) -> Floats:
    """The number of independent samples that would give this quantity the variance it has; nan where that is 0."""
    one = linear_variance(multinomial_covariance(share), gradient)
    return ratio(one, linear_variance(covariance, gradient))


def _usable(
    size: Floats, covariance: ArrayLike, trials: ArrayLike, degrees_of_freedom: ArrayLike, confidence: float
) -> Floats:
    """At most `trials`, shrunk by (z / t)²; 0 where the variance is unknown (a single cluster)."""
    shrink = student_quantile(confidence) / student_quantile(confidence, degrees_of_freedom)
    size = np.fmin(size, np.asarray(trials, dtype=np.float64)) * np.square(shrink)
    unknown = np.isnan(np.asarray(covariance, dtype=np.float64)).any(axis=(-1, -2))
    return np.where(unknown, 0.0, size)


def _tango_upper(b: Floats, c: Floats, n: Floats, z: float) -> Floats:
    """The upper end for b / n - c / n: the largest difference that the score test lets stand."""
    known = n > 0
    total = np.where(known, n, 1.0)

    def rejected(delta: Floats) -> NDArray[np.bool_]:
        linear = (2.0 * total - b + c) * delta - b - c
        constant = c * delta * (1.0 - delta)
        root = np.sqrt(np.square(linear) + 8.0 * total * constant)
        # The two forms of the quadratic's root, each without cancellation on its side.
        with np.errstate(divide="ignore", invalid="ignore"):
            q = np.where(linear > 0, 2.0 * constant / (linear + root), (root - linear) / (4.0 * total))
        spread = total * np.maximum(2.0 * q + delta * (1.0 - delta), 0.0)
        return np.asarray(total * delta - (b - c) > z * np.sqrt(spread), dtype=np.bool_)

    upper = _boundary(rejected, (b - c) / total, np.ones_like(total))
    return np.where(known, upper, 1.0)


def _boundary(rejected: Callable[[Floats], NDArray[np.bool_]], low: Floats, high: Floats) -> Floats:
    """Where, between an accepted and a rejected point, acceptance ends (bisection to float64's last bits)."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        out = rejected(middle)
        low, high = np.where(out, low, middle), np.where(out, middle, high)
    return 0.5 * (low + high)


def _relative(u: Floats, rho: Floats) -> Floats:
    """1 / (u + (1 - u) rho), which is 0 at an infinite rho."""
    infinite = np.isinf(rho)
    return np.where(infinite, 0.0, ratio(1.0, u + (1.0 - u) * np.where(infinite, 0.0, rho)))


def _relative_gradient(p: Floats) -> Floats:
    """Derivative of p_1 / (u v) by the five shares, with u = p_0 + p_1 and v = p_1 + p_3 + p_4; 0 where undefined."""
    u, v = p[..., 0] + p[..., 1], p[..., 1] + p[..., 3] + p[..., 4]
    rate = ratio(p[..., 1], u * v)
    by_u, by_v = -ratio(rate, u), -ratio(rate, v)
    slopes = [by_u, ratio(1.0, u * v) + by_u + by_v, np.zeros_like(u), by_v, by_v]
    return np.nan_to_num(np.stack(slopes, axis=-1))


def _ratio_of_rates(x: Floats, m: Floats, y: Floats, n: Floats) -> Floats:
    """(x / m) / (y / n), infinite at y = 0 and 0 where m = 0 makes it meaningless."""
    return np.where(y > 0, np.nan_to_num(ratio(x * n, m * y)), np.inf)


def _koopman(x: Floats, m: Floats, y: Floats, n: Floats, z: float) -> tuple[Floats, Floats]:
    """Score interval for the ratio of the rates x / m and y / n (Koopman 1984), bisected on the log scale."""
    known = (m > 0) & (n > 0)
    size_x, size_y = np.where(known, m, 1.0), np.where(known, n, 1.0)

    def score(log_ratio: Floats) -> Floats:
        rho = np.exp(log_ratio)
        middle = size_x * rho + x + size_y + y * rho
        root = np.sqrt(np.maximum(np.square(middle) - 4.0 * (size_x + size_y) * rho * (x + y), 0.0))
        rate = 2.0 * (x + y) / (middle + root)
        spread = rho * rate * (np.maximum(1.0 - rho * rate, 0.0) / size_x + rho * (1.0 - rate) / size_y)
        return ratio(x / size_x - rho * y / size_y, np.sqrt(np.maximum(spread, 1e-300)))

    shape = np.zeros_like(size_x)
    wide = 40.0
    low = np.exp(-_boundary(lambda s: score(-s) > z, shape - wide, shape + wide))
    high = np.exp(_boundary(lambda s: score(s) < -z, shape - wide, shape + wide))
    return np.where(known & (x > 0), low, 0.0), np.where(known & (y > 0), high, np.inf)
