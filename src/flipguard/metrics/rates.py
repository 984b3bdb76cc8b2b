"""Figures that are ratios of counts by outcome; each formula stands once, in `RATES`."""

from dataclasses import dataclass

import numpy as np

from flipguard.metrics.arrays import Array, namespace
from flipguard.metrics.outcome import (
    BOTH_RIGHT,
    BOTH_WRONG_DIFFERENT,
    BOTH_WRONG_SAME,
    NEGATIVE_FLIP,
    POSITIVE_FLIP,
    UNLABELLED_DIFFERENT,
    UNLABELLED_SAME,
)
from flipguard.metrics.sums import Tally
from flipguard.types import InputError


def ratio(numerator: Array, denominator: Array) -> Array:
    """The quotient in float64, nan where the denominator is 0."""
    xp = namespace(numerator, denominator)
    numerator, denominator = xp.astype(numerator, xp.float64), xp.astype(denominator, xp.float64)
    empty = denominator == 0
    return xp.where(empty, xp.nan, numerator / xp.where(empty, 1.0, denominator))[()]


@dataclass(frozen=True)
class Rate:
    """A binomial rate: of the rows with an outcome in `denominator`, the share with one in `numerator`."""

    numerator: tuple[int, ...]
    denominator: tuple[int, ...]

    def of(self, by_outcome: Array) -> Array:
        """The rate from counts (or weights) by outcome: (..., 7) -> (...,)."""

        def total(codes: tuple[int, ...]) -> Array:
            # A list as an index would be copied to the device, and that waits for it.
            return sum(by_outcome[..., code] for code in codes)

        return ratio(total(self.numerator), total(self.denominator))


_OLD_RIGHT = (BOTH_RIGHT, NEGATIVE_FLIP)
_OLD_WRONG = (POSITIVE_FLIP, BOTH_WRONG_SAME, BOTH_WRONG_DIFFERENT)
_NEW_WRONG = (NEGATIVE_FLIP, BOTH_WRONG_SAME, BOTH_WRONG_DIFFERENT)
_LABELLED = (*_OLD_RIGHT, *_OLD_WRONG)

RATES: dict[str, Rate] = {
    "error_rate_old": Rate(_OLD_WRONG, _LABELLED),
    "error_rate_new": Rate(_NEW_WRONG, _LABELLED),
    "negative_flip_rate": Rate((NEGATIVE_FLIP,), _LABELLED),
    "positive_flip_rate": Rate((POSITIVE_FLIP,), _LABELLED),
    "churn": Rate(
        (NEGATIVE_FLIP, POSITIVE_FLIP, BOTH_WRONG_DIFFERENT, UNLABELLED_DIFFERENT),
        (*_LABELLED, UNLABELLED_SAME, UNLABELLED_DIFFERENT),
    ),
    "churn_correct": Rate((NEGATIVE_FLIP,), _OLD_RIGHT),
    "churn_incorrect": Rate((POSITIVE_FLIP, BOTH_WRONG_DIFFERENT), _OLD_WRONG),
    "negative_flip_impact": Rate((NEGATIVE_FLIP,), _NEW_WRONG),
    "backward_trust_compatibility": Rate((BOTH_RIGHT,), _OLD_RIGHT),
    "backward_error_compatibility": Rate((BOTH_WRONG_SAME, BOTH_WRONG_DIFFERENT), _NEW_WRONG),
}
"""The binomial rates by name. A function of the same name applies each to a tally."""


def error_rate_old(tally: Tally) -> Array:
    r"""$ER_{old} = \frac1N \sum_i 1(\hat y_i^{old} \neq y_i)$ over the labelled rows. ELODI (Zhao et al. 2024), Eq. 10.

    6 + 1 + 1 + 1 + 1 rows, of which the old model has the last three wrong:

    >>> print(error_rate_old(_example()))
    0.3
    """
    return RATES["error_rate_old"].of(tally.count)


def error_rate_new(tally: Tally) -> Array:
    r"""$ER_{new} = \frac1N \sum_i 1(\hat y_i^{new} \neq y_i)$ over the labelled rows. ELODI (Zhao et al. 2024), Eq. 10.

    Of 10 rows one negative flip and two that both have wrong:

    >>> print(error_rate_new(_example()))
    0.3
    """
    return RATES["error_rate_new"].of(tally.count)


def negative_flip_rate(tally: Tally) -> Array:
    r"""$NFR = \frac1N \sum_i 1(\hat y_i^{new} \neq y_i, \hat y_i^{old} = y_i)$ over the labelled rows.

    PCT (Yan et al. 2021), Eq. 2; ELODI (Zhao et al. 2024), Eq. 11. One of 10:

    >>> print(negative_flip_rate(_example()))
    0.1
    """
    return RATES["negative_flip_rate"].of(tally.count)


def positive_flip_rate(tally: Tally) -> Array:
    r"""$PFR = \frac1N \sum_i 1(\hat y_i^{new} = y_i, \hat y_i^{old} \neq y_i)$ over the labelled rows.

    PCT (Yan et al. 2021), section 3.1. One of 10:

    >>> print(positive_flip_rate(_example()))
    0.1
    """
    return RATES["positive_flip_rate"].of(tally.count)


def relative_negative_flip_rate(tally: Tally) -> Array:
    r"""$\frac{NFR}{(1 - ER_{old}) \, ER_{new}}$: 1 when the new model's errors fall independently of the old one's.

    PCT (Yan et al. 2021), Eq. 11; ELODI (Zhao et al. 2024), Eq. 12. Here 0.1 / (0.7 x 0.3):

    >>> print(relative_negative_flip_rate(_example()).round(4))
    0.4762
    """
    return ratio(negative_flip_rate(tally), (1 - error_rate_old(tally)) * error_rate_new(tally))


