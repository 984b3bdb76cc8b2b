"""What every function of this room shares: the interval it returns and the checks on what it is given."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from flipguard.types import InputError

Floats = NDArray[np.float64]
"""A float64 array, one entry per group; a NumPy scalar (a Python float too) when there is one group."""


class Interval(NamedTuple):
    """The two ends of a confidence interval, one pair per group.

    An end that the data say nothing about is the end of the parameter's range (0, 1 or infinity), never nan,
    so that "is the upper end below the limit?" has an answer for an empty group: no.
    """

    low: Floats
    high: Floats


def tail(confidence: float) -> float:
    """The probability left outside a two-sided interval on each side, (1 - confidence) / 2.

    >>> round(tail(0.95), 6)
    0.025
    """
    if not 0.0 < confidence < 1.0:
        raise InputError(
            f"confidence must lie strictly between 0 and 1, got {confidence}; pass 0.95 for a 95 % interval."
        )
    return (1.0 - confidence) / 2.0


def student_quantile(confidence: float, degrees_of_freedom: ArrayLike = np.inf) -> Floats:
    """How many standard errors a two-sided interval reaches to each side; normal when the degrees are infinite.

    >>> print(f"{student_quantile(0.95):.4f} {student_quantile(0.95, 10):.4f}")
    1.9600 2.2281
    """
    degrees = np.asarray(degrees_of_freedom, dtype=np.float64)
    upper = 1.0 - tail(confidence)
    finite = np.where(np.isfinite(degrees) & (degrees > 0), degrees, 1.0)
    reach = np.where(np.isinf(degrees), special.ndtri(upper), special.stdtrit(finite, upper))
    return as_result(np.where(degrees > 0, reach, np.inf))


def counts(part: ArrayLike, whole: ArrayLike, *, names: tuple[str, str]) -> tuple[Floats, Floats]:
    """Both as float64 arrays of one shape, with 0 <= part <= whole checked."""
    few, all_ = np.broadcast_arrays(np.asarray(part, dtype=np.float64), np.asarray(whole, dtype=np.float64))
    wrong = ~((few >= 0) & (few <= all_) & np.isfinite(all_))
    if np.any(wrong):
        raise InputError(f"{names[0]} must lie between 0 and {names[1]}, got {few[wrong][0]:g} of {all_[wrong][0]:g}.")
    return few, all_


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """numerator / denominator, nan where the denominator is 0, without a warning.

    >>> ratio([1, 0], [4, 0])
    array([0.25,  nan])
    """
    over, under = np.broadcast_arrays(
        np.asarray(numerator, dtype=np.float64), np.asarray(denominator, dtype=np.float64)
    )
    quotient: Floats = np.divide(over, under, out=np.full(over.shape, np.nan), where=under != 0)
    return quotient


def as_result(values: ArrayLike) -> Floats:
    """float64; a zero-dimensional array becomes a NumPy scalar, as NumPy's own functions return it."""
    result: Floats = np.asarray(values, dtype=np.float64)[()]
    return result
