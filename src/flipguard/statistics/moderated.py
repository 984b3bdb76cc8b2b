"""Variances that few values give each, and many rows together: each drawn towards what all have in common."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from flipguard.statistics.interval import Floats
from flipguard.types import InputError


def moderated_variance(variance: ArrayLike, freedom: ArrayLike) -> tuple[Floats, Floats]:
    """Variances (N,) of rows that are alike, and degrees of freedom (N,), each with what the others say of it.

    Empirical Bayes after Smyth (Stat. Appl. Genet. Mol. Biol. 3, 2004): if the true variances scatter as
    s₀² d₀ / χ²(d₀), then (d₀ s₀² + d s²) / (d₀ + d) estimates each with d₀ + d degrees of freedom. d₀ and s₀² follow
    from the mean and the spread of e = ln s² - ψ(d/2) + ln(d/2): ψ'(d₀/2) is what ψ'(d/2) leaves of the spread. Where
    that is nothing the true variances are taken for one, exp of the mean of e. No row gets more degrees of freedom than
    all rows of the estimate have together. Of the estimate are not: a variance of 0, which has no logarithm, and one
    that is far out, with e more than three quartile ranges above the upper quartile. A network that diverged in one row
    would otherwise widen all others (Phipson et al., Ann. Appl. Stat. 10, 2016, weigh such rows down); what the others
    have in common is not its own, so it keeps what it has.

    Three seeds give a variance two degrees of freedom, and Student's t then asks for 4.3 standard errors. Three rows
    that scatter alike have six:

    >>> variance, freedom = moderated_variance([1.0, 2.0, 3.0], [2, 2, 2])
    >>> print(variance.round(2), freedom)
    [3.24 3.24 3.24] [6. 6. 6.]
    """
    squares, own = np.broadcast_arrays(np.asarray(variance, dtype=np.float64), np.asarray(freedom, dtype=np.float64))
    if squares.ndim != 1 or not np.all(np.isfinite(squares) & (squares >= 0) & (own > 0)):
        raise InputError("one variance that is finite and not negative, and degrees of freedom above 0, for each row.")
    known = squares > 0
    if known.sum() < 2:
        return squares.copy(), own.copy()
    half_own = own / 2
    e = np.log(squares, where=known, out=np.zeros_like(squares)) - special.digamma(half_own) + np.log(half_own)
    low, high = np.quantile(e[known], [0.25, 0.75])
    apart = known & (e > high + 3 * (high - low))
    known &= ~apart
    d, logarithms, most = half_own[known], e[known], own[known].sum()
    scatter = float(np.var(logarithms, ddof=1) - special.polygamma(1, d).mean())
    if scatter <= 0:
        drawn, total = np.full_like(squares, np.exp(logarithms.mean())), np.full_like(own, most)
    else:
        half = _trigamma_inverse(scatter)
        common = np.exp(logarithms.mean() + special.digamma(half) - np.log(half))
        drawn, total = (2 * half * common + own * squares) / (2 * half + own), np.minimum(2 * half + own, most)
    return np.where(apart, squares, drawn), np.where(apart, own, total)


def _trigamma_inverse(value: float) -> float:
    """x with ψ'(x) = value, by Newton's method on 1/ψ', which is nearly a line."""
    x = 0.5 + 1 / value
    for _ in range(50):
        slope = float(special.polygamma(1, x))
        step = slope * (1 - slope / value) / float(special.polygamma(2, x))
        x += step
        if abs(step) < 1e-9 * x:
            break
    return x
