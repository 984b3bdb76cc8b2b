"""How far the members of an ensemble disagree."""

import numpy as np

from flipguard.metrics.arrays import Array, as_array, namespace
from flipguard.types import InputError


def functional_diversity_per_sample(logits: Array) -> Array:
    r"""$\frac{1}{M(M-1)} \sum_i \sum_j KL(p_i(x) \| p_j(x))$ of each row, with $p_m$ the softmax of member m's logits.

    (M, B, C) -> (B,) float64. LatentBE (Nam et al. 2022), Eq. 6: TDiv of teachers, SDiv of a student's members.
    With a bar for the mean over members, the double sum is
    $M \sum_i \sum_k p_i^{(k)} (\log p_i^{(k)} - \overline{\log p}^{(k)})$.
    A row with a logit that is not finite gives nan.

    Odds of 3 to 1 and of 1 to 3: each KL is ¾ log 3 - ¼ log 3 = ½ log 3.

    >>> functional_diversity_per_sample(np.log([[[3.0, 1.0]], [[1.0, 3.0]]])).round(4)
    array([0.5493])
    """
    members = as_array(logits)
    if members.ndim != 3 or members.shape[0] < 2 or members.shape[2] == 0:
        raise InputError(
            "diversity needs logits of the shape (members, rows, classes) with at least 2 members, got "
            f"{tuple(members.shape)}."
        )
    xp = namespace(members)
    with np.errstate(invalid="ignore", over="ignore"):
        wide = xp.astype(members, xp.float64)
        shifted = wide - xp.max(wide, axis=2, keepdims=True)
        logs = shifted - xp.log(xp.sum(xp.exp(shifted), axis=2, keepdims=True))
        apart = logs - xp.mean(logs, axis=0, keepdims=True)
        total = xp.sum(xp.sum(xp.exp(logs) * apart, axis=2), axis=0) / (members.shape[0] - 1)
    # Rounding of members that agree may leave a little less than nothing; nan stays nan.
    return xp.where(total < 0, xp.zeros_like(total), total)


def functional_diversity(logits: Array) -> float:
    """The mean over the rows whose logits are all finite; nan without any. (M, B, C) -> a number.

    >>> functional_diversity(np.zeros((3, 5, 7)))
    0.0
    """
    values = functional_diversity_per_sample(logits)
    xp = namespace(values)
    kept = values[xp.isfinite(values)]
    return float(xp.mean(kept)) if kept.shape[0] else float("nan")
