"""Distances between two models' probabilities that take neither as the teacher."""

from torch import Tensor

from flipguard.losses.logits import at_least_float32, check_pair


def symmetric_kl_divergence(first: Tensor, second: Tensor) -> Tensor:
    r"""$SKL(f, g) = KL(f \| g) + KL(g \| f) = \sum_j (f_j - g_j)(\log f_j - \log g_j)$: two (B, C) -> (B,).

    Bhojanapalli et al. 2021 (churn), Eq. 9. In this form no summand is negative, and where the two agree the value and
    both gradients are exactly 0.

    (3/4, 1/4) and (1/2, 1/2): ¼ log 3/2 - ¼ log 1/2 = ¼ log 3.

    >>> import torch
    >>> first, second = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)
    >>> round(symmetric_kl_divergence(first, second).mul(4).exp().item(), 4)
    3.0
    """
    check_pair(first, second)
    log_f, log_g = at_least_float32(first).log_softmax(-1), at_least_float32(second).log_softmax(-1)
    return ((log_f.exp() - log_g.exp()) * (log_f - log_g)).sum(-1)


def probability_distance(first: Tensor, second: Tensor) -> Tensor:
    r"""$D_{L1}(f, g) = \sum_j |f_j - g_j|$ between probabilities: two (B, C) logits -> (B,), from 0 to 2.

    Bhojanapalli et al. 2021 (churn), Eq. 8.

    (3/4, 1/4) and (1/2, 1/2) differ by a quarter twice:

    >>> import torch
    >>> round(probability_distance(torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)).item(), 4)
    0.5
    """
    check_pair(first, second)
    return (at_least_float32(first).softmax(-1) - at_least_float32(second).softmax(-1)).abs().sum(-1)
