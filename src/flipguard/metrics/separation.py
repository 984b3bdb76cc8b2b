"""Samples unlike any that a model was trained on: how uncertain it is of them, and whether that tells them apart."""

from flipguard.metrics.arrays import Array, as_values, namespace
from flipguard.metrics.scores import predictive_entropy_per_sample
from flipguard.types import InputError


def predictive_entropy(logits: Array) -> float:
    """The mean over rows of the entropy of the softmax, in nats: (B, C) -> a number.

    LatentBE (Nam et al. 2022) measures it on out-of-distribution data, where a model had better be unsure. Rows whose
    logits are not finite are left out.

    One row is certain and one has no preference among four classes, so that the mean is log 4 / 2 = 0.6931:

    >>> import numpy as np
    >>> round(predictive_entropy(np.array([[1e4, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])), 4)
    0.6931
    """
    entropy = predictive_entropy_per_sample(logits)
    xp = namespace(entropy)
    there = xp.isfinite(entropy)
    rows = int(xp.sum(xp.astype(there, xp.int64)))
    if not rows:
        raise InputError("the entropy of no row can be measured: there are none, or no logits are finite.")
    return float(xp.sum(xp.where(there, entropy, 0.0))) / rows


def auroc(inside: Array, outside: Array) -> float:
    r"""$P(s_{out} > s_{in}) + \frac12 P(s_{out} = s_{in})$ of a random pair: (N,), (M,) scores -> a number.

    The area under the curve by which a score such as `predictive_entropy_per_sample` tells samples from outside the
    distribution (which should score higher) from those inside: 1 is always, 0.5 a coin. As Mann & Whitney's U, by
    sorting.

    Of the four pairs, outside is higher in two and equal in one:

    >>> import numpy as np
    >>> auroc(np.array([1.0, 3.0]), np.array([3.0, 2.0]))
    0.625
    """
    inside, outside = as_values(inside, name="inside"), as_values(outside, name="outside")
    xp = namespace(inside, outside)
    for name, scores in (("inside", inside), ("outside", outside)):
        if not scores.shape[0] or not bool(xp.all(xp.isfinite(scores))):
            raise InputError(f"{name} must hold at least one score, all of them finite.")
    ordered = xp.sort(inside)
    below, not_above = (xp.searchsorted(ordered, outside, side=side) for side in ("left", "right"))
    pairs = float(xp.sum(xp.astype(below + not_above, xp.float64))) / 2
    return pairs / (int(inside.shape[0]) * int(outside.shape[0]))
