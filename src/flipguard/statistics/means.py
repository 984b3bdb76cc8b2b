"""Interval for a mean from a sum and a sum of squares."""

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics.interval import Interval, as_result, ratio, student_quantile
from flipguard.types import InputError


def mean_interval(total: ArrayLike, total_squared: ArrayLike, n: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Student's interval for a mean: m ± t_{n-1} s / √n, with m = total / n and s² = (total_squared - n m²) / (n - 1).

    For paired differences pass the sums of the differences, not of the two sides. Where rounding leaves s²
    below 0 (constant values) the width is 0; values whose mean is far from 0 compared with their spread (10⁸
    times) should be shifted before they are summed. With fewer than two values nothing bounds the mean:
    (-inf, inf).

    Sums say nothing of skewness, so the interval falls short where few values carry the mean: simulated at 95 % with
    1000 values, 94.4 % for a gamma of shape 0.2, 94.6 % where 100 values are not 0, and 92.6 % where only 30 are.

    The values 1, 2, 3 have m = 2, s = 1, t_2 = 4.3027, so the reach is 4.3027 / √3 = 2.4841:

    >>> low, high = mean_interval(6, 14, 3)
    >>> print(f"{low:.4f} {high:.4f}")
    -0.4841 4.4841
    """
    sum1, sum2, number = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (total, total_squared, n))
    )
    if np.any(number < 0) or np.any(sum2 < 0):
        raise InputError("n and total_squared must not be negative; pass the sum of squares, not its difference.")
    enough = number >= 2
    mean = ratio(sum1, number)
    variance = ratio(np.maximum(sum2 - sum1 * mean, 0.0), np.where(enough, number - 1, 0.0))
    reach = student_quantile(confidence, number - 1) * np.sqrt(ratio(variance, number))
    return Interval(
        as_result(np.where(enough, mean - reach, -np.inf)), as_result(np.where(enough, mean + reach, np.inf))
    )