def churn(tally: Tally) -> Array:
    r"""$P[\hat y^{old} \neq \hat y^{new}]$ over all rows, with or without a label.

    Churn paper (Bhojanapalli et al. 2021), Eq. 3. Two flips and one other change, of 10:

    >>> print(churn(_example()))
    0.3
    """
    return RATES["churn"].of(tally.count)


def churn_correct(tally: Tally) -> Array:
    """Churn among the labelled rows that the old model has right: the share of them that flip.

    Churn paper (Bhojanapalli et al. 2021), section 2.1. One of 7:

    >>> print(churn_correct(_example()).round(4))
    0.1429
    """
    return RATES["churn_correct"].of(tally.count)


def churn_incorrect(tally: Tally) -> Array:
    """Churn among the labelled rows that the old model has wrong.

    Churn paper (Bhojanapalli et al. 2021), section 2.1. Two of 3:

    >>> print(churn_incorrect(_example()).round(4))
    0.6667
    """
    return RATES["churn_incorrect"].of(tally.count)


def churn_bound(tally: Tally) -> Array:
    r"""$ER_{old} + ER_{new}$, which churn on labelled rows cannot exceed.

    Churn paper (Bhojanapalli et al. 2021), Lemma 1. 0.3 + 0.3:

    >>> print(churn_bound(_example()))
    0.6
    """
    return error_rate_old(tally) + error_rate_new(tally)


def negative_flip_impact(tally: Tally) -> Array:
    r"""$NFR / ER_{new}$: the share of the new model's errors that the old model did not make.

    One of 3:

    >>> print(negative_flip_impact(_example()).round(4))
    0.3333
    """
    return RATES["negative_flip_impact"].of(tally.count)


def backward_trust_compatibility(tally: Tally) -> Array:
    """BTC: of the labelled rows that the old model has right, the share that the new one has right too.

    Srivastava et al. 2020, "An empirical analysis of backward compatibility in machine learning systems". 6 of 7:

    >>> print(backward_trust_compatibility(_example()).round(4))
    0.8571
    """
    return RATES["backward_trust_compatibility"].of(tally.count)


def backward_error_compatibility(tally: Tally) -> Array:
    """BEC: of the labelled rows that the new model has wrong, the share that the old one has wrong too.

    Srivastava et al. 2020, "An empirical analysis of backward compatibility in machine learning systems". 2 of 3:

    >>> print(backward_error_compatibility(_example()).round(4))
    0.6667
    """
    return RATES["backward_error_compatibility"].of(tally.count)


def weighted_negative_flip_rate(tally: Tally) -> Array:
    r"""$\sum_i w_i 1(\text{negative flip}) / \sum_i w_i$ over the labelled rows.

    The flip weighs 3 of 12:

    >>> print(weighted_negative_flip_rate(_example()))
    0.25
    """
    return RATES["negative_flip_rate"].of(_weight(tally))


def weighted_positive_flip_rate(tally: Tally) -> Array:
    r"""$\sum_i w_i 1(\text{positive flip}) / \sum_i w_i$ over the labelled rows.

    >>> print(weighted_positive_flip_rate(_example()).round(4))
    0.0833
    """
    return RATES["positive_flip_rate"].of(_weight(tally))


def weighted_error_rate_old(tally: Tally) -> Array:
    r"""$\sum_i w_i 1(\hat y_i^{old} \neq y_i) / \sum_i w_i$ over the labelled rows.

    >>> print(weighted_error_rate_old(_example()))
    0.25
    """
    return RATES["error_rate_old"].of(_weight(tally))


def weighted_error_rate_new(tally: Tally) -> Array:
    r"""$\sum_i w_i 1(\hat y_i^{new} \neq y_i) / \sum_i w_i$ over the labelled rows.

    >>> print(weighted_error_rate_new(_example()).round(4))
    0.4167
    """
    return RATES["error_rate_new"].of(_weight(tally))


def flip_cost(tally: Tally, *, ratio: float) -> Array:
    r"""$\frac{c_{NF}}{c_{PF}} NFR - PFR$: the cost of an update, in units of what one positive flip gains.

    `ratio` says how many positive flips make up for a negative one. With weights the two rates are the weighted ones.
    Cost ratio: Träuble et al. 2021, "Backward-compatible prediction updates". Here 5 x 3/12 - 1/12:

    >>> print(flip_cost(_example(), ratio=5.0).round(4))
    1.1667
    """
    by_outcome = tally.count if tally.weight is None else tally.weight
    return ratio * RATES["negative_flip_rate"].of(by_outcome) - RATES["positive_flip_rate"].of(by_outcome)


def _weight(tally: Tally) -> Array:
    if tally.weight is None:
        raise InputError("weighted figures need a tally with weights; pass weight= when it is made.")
    return tally.weight


def _example() -> Tally:
    """The tally of the examples: 6, 1, 1, 1 and 1 labelled rows by outcome, weighing 6, 3, 1, 1 and 1."""
    return Tally(
        count=np.array([6, 1, 1, 1, 1, 0, 0]),
        missing=np.array([0, 0]),
        weight=np.array([6.0, 3.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
        weight_squared=np.array([6.0, 9.0, 1.0, 1.0, 1.0, 0.0, 0.0]),
    )
