"""Exact tests, and what many tests at once do to a level."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from flipguard.statistics.interval import Floats, as_result, tail
from flipguard.types import InputError

Correction = Literal["holm", "bh"]


def mcnemar_exact(negative: ArrayLike, positive: ArrayLike) -> Floats:
    """Two-sided exact p-value that the new model errs as often as the old one.

    Given m = negative + positive discordant samples, either kind is Binomial(m, 1/2) under the hypothesis:

        p = min(1, 2 · P(X <= min(negative, positive))),   P(X <= k) = I_{1/2}(m - k, k + 1).

    McNemar, Psychometrika 12 (1947), in its exact form. 1 when nothing is discordant.

    One flip against six: 2 · (1 + 7) / 2⁷ = 1/8.

    >>> print(mcnemar_exact(6, 1))
    0.125
    """
    worse, better = np.broadcast_arrays(np.asarray(negative, dtype=np.float64), np.asarray(positive, dtype=np.float64))
    if not np.all((worse >= 0) & (better >= 0)):
        raise InputError("negative and positive are counts and must not be below 0.")
    fewer, more = np.minimum(worse, better), np.maximum(worse, better)
    one_side = special.betainc(np.maximum(more, 1.0), fewer + 1.0, 0.5)
    # Equal counts leave 2 P(X <= k) above 1 by exactly P(X = k).
    return as_result(np.where(more == fewer, 1.0, np.minimum(1.0, 2.0 * one_side)))


def holm(p_values: ArrayLike) -> Floats:
    """Holm's adjusted p-values (N,): the family-wise error is at most α when all at or below α are rejected.

    The i-th smallest of m becomes max over j <= i of min(1, (m - j + 1) p_(j)). Holm, Scand. J. Statist. 6
    (1979). Holds under any dependence. nan stays nan and does not count in m.

    >>> holm([0.01, 0.04, float("nan"), 0.03])
    array([0.03, 0.06,  nan, 0.06])
    """
    return _stepwise(p_values, lambda p: np.maximum.accumulate(p * np.arange(p.size, 0, -1, dtype=np.float64)))


def benjamini_hochberg(p_values: ArrayLike) -> Floats:
    """Benjamini and Hochberg's adjusted p-values (N,): the expected share of false rejections is at most α.

    The i-th smallest of m becomes min over j >= i of min(1, m p_(j) / j). J. R. Statist. Soc. B 57 (1995).
    Holds for independent or positively dependent tests. nan stays nan and does not count in m.

    >>> benjamini_hochberg([0.01, 0.04, float("nan"), 0.02])
    array([0.03, 0.04,  nan, 0.03])
    """
    return _stepwise(p_values, _step_up)


def adjust(p_values: ArrayLike, *, method: Correction = "holm") -> Floats:
    """Adjusted p-values by the name of the method, as a gate's configuration gives it.

    >>> adjust([0.01, 0.04], method="holm")
    array([0.02, 0.04])
    """
    return {"holm": holm, "bh": benjamini_hochberg}[_known(method)](p_values)


def simultaneous_confidence(
    confidence: float, *, tests: int, selected: int | None = None, method: Correction = "holm"
) -> float:
    """The level at which to build each of many intervals so that they hold together.

    holm: 1 - (1 - confidence) / tests (Bonferroni), under which all `tests` intervals cover at once with
    probability `confidence`, however the slices overlap; Šidák's slightly higher power needs independent
    slices and is not used.

    bh: 1 - selected · (1 - confidence) / tests, for the `selected` slices that the Benjamini-Hochberg rule
    reported: the expected share of those intervals that miss is at most 1 - confidence (Benjamini and
    Yekutieli, JASA 100, 2005).

    >>> round(simultaneous_confidence(0.95, tests=10), 6)
    0.995
    >>> round(simultaneous_confidence(0.95, tests=10, selected=4, method="bh"), 6)
    0.98
    """
    miss = 2.0 * tail(confidence)
    if tests < 1:
        return confidence
    if _known(method) == "holm":
        return 1.0 - miss / tests
    if selected is None or not 0 <= selected <= tests:
        raise InputError(
            f"method 'bh' needs selected, the number of slices reported, between 0 and {tests}; got {selected}."
        )
    return 1.0 - max(selected, 1) * miss / tests


def _known(method: str) -> str:
    if method not in ("holm", "bh"):
        raise InputError(f"method must be 'holm' or 'bh', got {method!r}.")
    return method


def _step_up(ascending: Floats) -> Floats:
    scaled = ascending * ascending.size / np.arange(1, ascending.size + 1)
    stepped: Floats = np.minimum.accumulate(scaled[::-1])[::-1]
    return stepped


def _stepwise(p_values: ArrayLike, rule: Callable[[Floats], Floats]) -> Floats:
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not np.all(np.isnan(p) | ((p >= 0) & (p <= 1))):
        raise InputError("p_values must be a list of numbers between 0 and 1 (or nan where no test was made).")
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    adjusted = np.full(p.shape, np.nan)
    adjusted[order] = np.minimum(rule(p[order]), 1.0)
    return adjusted
