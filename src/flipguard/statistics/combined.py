"""Interval for a sum of two shares of the same samples, each with its factor: what flips cost, how often models err."""

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics.interval import Floats, Interval, as_result, counts, ratio, student_quantile
from flipguard.statistics.rates import wilson


def combined_shares(
    first: ArrayLike,
    second: ArrayLike,
    n: ArrayLike,
    *,
    factors: tuple[float, float],
    confidence: float = 0.95,
) -> Interval:
    """Interval for a p + b q, where p and q are the shares of two outcomes of the same n samples and (a, b) `factors`.

    Wilson's limits (l, u) of each share, put together as their variances would be, with the correlation of two shares
    of one multinomial (MOVER; Zou and Donner, Statistics in Medicine 27, 2008). With a factor below 0 a share's limits
    change places:

        low  = a p + b q - √(A² + B² + 2 s r A B),   A = a (p - l_p),  B = b (q - l_q),
        high = a p + b q + √(A² + B² + 2 s r A B),   A = a (u_p - p),  B = b (u_q - q),

    where s is the sign of a b and r = -√(p q / ((1 - p) (1 - q))). Unlike a mean ± z·se it has a width without flips,
    and none of its ends leaves what the sum can be. Counts need not be whole numbers, so that an effective sample size
    can be passed. Without samples every value is possible.

    Nothing seen in 50 samples, a flip that costs five times what a mended one gains: Wilson's upper ends z² / (n + z²).

    >>> low, high = combined_shares(0, 0, 50, factors=(5, -1))
    >>> print(f"{low:.5f} {high:.5f} {5 * 1.959964**2 / (50 + 1.959964**2):.5f}")
    -0.07135 0.35674 0.35674
    """
    x, size = counts(first, n, names=("first", "n"))
    y, _ = counts(second, n, names=("second", "n"))
    counts(x + y, size, names=("first + second", "n"))
    known, size = size > 0, np.where(size > 0, size, 1.0)
    p, q = x / size, y / size
    z, (a, b) = float(student_quantile(confidence)), factors
    # All samples of one outcome or the other: what one gains the other loses.
    together = np.nan_to_num(ratio(p * q, (1 - p) * (1 - q)), nan=1.0)
    correlation = -np.sign(a * b) * np.sqrt(np.minimum(together, 1.0))

    def reach(end: int) -> Floats:
        """To the low end (0) or the high one (1)."""
        first, second = (
            np.abs(factor * (share - wilson(part, size, z)[end if factor >= 0 else 1 - end]))
            for factor, share, part in ((a, p, x), (b, q, y))
        )
        found: Floats = np.sqrt(np.maximum(first**2 + second**2 + 2 * correlation * first * second, 0.0))
        return found

    least, most = min(0.0, a, b), max(0.0, a, b)
    low, high = np.maximum(a * p + b * q - reach(0), least), np.minimum(a * p + b * q + reach(1), most)
    return Interval(as_result(np.where(known, low, least)), as_result(np.where(known, high, most)))
