"""How many samples an answer takes."""

import math
from collections.abc import Callable

from scipy import special

from flipguard.statistics.interval import counts, student_quantile, tail
from flipguard.types import InputError

_MOST = 10**15  # Beyond this float64 no longer separates neighbouring counts in the beta function.


def samples_for_limit(successes: float, trials: float, limit: float, *, confidence: float = 0.95) -> int | None:
    """The smallest number of trials at which the same rate puts Clopper-Pearson's upper end at or below `limit`.

    The upper end at x = r n successes is at or below the limit exactly when P(X <= x) <= (1 - confidence) / 2
    for X ~ Binomial(n, limit), a continuous and falling function of n. None when the observed rate r is not
    below the limit (no number of samples helps) or when more than 10¹⁵ would be needed.

    Without a success 0.99^n <= 0.025 first holds at n = 368 (0.99^367 = 0.02501):

    >>> samples_for_limit(0, 100, 0.01)
    368
    """
    counts(successes, trials, names=("successes", "trials"))
    alpha = tail(confidence)
    if trials == 0:
        raise InputError("trials is 0: there is no observed rate to plan with.")
    rate = successes / trials
    if not rate < limit:
        return None
    if limit >= 1.0:
        return 1
    return _smallest(lambda n: bool(special.betaincc(rate * n + 1.0, n - rate * n, limit) <= alpha))


def samples_for_mcnemar(
    negative: float, positive: float, n: float, *, confidence: float = 0.95, power: float = 0.8
) -> int | None:
    """The number of samples at which the exact McNemar test would find the observed difference with that power.

    With the discordant rate ψ = (negative + positive) / n and the difference δ = |negative - positive| / n:

        M = [z_{1-α/2} √ψ + z_power √(ψ - δ²)]² / δ²,      N = M / 4 · (1 + √(1 + 4 / (M δ)))²

    M is for the test without continuity correction (Connor, Biometrics 43, 1987); N adds the correction (Fleiss,
    Levin and Paik, Statistical Methods for Rates and Proportions, 2003), without which the exact test falls up to
    4 points short. The exact test's power at N is the one asked for or up to 3 points more, 5 where some 20 discordant
    samples decide, and more still where fewer do. None when negative = positive: there is no difference to find.

    With ψ = 0.04 and δ = 0.02, M = [1.96 · 0.2 + 0.8416 · 0.199]² / 0.0004 = 783:

    >>> samples_for_mcnemar(30, 10, 1000)
    880
    """
    counts(negative + positive, n, names=("negative + positive", "n"))
    if not 0.0 < power < 1.0:
        raise InputError(f"power must lie strictly between 0 and 1, got {power}; 0.8 is customary.")
    if negative == positive:
        return None
    discordant, difference = (negative + positive) / n, abs(negative - positive) / n
    reach = float(student_quantile(confidence)) * math.sqrt(discordant)
    reach += float(special.ndtri(power)) * math.sqrt(discordant - difference**2)
    uncorrected = (reach / difference) ** 2
    return math.ceil(uncorrected / 4.0 * (1.0 + math.sqrt(1.0 + 4.0 / (uncorrected * difference))) ** 2)


def _smallest(holds: Callable[[int], bool]) -> int | None:
    """The smallest positive integer at which a condition holds that, once true, stays true."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
