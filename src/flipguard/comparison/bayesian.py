"""Bayesian prediction updates (Träuble et al. 2021): what to store when the versions of a chain contradict each other.

Each version's predictions are noisy readings of the unknown label; how noisy, a confusion matrix says. The belief about
a sample is updated with every version, and a rule decides when the stored prediction follows it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from flipguard.types import InputError

Rule = Literal["mb", "mbme", "cr"]
Likelihood = Literal["auto", "confusion", "diagonal"]
Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_BLOCK = 8192


def confusion(prediction: Codes, label: Codes, classes: int) -> Floats:
    r"""$\pi(i, k) = P(\hat y = i \mid y = k)$ from labelled rows: two (N,) of codes -> (C, C), its columns of sum 1.

    One imaginary row per column, spread over its C cells (Perks), so that nothing is impossible for having been unseen
    and a class's own rows still outweigh it. Rows whose prediction or label is -1 are left out.

    Class 0 was read as 0 twice and as 1 once, class 1 never seen:

    >>> confusion(np.array([0, 0, 1]), np.array([0, 0, 0]), 2)
    array([[0.625, 0.5  ],
           [0.375, 0.5  ]])
    """
    there = (prediction >= 0) & (label >= 0)
    cells = prediction[there] * classes + label[there]
    counts = np.bincount(cells, minlength=classes**2).reshape(classes, classes) + 1.0 / classes
    result: Floats = counts / counts.sum(axis=0)
    return result


def diagonal(prediction: Codes, label: Codes, classes: int) -> Floats:
    """The same for many classes: each class's share of right readings on the diagonal, the rest spread evenly.

    The share is (right + 1) / (rows + 2): a class that was not seen is read right half of the time.

    >>> diagonal(np.array([0, 0, 1]), np.array([0, 0, 0]), 3)
    array([[0.6 , 0.25, 0.25],
           [0.2 , 0.5 , 0.25],
           [0.2 , 0.25, 0.5 ]])
    """
    there = (prediction >= 0) & (label >= 0)
    seen = np.bincount(label[there], minlength=classes)
    right = np.bincount(label[there & (prediction == label)], minlength=classes)
    accuracy = (right + 1.0) / (seen + 2.0)
    result: Floats = np.broadcast_to((1 - accuracy) / max(classes - 1, 1), (classes, classes)).copy()
    np.fill_diagonal(result, accuracy)
    return result


def likelihood(prediction: Codes, label: Codes, classes: int, form: Likelihood = "auto") -> Floats:
    """π of one version, (C, C); `auto` takes the whole confusion matrix if there are C² labelled rows to fill it."""
    if form not in get_args(Likelihood):
        raise InputError(f"the likelihood must be one of {', '.join(get_args(Likelihood))}, not '{form}'.")
    if form == "auto":
        form = "confusion" if len(label) >= classes**2 else "diagonal"
    return (confusion if form == "confusion" else diagonal)(prediction, label, classes)


@dataclass(frozen=True, eq=False)
class Update:
    """What a rule stores after each version, (T+1, N), and the belief after the last, log-probabilities (N, C)."""

    stored: Codes
    log_posterior: Floats | None


def update(
    predictions: Codes,
    likelihoods: Sequence[Floats],
    *,
    rule: Rule = "cr",
    cost_ratio: float = 5.0,
    posteriors: bool = False,
) -> Update:
    r"""Run a chain of T + 1 versions through a rule: codes (T+1, N), -1 for none, and each version's π (C, C).

    $p(y{=}k \mid \hat y^{0:t}) \propto \pi^t(\hat y^t, k)\, p(y{=}k \mid \hat y^{0:t-1})$, uniform at first; the first
    version's predictions are stored as they are. Then `mb` (maximum belief) stores the most probable class
    $\hat l$; `mbme` (minimum entropy) only where the belief's entropy fell; `cr` (cost ratio) only where
    $p(\hat l) / p(stored)$ is above $|c_{NF} / c_{PF}|$. A missing prediction changes nothing, except that what comes
    first is stored. Of equally probable classes the stored one stays, else the first one is taken.

    Both versions are right 3 times in 4, so against the first word the second alone is worth a ratio of 1:

    >>> pi = np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> chain = np.array([[0, 0], [1, 0], [1, 1]])
    >>> update(chain, [pi] * 3, rule="mb").stored
    array([[0, 0],
           [0, 0],
           [1, 0]])
    >>> update(chain, [pi] * 3, rule="cr", cost_ratio=5.0).stored[-1]  # the ratio is 9 / 3
    array([0, 0])
    """
    if rule not in get_args(Rule):
        raise InputError(f"the rule must be one of {', '.join(get_args(Rule))}, not '{rule}'.")
    if not 1 <= cost_ratio < math.inf:
        raise InputError(f"the cost ratio must be at least 1, it is {cost_ratio:g}.")
    logs = [np.log(pi) for pi in likelihoods]
    stored = np.empty_like(predictions)
    beliefs = []
    for start in range(0, predictions.shape[1], _BLOCK):
        rows = slice(start, start + _BLOCK)
        stored[:, rows], belief = _run(predictions[:, rows], logs, rule, math.log(cost_ratio))
        if posteriors:
            beliefs.append(belief)
    return Update(stored, np.concatenate(beliefs) if posteriors else None)


def _run(predictions: Codes, logs: Sequence[Floats], rule: Rule, threshold: float) -> tuple[Codes, Floats]:
    """A block of rows: predictions (T+1, B), log π of each version -> what is stored (T+1, B), the belief (B, C)."""
    classes = logs[0].shape[0]
    belief = np.full((predictions.shape[1], classes), -math.log(classes))
    entropy = np.full(predictions.shape[1], math.log(classes))
    stored = np.empty_like(predictions)
    now = np.full(predictions.shape[1], -1, np.int64)
    for t, said in enumerate(predictions):
        evidence = np.where((said >= 0)[:, None], logs[t][np.maximum(said, 0)], 0.0)
        belief = _normalised(belief + evidence)
        before, entropy = entropy, -(np.exp(belief) * belief).sum(axis=1)
        ahead = belief.max(axis=1) - _at(belief, np.maximum(now, 0))
        # Rounding of sums in another order must not count as being ahead.
        change = ahead > (threshold if rule == "cr" else 0.0) + 1e-12
        if rule == "mbme":
            change &= entropy < before - 1e-12
        now = np.where(now < 0, said, np.where(change, belief.argmax(axis=1), now))
        stored[t] = now
    return stored, belief


def _normalised(log_p: Floats) -> Floats:
    top = log_p.max(axis=1, keepdims=True)
    result: Floats = log_p - top - np.log(np.exp(log_p - top).sum(axis=1, keepdims=True))
    return result


def _at(values: Floats, column: Codes) -> Floats:
    result: Floats = values[np.arange(len(values)), column]
    return result


@dataclass(frozen=True)
class Flips:
    """Flips along a chain of stored predictions against the labels."""

    negative: int
    positive: int
    labelled: int
    updates: int

    @property
    def negative_flip_rate(self) -> float:
        """ΣNF / (N·T)."""
        return self.negative / (self.labelled * self.updates)

    @property
    def positive_per_negative(self) -> float | None:
        """PF / NF; None when nothing flipped for the worse."""
        return self.positive / self.negative if self.negative else None


def flips(stored: Codes, label: Codes) -> Flips:
    """Sums over the T updates of (T+1, N) stored predictions; rows whose label is -1 are left out.

    >>> flips(np.array([[0, 0], [1, 1], [0, 1]]), np.array([0, 1]))
    Flips(negative=1, positive=2, labelled=2, updates=2)
    """
    there = label >= 0
    right = stored[:, there] == label[there]
    negative, positive = (right[:-1] & ~right[1:]).sum(), (~right[:-1] & right[1:]).sum()
    return Flips(int(negative), int(positive), int(there.sum()), len(stored) - 1)
