"""Figures from the scores in a tally, and all figures by name."""

from collections.abc import Callable

import numpy as np

from flipguard.metrics import rates
from flipguard.metrics.arrays import Array
from flipguard.metrics.rates import ratio
from flipguard.metrics.sums import ModelScores, PairScores, Tally
from flipguard.types import InputError

OLD, NEW = 0, 1


def surrogate_churn(tally: Tally) -> Array:
    r"""$\frac12 E \lVert (f_{old}/\max f_{old})^\alpha - (f_{new}/\max f_{new})^\alpha \rVert_1$.

    Over the rows where both have logits. Churn paper (Bhojanapalli et al. 2021), Eq. 4. The first row is (1, 1/2)
    against (1/4, 1), half of 3/4 + 1/2; the second does not change:

    >>> print(surrogate_churn(_example()))
    0.3125
    """
    pair = _pair(tally)
    return ratio(pair.surrogate_churn, pair.n)


def nll_old(tally: Tally) -> Array:
    r"""$-\frac1N \sum_i \log p_{old}^{(y_i)}(x_i)$ over the rows whose label the old model knows.

    LatentBE (Nam et al. 2022), App. B.3, Eq. 20, as a mean rather than a sum. (log 3/2 + log 4) / 2:

    >>> print(nll_old(_example()).round(4))
    0.8959
    """
    return _nll(_models(tally), OLD)


def nll_new(tally: Tally) -> Array:
    r"""$-\frac1N \sum_i \log p_{new}^{(y_i)}(x_i)$ over the rows whose label the new model knows.

    LatentBE (Nam et al. 2022), App. B.3, Eq. 20, as a mean rather than a sum. (log 5 + log 4) / 2:

    >>> print(nll_new(_example()).round(4))
    1.4979
    """
    return _nll(_models(tally), NEW)


def ece_old(tally: Tally) -> Array:
    r"""$\sum_l \frac{|B_l|}{N} |acc(B_l) - conf(B_l)|$ of the old model over 15 bins $((l-1)/15, l/15]$.

    LatentBE (Nam et al. 2022), App. B.3, Eq. 21. A right row at 2/3 and a wrong one at 3/4: (1/3 + 3/4) / 2.

    >>> print(ece_old(_example()).round(4))
    0.5417
    """
    return _ece(_models(tally), OLD)


def ece_new(tally: Tally) -> Array:
    r"""$\sum_l \frac{|B_l|}{N} |acc(B_l) - conf(B_l)|$ of the new model over 15 bins $((l-1)/15, l/15]$.

    LatentBE (Nam et al. 2022), App. B.3, Eq. 21. Wrong rows at 4/5 and 3/4:

    >>> print(ece_new(_example()).round(4))
    0.775
    """
    return _ece(_models(tally), NEW)


def cnll_old(tally: Tally) -> Array:
    """`nll_old` after dividing the old logits by the old model's temperature. LatentBE, App. B.3, Eq. 24.

    At a temperature of 1/2 odds are squared: (log 5/4 + log 10) / 2.

    >>> print(cnll_old(_example()).round(4))
    1.2629
    """
    return _nll(_calibrated(tally), OLD)


def cnll_new(tally: Tally) -> Array:
    """`nll_new` after dividing the new logits by the new model's temperature. LatentBE, App. B.3, Eq. 24.

    At a temperature of 1 nothing changes:

    >>> print(cnll_new(_example()).round(4))
    1.4979
    """
    return _nll(_calibrated(tally), NEW)


def cece_old(tally: Tally) -> Array:
    """`ece_old` after dividing the old logits by the old model's temperature. LatentBE, App. B.3, Eq. 25.

    At a temperature of 1/2 odds are squared, so the top probabilities are 4/5 and 9/10: (1/5 + 9/10) / 2.

    >>> print(cece_old(_example()).round(4))
    0.55
    """
    return _ece(_calibrated(tally), OLD)


def cece_new(tally: Tally) -> Array:
    """`ece_new` after dividing the new logits by the new model's temperature. LatentBE, App. B.3, Eq. 25.

    At a temperature of 1 nothing changes:

    >>> print(cece_new(_example()).round(4))
    0.775
    """
    return _ece(_calibrated(tally), NEW)


def prediction_confidence_old(tally: Tally) -> Array:
    r"""$E[\gamma]$ of the old model: the mean gap between its two largest probabilities.

    Churn paper (Bhojanapalli et al. 2021), Eq. 5. (1/3 + 1/2) / 2:

    >>> print(prediction_confidence_old(_example()).round(4))
    0.4167
    """
    scores = _models(tally)
    return ratio(scores.confidence[..., OLD], scores.n[..., OLD])


def prediction_confidence_new(tally: Tally) -> Array:
    r"""$E[\gamma]$ of the new model: the mean gap between its two largest probabilities.

    Churn paper (Bhojanapalli et al. 2021), Eq. 5. (3/5 + 1/2) / 2:

    >>> print(prediction_confidence_new(_example()).round(4))
    0.55
    """
    scores = _models(tally)
    return ratio(scores.confidence[..., NEW], scores.n[..., NEW])


def predictive_entropy_old(tally: Tally) -> Array:
    r"""$-E \sum_k p^{(k)} \log p^{(k)}$ of the old model, in nats.

    Churn paper (Bhojanapalli et al. 2021), section 3.1. H(2/3, 1/3) = 0.6365 and H(3/4, 1/4) = 0.5623:

    >>> print(predictive_entropy_old(_example()).round(4))
    0.5994
    """
    scores = _models(tally)
    return ratio(scores.entropy[..., OLD], scores.n[..., OLD])


