"""Distilling what an ensemble's members say as a distribution over probabilities (Proxy-EnD²)."""

import math

import torch
from torch import Tensor

from flipguard.losses.logits import at_least_float32
from flipguard.types import InputError

_LARGEST = 20.0
"""Logits above it count as it: e²⁰ is a concentration of 5e8, and the terms of the entropy keep 7 digits in float64."""


def proxy_concentration(teachers: Tensor, *, epsilon: float = 1e-8) -> tuple[Tensor, Tensor]:
    r"""The members' mean probabilities and the concentration of a Dirichlet around them: (M, B, C) -> (B, C), (B,).

    $\bar p = \frac1M \sum_m \sigma(\phi^{T_m}(x))$ and
    $\beta_0 = (C - 1) / (2 \cdot \frac1M \sum_m KL(\bar p \| p_m) + \epsilon)$, LatentBE (Nam et al. 2022), Eq. 31.
    Both in float64. The closer the members, the larger $\beta_0$.

    Members at (3/4, 1/4) and (1/4, 3/4): the mean is (1/2, 1/2), each KL ½ log 4/3, so that $\beta_0$ is 1 / log 4/3.

    >>> mean, precision = proxy_concentration(torch.tensor([[[3.0, 1.0]], [[1.0, 3.0]]]).log(), epsilon=0.0)
    >>> mean.tolist(), round(math.exp(1 / precision.item()), 4)
    ([[0.5, 0.5]], 1.3333)
    """
    logs = torch.log_softmax(teachers.double(), dim=-1)
    log_mean = torch.logsumexp(logs, dim=0) - math.log(logs.shape[0])
    mean = log_mean.exp()
    divergence = (mean * (log_mean - logs.mean(0))).sum(-1).clamp(min=0)
    return mean, (logs.shape[-1] - 1) / (2 * divergence + epsilon)


def proxy_dirichlet(student: Tensor, teachers: Tensor) -> Tensor:
    r"""How far the student's Dirichlet is from that of the teachers: (B, C), (M, B, C) -> (B,).

    $-\sum_k \bar p_k (\psi(\alpha_k) - \psi(\alpha_0)) - H[Dir(\alpha)] / (\beta_0 + C)$.
    The reverse KL from the student's Dirichlet, $\alpha = e^{\phi(x)} + 1$, to the proxy of the members, both with one
    added to each concentration, over the proxy's total; Ryabinin et al. 2021 and LatentBE (Nam et al. 2022), Eq. 33.
    Departures: what does not depend on the student is left out, and the first term is not multiplied by
    $\beta_0/(\beta_0 + C)$. So it is not zero where both agree. Computed in float64, logits above 20 counted as 20.

    Logits of 0 are $\alpha$ = (2, 2), and the digammas of 2 and 4 are 5/6 apart. Members that agree have a $\beta_0$ so
    large that the entropy counts for nothing, and 5/6 is left:

    >>> round(proxy_dirichlet(torch.zeros(1, 2), torch.zeros(3, 1, 2)).item() * 6, 4)
    5.0
    """
    if student.ndim != 2 or teachers.ndim != 3 or teachers.shape[1:] != student.shape:
        raise InputError(
            f"expected logits (B, C) and (M, B, C), got {tuple(student.shape)} and {tuple(teachers.shape)}."
        )
    mean, precision = proxy_concentration(teachers)
    alpha = student.double().clamp(max=_LARGEST).exp() + 1
    total = alpha.sum(-1, keepdim=True)
    apart = torch.digamma(alpha) - torch.digamma(total)
    normaliser = torch.lgamma(alpha).sum(-1) - torch.lgamma(total).squeeze(-1)
    # H = ln B(α) + (α₀ - C)·ψ(α₀) - Σ (α_k - 1)·ψ(α_k), and α₀ - C = Σ (α_k - 1).
    entropy = normaliser - ((alpha - 1) * apart).sum(-1)
    loss = -(mean * apart).sum(-1) - entropy / (precision + student.shape[-1])
    return loss.to(at_least_float32(student).dtype)
