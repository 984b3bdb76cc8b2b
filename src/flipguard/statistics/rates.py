"""Intervals for a rate: independent, clustered and weighted samples."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from flipguard.statistics.covariance import clustered_covariance, weighted_covariance
from flipguard.statistics.interval import Floats, Interval, as_result, counts, ratio, student_quantile, tail


def clopper_pearson(successes: ArrayLike, trials: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """The exact interval for a binomial rate: it covers the truth at least `confidence` of the time, whatever it is.

        low  = BetaInv(α/2; x, n - x + 1)        high = BetaInv(1 - α/2; x + 1, n - x)

    Clopper and Pearson, Biometrika 26 (1934). low is 0 at x = 0, high is 1 at x = n, and without trials the
    interval is (0, 1). Counts need not be whole numbers, so that an effective sample size can be passed.

    With no success in 10 trials the upper end solves (1 - p)^10 = 0.025, p = 1 - 0.025^(1/10):

    >>> low, high = clopper_pearson(0, 10)
    >>> print(f"{low:.6f} {high:.6f} {1 - 0.025 ** 0.1:.6f}")
    0.000000 0.308497 0.308497
    """
    x, n = counts(successes, trials, names=("successes", "trials"))
    alpha = tail(confidence)
    # Where an end is fixed by definition, harmless arguments stand in for the beta's zero parameter.
    some, room = np.where(x > 0, x, 1.0), np.where(x < n, n - x, 1.0)
    low = np.where(x > 0, special.betaincinv(some, n - x + 1.0, alpha), 0.0)
    high = np.where(x < n, special.betainccinv(x + 1.0, room, alpha), 1.0)
    return Interval(as_result(low), as_result(high))


def wilson(x: Floats, n: Floats, z: float) -> tuple[Floats, Floats]:
    """The ends of the score interval for the rate x / n, z standard errors to each side (Wilson, JASA 22, 1927)."""
    centre = ratio(x + z * z / 2.0, n + z * z)
    reach = ratio(z * np.sqrt(np.nan_to_num(ratio(x * (n - x), n)) + z * z / 4.0), n + z * z)
    return np.maximum(centre - reach, 0.0), np.minimum(centre + reach, 1.0)


def clustered_rate(
    successes_per_cluster: ArrayLike,
    trials_per_cluster: ArrayLike,
    *,
    at_most: ArrayLike = np.inf,
    confidence: float = 0.95,
) -> Interval:
    """Interval for a rate whose samples come in clusters (a user's images, a document's sentences). (…, G) -> (…).

    Clopper-Pearson at the effective sample size (Korn and Graubard, Survey Methodology 24, 1998):

        n* = n · [p (1 - p) / (n - 1)] / v · (t_{n-1} / t_{G-1})²,     x* = p n*,

    with v the clustered variance of p and t the two-sided Student quantiles. Where clusters are single
    samples, n* = n and the interval is Clopper-Pearson's. n* never exceeds n: a variance below that of
    independent samples is chance far more often than design. With a single cluster the interval is (0, 1).

    v is itself estimated from the clusters that hold a success. Where x* is below about 10 it comes out too
    small when successes clump (200 clusters of 21, intra-cluster correlation 0.2: 94 % coverage at x* = 13,
    90 % at 3, 76 % at 0.7), and at p = 0 it says nothing, so that n* starts from n. `at_most` caps n* before
    the Student factor by what commoner outcomes of the same clusters say: pass `effective_trials` of all
    outcomes' shares and covariance.

    >>> low, high = clustered_rate([0, 1, 0, 0, 1, 0, 0, 0, 0, 0], [1] * 10)
    >>> exact = clopper_pearson(2, 10)
    >>> print(f"{abs(low - exact.low):.9f} {abs(high - exact.high):.9f}")
    0.000000000 0.000000000
    """
    x, m = counts(successes_per_cluster, trials_per_cluster, names=("successes_per_cluster", "trials_per_cluster"))
    n, groups = m.sum(axis=-1), np.count_nonzero(m > 0, axis=-1)
    rate = ratio(x.sum(axis=-1), n)
    variance = clustered_covariance(np.stack([x, m - x], axis=-1))[..., 0, 0]
    inflation = ratio(variance * (n - 1), rate * (1 - rate))
    size = np.fmin(n / np.fmax(inflation, 1.0), np.asarray(at_most, dtype=np.float64))
    enough = groups > 1
    # Harmless degrees of freedom stand in where there is nothing to correct.
    correction = ratio(
        student_quantile(confidence, np.where(enough, n - 1, 1.0)),
        student_quantile(confidence, np.where(enough, groups - 1, 1.0)),
    )
    effective = np.where(enough, size * np.square(correction), 0.0)
    return clopper_pearson(np.nan_to_num(rate) * effective, effective, confidence=confidence)


def weighted_rate(
    weight: ArrayLike,
    weight_squared: ArrayLike,
    total_weight: ArrayLike,
    total_weight_squared: ArrayLike,
    *,
    confidence: float = 0.95,
) -> Interval:
    """Interval for a weighted rate, from the sums of w and w² over the successes and over all samples.

    Clopper-Pearson at the effective sample size n* = p (1 - p) / v with v the linearised variance of p = W_1
    / W, and at most Kish's W² / sum of w² (which is also what is used at p = 0 and p = 1, where v is 0). With
    equal weights it is Clopper-Pearson's interval; without weight it is (0, 1).

    >>> low, high = weighted_rate(3 * 2.0, 3 * 4.0, 10 * 2.0, 10 * 4.0)
    >>> exact = clopper_pearson(3, 10)
    >>> print(f"{abs(low - exact.low):.3f} {abs(high - exact.high):.3f}")
    0.000 0.000
    """
    part, whole = counts(weight, total_weight, names=("weight", "total_weight"))
    part_squared, whole_squared = counts(
        weight_squared, total_weight_squared, names=("weight_squared", "total_weight_squared")
    )
    rate = ratio(part, whole)
    variance = weighted_covariance(
        np.stack([part, whole - part], axis=-1), np.stack([part_squared, whole_squared - part_squared], axis=-1)
    )[..., 0, 0]
    kish = np.nan_to_num(ratio(np.square(whole), whole_squared))
    effective = np.fmin(ratio(rate * (1 - rate), variance), kish)
    return clopper_pearson(np.nan_to_num(rate) * effective, effective, confidence=confidence)