def predictive_entropy_new(tally: Tally) -> Array:
    r"""$-E \sum_k p^{(k)} \log p^{(k)}$ of the new model, in nats.

    Churn paper (Bhojanapalli et al. 2021), section 3.1. H(1/5, 4/5) = 0.5004 and H(3/4, 1/4) = 0.5623:

    >>> print(predictive_entropy_new(_example()).round(4))
    0.5314
    """
    scores = _models(tally)
    return ratio(scores.entropy[..., NEW], scores.n[..., NEW])


def logit_displacement(tally: Tally) -> Array:
    r"""$E \lVert \phi_{old}(x) - \phi_{new}(x) \rVert_2$ over the rows where both have logits.

    ELODI (Zhao et al. 2024), section 3.1. The first row moves by (log 2, log 4), a length of 1.5499, the second not
    at all:

    >>> print(logit_displacement(_example()).round(4))
    0.775
    """
    pair = _pair(tally)
    return ratio(pair.displacement.sum(-1), pair.displaced.sum(-1))


def logit_displacement_by_outcome(tally: Tally) -> Array:
    """The mean displacement of the rows of each outcome: (..., 7), nan where there are none. ELODI, section 3.1.

    One negative flip that moves by 1.5499, and a row that stays wrong and does not move:

    >>> logit_displacement_by_outcome(_example()).round(4)
    array([   nan, 1.5499,    nan, 0.    ,    nan,    nan,    nan])
    """
    pair = _pair(tally)
    return ratio(pair.displacement, pair.displaced)


def flip_rank(tally: Tally) -> Array:
    """The share of negative flips by the rank that the new, wrong class has in the old logits: 1 to 10, and beyond.

    (..., 11). ELODI (Zhao et al. 2024), Fig. 4. The only flip goes to the old model's second choice:

    >>> flip_rank(_example())
    array([0., 1., 0., 0., 0., 0., 0., 0., 0., 0., 0.])
    """
    rank = _pair(tally).rank
    return ratio(rank, rank.sum(-1)[..., None])


def _nll(scores: ModelScores, model: int) -> Array:
    return ratio(scores.nll[..., model], scores.labelled[..., model])


def _ece(scores: ModelScores, model: int) -> Array:
    bins = scores.bins[..., model, :, :]
    return ratio(abs(bins[..., 1] - bins[..., 2]).sum(-1), bins[..., 0].sum(-1))


def _models(tally: Tally) -> ModelScores:
    if tally.models is None:
        raise InputError("this figure needs a tally with logits; pass old_logits= or new_logits= when it is made.")
    return tally.models


def _calibrated(tally: Tally) -> ModelScores:
    if tally.calibrated is None:
        raise InputError("calibrated figures need temperatures; pass temperature=(old, new) when the tally is made.")
    return tally.calibrated


def _pair(tally: Tally) -> PairScores:
    if tally.pair is None:
        raise InputError("this figure needs a tally with both models' logits; pass old_logits= and new_logits=.")
    return tally.pair


Figure = Callable[[Tally], Array]

_WEIGHTED: tuple[Figure, ...] = (
    rates.weighted_error_rate_old,
    rates.weighted_error_rate_new,
    rates.weighted_negative_flip_rate,
    rates.weighted_positive_flip_rate,
)
_COUNTED: tuple[Figure, ...] = (
    rates.error_rate_old,
    rates.error_rate_new,
    rates.negative_flip_rate,
    rates.positive_flip_rate,
    rates.relative_negative_flip_rate,
    rates.churn,
    rates.churn_correct,
    rates.churn_incorrect,
    rates.churn_bound,
    rates.negative_flip_impact,
    rates.backward_trust_compatibility,
    rates.backward_error_compatibility,
)
_OF_MODELS: tuple[Figure, ...] = (
    nll_old,
    nll_new,
    ece_old,
    ece_new,
    prediction_confidence_old,
    prediction_confidence_new,
    predictive_entropy_old,
    predictive_entropy_new,
)
_CALIBRATED: tuple[Figure, ...] = (cnll_old, cnll_new, cece_old, cece_new)
_OF_PAIR: tuple[Figure, ...] = (surrogate_churn, logit_displacement)
_BY_BUCKET: tuple[Figure, ...] = (logit_displacement_by_outcome, flip_rank)

FIGURES: dict[str, Figure] = {
    figure.__name__: figure for figure in (*_COUNTED, *_WEIGHTED, *_OF_MODELS, *_CALIBRATED, *_OF_PAIR, *_BY_BUCKET)
}
"""Every figure that needs nothing but a tally, by name. `flip_cost` stands apart: it needs a cost ratio."""


def figures(tally: Tally) -> dict[str, Array]:
    """Every figure that the tally's sums allow, by name.

    >>> print(figures(_example())["negative_flip_rate"])
    0.5
    >>> "weighted_negative_flip_rate" in figures(_example())
    False
    """
    allowed = (
        *_COUNTED,
        *(_WEIGHTED if tally.weight is not None else ()),
        *(_OF_MODELS if tally.models is not None else ()),
        *(_CALIBRATED if tally.calibrated is not None else ()),
        *((*_OF_PAIR, *_BY_BUCKET) if tally.pair is not None else ()),
    )
    return {figure.__name__: figure(tally) for figure in allowed}


def _example() -> Tally:
    """The tally of the examples: two rows of class 0 out of two, by their odds, and temperatures of 1/2 and 1."""
    from flipguard.metrics.scoring import tally

    old = np.log([[2.0, 1.0], [1.0, 3.0]])
    new = np.log([[1.0, 4.0], [1.0, 3.0]])
    return tally([0, 0], None, None, old_logits=old, new_logits=new, temperature=(0.5, 1.0))
