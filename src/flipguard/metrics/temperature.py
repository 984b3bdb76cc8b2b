"""Temperature scaling."""

from collections.abc import Callable

from flipguard.metrics.arrays import Array, as_codes, as_logits, check_rows, namespace, pick
from flipguard.types import InputError

LOWEST, HIGHEST = 0.01, 100.0
"""The range of temperatures. Rows that are all right have no best temperature above 0, rows at or below chance none
below infinity; both get the end of the range."""

_BLOCK = 8_192


def fit_temperature(logits: Array, label: Array) -> float:
    r"""$\tau^* = \arg\min_\tau -\sum_i \log \mathrm{softmax}(z_i / \tau)^{(y_i)}$ over the labelled rows.

    (B, C), (B,) -> a number in [0.01, 100]. LatentBE (Nam et al. 2022), App. B.3, Eq. 23; Guo et al. 2017. Rows whose
    label is not in [0, C), and rows with a logit that is not finite, are left out. Fit it on other rows than those it
    is then used on.

    The loss is convex in $\beta = 1/\tau$: its derivative is the sum of $E_\beta[z] - z_y$, its second derivative the
    sum of the variances of z under the softmax. Newton's steps in $\beta$ that leave the bracket give way to bisection.
    On a device it waits for every step.

    Odds of 9 to 1, right three times out of four: the best odds are 3 to 1, the square root, at a temperature of 2.

    >>> import numpy as np
    >>> logits = np.log([[9.0, 1.0]] * 4)
    >>> round(fit_temperature(logits, [0, 0, 0, 1]), 6)
    2.0
    """
    logits, label = as_logits(logits), as_codes(label, name="label")
    check_rows(logits=logits, label=label)
    xp = namespace(logits, label)
    kept = (label >= 0) & (label < logits.shape[1]) & xp.all(xp.isfinite(logits), axis=1)
    logits, label = logits[kept], label[kept]
    if label.shape[0] == 0:
        raise InputError("a temperature needs at least one row with a known label and finite logits, got none.")

    def slope(beta: float) -> tuple[float, float]:
        parts = [
            _slope(logits[start : start + _BLOCK], label[start : start + _BLOCK], beta)
            for start in range(0, label.shape[0], _BLOCK)
        ]
        return sum(first for first, _ in parts), sum(second for _, second in parts)

    return 1.0 / _root(slope, 1.0 / HIGHEST, 1.0 / LOWEST)


def _slope(logits: Array, label: Array, beta: float) -> tuple[float, float]:
    """The loss's first and second derivative in beta, summed over the rows."""
    xp = namespace(logits)
    logits = xp.astype(logits, xp.float64)
    shifted = logits - xp.max(logits, axis=1, keepdims=True)
    weight = xp.exp(beta * shifted)
    total = xp.sum(weight, axis=1)
    mean = xp.vecdot(weight, shifted) / total
    variance = xp.vecdot(weight, (shifted - mean[:, None]) ** 2) / total
    return float(xp.sum(mean - pick(xp, shifted, label))), float(xp.sum(variance))


def _root(slope: Callable[[float], tuple[float, float]], low: float, high: float) -> float:
    """Where a rising function with its derivative is 0 in [low, high], or the end that is nearest to it."""
    if slope(low)[0] >= 0:
        return low
    if slope(high)[0] <= 0:
        return high
    beta = 1.0
    # Bisection alone would take 47 steps from the full bracket to its last digits.
    for _ in range(64):
        value, derivative = slope(beta)
        low, high = (beta, high) if value < 0 else (low, beta)
        step = beta - value / derivative if derivative > 0 else low
        proposal = step if low < step < high else (low + high) / 2
        if abs(proposal - beta) <= 1e-12 * beta:
            return proposal
        beta = proposal
    return beta
