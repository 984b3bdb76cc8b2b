"""Scores of single samples from their logits: one number per row, for NumPy arrays and torch tensors.

Half-precision and float32 logits are computed with in float32, float64 logits in float64; the results are float64.
"""

from dataclasses import dataclass

import numpy as np

from flipguard.metrics.arrays import Array, as_codes, as_logits, check_rows, into, namespace, pick, put, row_sums


@dataclass(frozen=True, eq=False)
class Softmax:
    """What the scores of one model's rows share, so that the exponential is taken once.

    Every score follows from the logits relative to the largest one, s = z - max z <= 0, which keeps logits of any
    size finite. `rest` leaves the largest term (exactly 1) out of the total, so that the logarithm of a confident
    row's total keeps its digits. All are float64 but `top`.
    """

    top: Array  # (B,) the first largest column
    rest: Array  # (B,) sum of exp s over the columns other than `top`
    second: Array  # (B,) the largest exp s over the columns other than `top`
    dot: Array  # (B,) sum of s exp s; not finite where a logit of the row is not
    at_label: Array  # (B,) s in the label's column

    @property
    def finite(self) -> Array:
        """(B,) whether all logits of the row are finite."""
        return namespace(self.dot).isfinite(self.dot)

    @property
    def top_probability(self) -> Array:
        """(B,) the largest probability."""
        return 1.0 / (1.0 + self.rest)

    @property
    def confidence(self) -> Array:
        """(B,) the largest probability less the second largest."""
        return (1.0 - self.second) / (1.0 + self.rest)

    @property
    def entropy(self) -> Array:
        """(B,) in nats."""
        return namespace(self.rest).log1p(self.rest) - self.dot / (1.0 + self.rest)

    @property
    def nll(self) -> Array:
        """(B,) -log of the label's probability."""
        return namespace(self.rest).log1p(self.rest) - self.at_label


def shift(logits: Array, out: Array | None = None) -> tuple[Array, Array]:
    """(B, C) logits -> (B,) the first largest column, and (B, C) the logits less the largest, in `out` if given."""
    xp = namespace(logits)
    top = xp.argmax(logits, axis=1)
    return top, into(xp.subtract, logits, pick(xp, logits, top)[:, None], out=out)


def softmax(shifted: Array, top: Array, label: Array | None = None, out: Array | None = None) -> tuple[Softmax, Array]:
    """What `shift` gave -> the shared intermediates, and (B, C) exp s = f / max f, in `out` if given.

    `label` (B,) holds columns; without it `at_label` is that of the largest logit, which is 0.
    """
    xp = namespace(shifted)
    relative = into(xp.exp, shifted, out=out)
    put(relative, top, 0.0)
    rest = row_sums(relative)
    # An argmax and a gather take half the time of NumPy's max along short rows.
    second = pick(xp, relative, xp.argmax(relative, axis=1))
    dot = xp.vecdot(relative, shifted)
    put(relative, top, 1.0)
    at_label = pick(xp, shifted, top if label is None else label)
    rest, second, dot, at_label = (xp.astype(value, xp.float64) for value in (rest, second, dot, at_label))
    return Softmax(top, rest, second, dot, at_label), relative


def halved_distance(old: Array, new: Array, out: Array | None = None) -> Array:
    """(B, C), (B, C) -> (B,) float64: half of the L1 distance. `out` is written over."""
    xp = namespace(old, new)
    gap = into(xp.subtract, old, new, out=out)
    gap = into(xp.abs, gap, out=out)
    return 0.5 * xp.astype(row_sums(gap), xp.float64)


def distance(old: Array, new: Array, out: Array | None = None) -> Array:
    """(B, C), (B, C) -> (B,) float64: the L2 distance. `out` is written over."""
    xp = namespace(old, new)
    gap = into(xp.subtract, old, new, out=out)
    return xp.sqrt(xp.astype(xp.vecdot(gap, gap), xp.float64))


def _softmax_of(logits: Array, label: Array | None = None) -> Softmax:
    with np.errstate(invalid="ignore", over="ignore"):
        top, shifted = shift(as_logits(logits))
        return softmax(shifted, top, label)[0]


def negative_log_likelihood(logits: Array, label: Array) -> Array:
    r"""$-\log p^{(y)}(x)$ of each row, with $p$ the softmax of the logits.

    (B, C), (B,) -> (B,). A row whose label is not in [0, C) gives nan. LatentBE (Nam et al. 2022), App. B.3, Eq. 18
    and 20.

    Odds of 3 to 1 for the right class are a probability of 3/4, and log(4/3) = 0.2877:

    >>> negative_log_likelihood(np.log([[3.0, 1.0]]), [0]).round(4)
    array([0.2877])
    """
    logits, label = as_logits(logits), as_codes(label, name="label")
    check_rows(logits=logits, label=label)
    xp = namespace(logits, label)
    classes = logits.shape[1]
    nll = _softmax_of(logits, xp.clip(label, 0, classes - 1)).nll
    return xp.where((label >= 0) & (label < classes), nll, xp.nan)


