"""Interval for the expected calibration error from its confidence bins."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics.interval import Floats, Interval, as_result, ratio, tail
from flipguard.types import InputError

_HALVINGS = 30


def expected_calibration_error_interval(
    bins: ArrayLike, *, confidence: float = 0.95, seed: int = 0, resamples: int = 1000
) -> Interval:
    """Interval for the population's binned expected calibration error from the sums of each bin. (L, 5) -> ends.

    A bin's row is count, sum of correct, sum of confidence, sum of confidence², sum of confidence · correct,
    and ECE = sum_b |gap_b| with gap_b = (correct_b - confidence_b) / N. Absolute values only add up noise, so
    the observed ECE lies above the truth: a percentile bootstrap covers a calibrated model's 0 never, and
    other truths 50 to 80 % of the time. This interval inverts a test instead (hybrid resampling, Chuang and
    Lai, Statistica Sinica 10, 2000): an ECE of t stays in it unless the observed one is among the (1 -
    confidence) / 2 smallest or largest that bins with

        gap_b + noise_b,   noise_b ~ Normal(0, σ_b²),   gap = the likeliest gaps whose absolute values sum to t

    would show. Those gaps are sign(gap_b) · max(|gap_b| - λ σ_b², 0), with λ running from negative (t above
    the observed ECE) to where all are 0. σ_b² is the variance of gap_b over samples of N rows, with one more
    right and one more wrong answer in each bin, without which a bin that happens to hold no error would claim
    to be sure.

    The observed ECE can be larger than any t that the test keeps (one time in five for a calibrated model);
    the upper end is then moved out to it, so that a report never shows a value outside its interval. Near a
    truth of 0 the lower end is 0 and the interval covers more often than its level. (0, 1) for fewer than two
    samples. The draws are the same for the same seed.

    One bin, 100 samples of confidence 0.8, 90 right: gap 0.1, σ = 0.03, so about 0.1 ± 1.96 · 0.03:

    >>> low, high = expected_calibration_error_interval([[100, 90, 80, 64, 72]], resamples=10_000)
    >>> print(f"{low:.2f} {high:.2f}")
    0.04 0.16
    """
    table = np.asarray(bins, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 5 or not np.all(table >= 0):
        raise InputError(f"bins must be (L, 5) sums that are not negative; got shape {table.shape}.")
    alpha = tail(confidence)
    if table[:, 0].sum() < 2:
        return Interval(as_result(0.0), as_result(1.0))
    size, variance = _gaps(table[table[:, 0] > 0])
    noise = np.random.default_rng(seed).standard_normal((resamples, size.size)) * np.sqrt(variance)

    def shrunk(strength: float) -> Floats:
        return np.maximum(size - strength * variance, 0.0)

    def share_below(strength: float) -> float:
        return float(np.mean(np.abs(shrunk(strength) + noise).sum(axis=1) < size.sum()))

    most, least = float((size / variance).max()), -10.0 / float(variance.sum()) ** 0.5
    low = _end(lambda strength: share_below(strength) > 1.0 - alpha, least, most)
    high = _end(lambda strength: share_below(strength) > alpha, least, most)
    return Interval(as_result(shrunk(low).sum()), as_result(min(max(shrunk(high).sum(), size.sum()), 1.0)))


def _gaps(table: Floats) -> tuple[Floats, Floats]:
    """Per bin |correct - confidence| / N and its variance."""
    count, correct, confident, squared, product = table.T
    total = count.sum()
    gap = (correct - confident) / total
    second = correct - 2.0 * product + squared
    padded = (correct + 1.0) * (count - correct + 1.0) / np.square(count + 2.0)
    more = count * np.maximum(padded - ratio(correct * (count - correct), np.square(count)), 0.0)
    # (correct - confidence)² is at least 0 whatever rounding makes of its expansion.
    variance = np.maximum(second, 0.0) + more - np.square(gap) * total
    return np.abs(gap), np.maximum(variance, 1e-12) / total**2


def _end(holds: Callable[[float], bool], least: float, most: float) -> float:
    """The strength at which a condition that fails at small and holds at large strengths begins to hold.

    Infinite if it holds nowhere: `most` itself would leave the largest gap at a rounding error above 0.
    """
    if not holds(most):
        return math.inf
    for _ in range(_HALVINGS):
        middle = 0.5 * (least + most)
        least, most = (least, middle) if holds(middle) else (middle, most)
    return most
