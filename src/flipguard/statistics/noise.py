"""Do the update's negative flips exceed what retraining the same model causes?"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from flipguard.statistics.interval import Interval, as_result, tail
from flipguard.statistics.rates import clopper_pearson
from flipguard.types import InputError

_HALVINGS = 80


class NoiseExcess(NamedTuple):
    """The update's negative flip rate less that of retrained copies, its interval, and a one-sided p-value."""

    excess: float
    low: float
    high: float
    p_value: float


def noise_excess(
    n: int,
    sum_x: float,
    sum_c: float,
    sum_xx: float,
    sum_cc: float,
    sum_xc: float,
    copy_rates: ArrayLike,
    *,
    confidence: float = 0.95,
) -> NoiseExcess:
    """By how much the update's negative flip rate exceeds that of K retrained copies of the old model.

    Per row, x is 1 where the update flips negatively against the old model, and c is the share of the K
    copies that do; the sums run over the n rows, and `copy_rates` (K,) are the copies' negative flip rates on
    these rows. excess = mean(x) - mean(c). The p-value is that of the hypothesis that the update flips no
    more than one more copy.

    Two reaches are taken and the larger one is used; the p-value is likewise the larger of the two.

    - Rows: z² R with R = var(x - c) / n, the paired variance from having drawn these rows. With K = 1 this is all there
      is, and how much retraining varies from copy to copy stays unknown: with copies that differ in their true
      rates a one-sided 5 % test errs more often (28 % in a simulation with a spread of √10 times the row noise).
    - Copies, for K >= 2: t²_{K-1} A + z² B. A = s² (1 + 1 / K) is the variance of one more draw against the mean of K
      draws, s² the variance of `copy_rates`. s² already holds the row noise that the copies have against each
      other, w = (mean(c (1 - c)) · K / (K - 1) - s²) / n, so of R only B = max(R - w (1 + 1 / K), 0) is left
      to add.

    If the update is one more copy, B is about 0 and excess / √A is Student's t with K - 1 degrees of freedom. The
    rows' reach guards against copies whose rates happen to agree, and makes the test careful where all copies share
    one true rate: simulated at 5 %, it errs 1.2 % of the time with K = 2, 2.5 % with 5 and 3.3 % with 10, and 4 to
    5 % where true rates differ widely. With two copies t is 12.7 at 95 %: five or more are worth their training time.

    Two copies with 2 and 4 flips in 100 rows, the update with 9, none on the same row: A = 0.0002 · 1.5,
    excess 0.06.

    >>> result = noise_excess(100, 9, 3, 9, 1.5, 0, [0.02, 0.04])
    >>> print(f"{result.excess:.2f} ({result.low:.2f}, {result.high:.2f}) p = {result.p_value:.2f}")
    0.06 (-0.17, 0.29) p = 0.10
    """
    rates = np.asarray(copy_rates, dtype=np.float64)
    if rates.ndim != 1 or rates.size == 0 or n < 2:
        raise InputError(f"noise_excess needs two rows and one copy or more; got {n} rows and {rates.size} copies.")
    copies, excess = rates.size, (sum_x - sum_c) / n
    rows = max(sum_xx - 2.0 * sum_xc + sum_cc - n * excess**2, 0.0) / (n - 1) / n
    parts = [(0.0, rows)]
    if copies > 1:
        spread = float(np.var(rates, ddof=1))
        within = max((sum_c - sum_cc) / n * copies / (copies - 1) - spread, 0.0) / n
        draw = 1.0 + 1.0 / copies
        parts.append((spread * draw, max(rows - within * draw, 0.0)))
    reach = max(_reach(tail(confidence), between, row, copies) for between, row in parts)
    p_value = max(_one_sided(excess, between, row, copies) for between, row in parts)
    return NoiseExcess(excess, excess - reach, excess + reach, p_value)


def noise_floor(n: int, sum_c: float, sum_cc: float, copy_rates: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Interval for the mean negative flip rate of retrained copies: over samples, and over copies, that could be drawn.

    Sums and `copy_rates` as in `noise_excess`. The wider of two, at each end. Rows: Clopper-Pearson at the sample size
    whose rate of flips would have R, the variance of mean(c). Copies: a reach of √(t²_{K-1} s² / K + z² B), with
    B = max(R - w / K, 0), as in `noise_excess`, here of the mean of K draws. Of other copies one says nothing, and the
    rows' interval is all.

    Two copies with 2 and 4 flips in 100 rows, none on the same row: s² = 0.0002, and t is 12.7.

    >>> low, high = noise_floor(100, 3, 1.5, [0.02, 0.04])
    >>> print(f"{low:.2f} {high:.3f} {0.03 + 12.7062 * 0.0001**0.5:.3f}")
    0.00 0.157 0.157
    """
    rates = np.asarray(copy_rates, dtype=np.float64)
    if rates.ndim != 1 or rates.size == 0 or n < 2:
        raise InputError(f"noise_floor needs two rows and one copy or more; got {n} rows and {rates.size} copies.")
    copies, mean = rates.size, sum_c / n
    rows = max(sum_cc - n * mean**2, 0.0) / (n - 1) / n
    size = mean * (1.0 - mean) / rows if copies > 1 and rows > 0 else float(n)
    exact = clopper_pearson(mean * size, size, confidence=confidence)
    if copies == 1:
        return exact
    spread = float(np.var(rates, ddof=1))
    within = max((sum_c - sum_cc) / n * copies / (copies - 1) - spread, 0.0) / n
    reach = _reach(tail(confidence), spread / copies, max(rows - within / copies, 0.0), copies)
    return Interval(
        as_result(min(max(mean - reach, 0.0), float(exact.low))),
        as_result(max(min(mean + reach, 1.0), float(exact.high))),
    )


def _reach(upper_tail: float, between: float, rows: float, copies: int) -> float:
    """√(t² between + z² rows) at one upper tail probability."""
    normal = float(special.ndtri(upper_tail))
    student = float(special.stdtrit(copies - 1, upper_tail)) if between > 0 else 0.0
    return float(np.hypot(student * between**0.5, normal * rows**0.5))


def _one_sided(excess: float, between: float, rows: float, copies: int) -> float:
    """The tail probability whose reach is the excess; above 1/2 for a negative one."""
    if excess <= 0.0:
        return 1.0 - _one_sided(-excess, between, rows, copies) if excess < 0.0 else 0.5
    low, high = -700.0, float(np.log(0.5))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        too_far = _reach(float(np.exp(middle)), between, rows, copies) > excess
        low, high = (middle, high) if too_far else (low, middle)
    return float(np.exp(0.5 * (low + high)))