def top_probability_per_sample(logits: Array) -> Array:
    r"""$\max_k p^{(k)}(x)$ of each row: the confidence that calibration errors are about.

    (B, C) -> (B,). LatentBE (Nam et al. 2022), App. B.3, Eq. 21.

    >>> top_probability_per_sample(np.log([[1.0, 3.0]]))
    array([0.75])
    """
    return _softmax_of(logits).top_probability


def prediction_confidence_per_sample(logits: Array) -> Array:
    r"""$\gamma = p_{(1)} - p_{(2)}$, the gap between the two largest probabilities of each row.

    (B, C) -> (B,). Churn paper (Bhojanapalli et al. 2021), Eq. 5.

    Probabilities 5/8, 2/8 and 1/8:

    >>> prediction_confidence_per_sample(np.log([[1.0, 5.0, 2.0]])).round(6)
    array([0.375])
    """
    return _softmax_of(logits).confidence


def predictive_entropy_per_sample(logits: Array) -> Array:
    r"""$-\sum_k p^{(k)} \log p^{(k)}$ of each row, in nats.

    (B, C) -> (B,). Churn paper (Bhojanapalli et al. 2021), section 3.1.

    Four equal classes give log 4:

    >>> predictive_entropy_per_sample(np.zeros((1, 4))).round(4)
    array([1.3863])
    """
    return _softmax_of(logits).entropy


def surrogate_churn_per_sample(old_logits: Array, new_logits: Array, *, alpha: float = 1.0) -> Array:
    r"""$\frac12 \lVert (f_{old}/\max f_{old})^\alpha - (f_{new}/\max f_{new})^\alpha \rVert_1$ of each row.

    (B, C), (B, C) -> (B,). Churn paper (Bhojanapalli et al. 2021), Eq. 4; as alpha grows it tends to 1 where the
    predictions differ and to 0 where they agree. It lies between 0 and C/2, as each class adds at most 1/2.

    (1, 1/2) against (1/4, 1) is (3/4 + 1/2) / 2; (1, 1, 1, 0) against (0, 0, 0, 1) differs by 1 in all four classes:

    >>> surrogate_churn_per_sample(np.log([[2.0, 1.0]]), np.log([[1.0, 4.0]]))
    array([0.625])
    >>> surrogate_churn_per_sample(np.array([[99.0, 99.0, 99.0, 0.0]]), np.array([[0.0, 0.0, 0.0, 99.0]]))
    array([2.])
    """
    old_logits, new_logits = as_logits(old_logits), as_logits(new_logits)
    xp = namespace(old_logits, new_logits)
    with np.errstate(invalid="ignore", over="ignore"):
        _, old = shift(old_logits)
        _, new = shift(new_logits)
        return halved_distance(xp.exp(alpha * old), xp.exp(alpha * new))


def logit_displacement_per_sample(old_logits: Array, new_logits: Array) -> Array:
    r"""$\lVert \phi_{old}(x) - \phi_{new}(x) \rVert_2$ of each row.

    (B, C), (B, C) -> (B,). ELODI (Zhao et al. 2024), section 3.1.

    >>> logit_displacement_per_sample(np.array([[3.0, 0.0]]), np.array([[0.0, 4.0]]))
    array([5.])
    """
    old_logits, new_logits = as_logits(old_logits), as_logits(new_logits)
    with np.errstate(invalid="ignore", over="ignore"):
        return distance(old_logits, new_logits)


def rank_per_sample(logits: Array, column: Array) -> Array:
    """The rank of one class in each row: 1 + the number of classes with a larger logit; equal logits share a rank.

    (B, C), (B,) -> (B,) int64. With the new model's wrong prediction and the old model's logits of a negative flip it
    is the rank of ELODI (Zhao et al. 2024), Fig. 4.

    >>> rank_per_sample(np.array([[5.0, 9.0, 7.0]]), np.array([2]))
    array([2])
    """
    logits, column = as_logits(logits), as_codes(column, name="column")
    xp = namespace(logits, column)
    return rank_among(logits, pick(xp, logits, column))


def rank_among(logits: Array, value: Array) -> Array:
    """(B, C), (B,) -> (B,) int64: 1 + the number of logits of the row that are larger than its value."""
    xp = namespace(logits)
    return 1 + xp.sum(xp.astype(logits > value[:, None], xp.int64), axis=1)
