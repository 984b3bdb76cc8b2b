"""Covariance of outcome shares under simple, weighted and clustered sampling.

Every share here is p_k = (sum over samples of outcome k) / (sum over all samples), so one covariance matrix
gives, by the delta method, the variance of any smooth function of the shares: the error difference, the
relative negative flip rate.
"""

import numpy as np
from numpy.typing import ArrayLike

from flipguard.statistics.interval import Floats, as_result, ratio
from flipguard.types import InputError


def multinomial_covariance(count: ArrayLike) -> Floats:
    """Covariance of the shares p = count / n of independent samples: (diag(p) - p pᵀ) / n. (…, k) -> (…, k, k).

    nan where n = 0.

    >>> multinomial_covariance([3, 1]) * 64
    array([[ 3., -3.],
           [-3.,  3.]])
    """
    number = _outcomes(count, "count")
    n = number.sum(axis=-1, keepdims=True)
    share = ratio(number, n)
    return ratio(_diagonal(share) - _outer(share, share), n[..., None])


def weighted_covariance(weight: ArrayLike, weight_squared: ArrayLike) -> Floats:
    """Covariance of weighted shares p_k = W_k / W from the sums of w and of w² per outcome. (…, k) -> (…, k, k).

    The linearised ratio estimator (Särndal, Swensson and Wretman, Model Assisted Survey Sampling, 1992):
    sample i of outcome k moves p by w_i (e_k - p) / W, hence

        cov = [diag(S) - S pᵀ - p Sᵀ + (sum S) p pᵀ] / W²,   S_k = sum of w² over outcome k.

    With all weights 1 it is the multinomial covariance. nan where W = 0.

    >>> weighted_covariance([3, 1], [3, 1]) * 64
    array([[ 3., -3.],
           [-3.,  3.]])
    """
    total, squared = np.broadcast_arrays(_outcomes(weight, "weight"), _outcomes(weight_squared, "weight_squared"))
    whole = total.sum(axis=-1, keepdims=True)
    share = ratio(total, whole)
    spread = _diagonal(squared) - _outer(squared, share) - _outer(share, squared)
    spread = spread + squared.sum(axis=-1)[..., None, None] * _outer(share, share)
    return ratio(spread, whole[..., None] ** 2)


def clustered_covariance(per_cluster: ArrayLike) -> Floats:
    """Covariance of shares when whole clusters were sampled. Counts or weights (…, G, k) -> (…, k, k).

    The linearised ratio estimator over clusters, with p_k = sum_g y_gk / W and m_g = sum_k y_gk:

        cov = G / (G - 1) · sum_g u_g u_gᵀ / W²,   u_g = y_g - m_g p.

    Empty clusters are not clusters and do not count in G. nan with fewer than two clusters: nothing is known
    then about how clusters differ.

    >>> clustered_covariance([[1, 0], [1, 0], [1, 0], [0, 1]]) * 64
    array([[ 4., -4.],
           [-4.,  4.]])
    """
    table = _outcomes(per_cluster, "per_cluster")
    size = table.sum(axis=-1)
    groups = np.count_nonzero(size > 0, axis=-1)[..., None, None]
    whole = size.sum(axis=-1)[..., None]
    share = ratio(table.sum(axis=-2), whole)
    residual = table - size[..., None] * share[..., None, :]
    scatter = np.swapaxes(residual, -1, -2) @ residual
    return ratio(groups * scatter, (groups - 1) * whole[..., None] ** 2)


def effective_trials(share: ArrayLike, covariance: ArrayLike) -> Floats:
    """The number of independent samples that would know the shares as well, on average over outcomes. (…, k) -> (…).

        n* = (outcomes seen - 1) / sum_k var(p_k) / p_k

    This is n over the mean generalised design effect (Rao and Scott, JASA 76, 1981). It draws on all
    outcomes, so it says how strongly samples hang together where the outcome of interest is too rare to say
    so. n for independent samples; nan with fewer than two outcomes seen.

    >>> print(f"{effective_trials([0.75, 0.25, 0.0], multinomial_covariance([3, 1, 0])):.3f}")
    4.000
    """
    p = np.asarray(share, dtype=np.float64)
    variance = np.diagonal(np.asarray(covariance, dtype=np.float64), axis1=-2, axis2=-1)
    seen = np.count_nonzero(p > 0, axis=-1) - 1
    spread = np.where(p > 0, ratio(variance, p), 0.0).sum(axis=-1)
    return as_result(ratio(seen, spread))


def linear_variance(covariance: ArrayLike, gradient: ArrayLike) -> Floats:
    """The delta method's variance gᵀ cov g of a function with gradient g at the shares, never below 0.

    >>> print(linear_variance([[2.0, -1.0], [-1.0, 2.0]], [1, -1]))
    6.0
    """
    slope = np.asarray(gradient, dtype=np.float64)
    matrix = np.asarray(covariance, dtype=np.float64)
    return as_result(np.maximum(np.einsum("...i,...ij,...j->...", slope, matrix, slope), 0.0))


def _outcomes(values: ArrayLike, name: str) -> Floats:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim == 0 or not np.all(table >= 0):
        raise InputError(f"{name} must be an array of numbers that are not negative, got {values!r:.80}.")
    return table


def _diagonal(values: Floats) -> Floats:
    matrix: Floats = values[..., None] * np.eye(values.shape[-1])
    return matrix


def _outer(left: Floats, right: Floats) -> Floats:
    matrix: Floats = left[..., :, None] * right[..., None, :]
    return matrix
