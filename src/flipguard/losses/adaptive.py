"""How much each teacher of several counts, by what their gradients have in common (AE-KD)."""

import torch
from torch import Tensor

from flipguard.losses.logits import at_least_float32
from flipguard.types import InputError

_MOST = 9
"""Members for which all 3^M active sets are tried at once: 19,683."""

_RIDGE = 1e-9


def distillation_gradients(student: Tensor, teachers: Tensor, *, temperature: float) -> Tensor:
    r"""$g_m = \frac1B \sum_x \tau (\sigma(\phi^S(x)/\tau) - \sigma(\phi^{T_m}(x)/\tau))$: (B, C), (M, B, C) -> (M, C).

    The batch's mean gradient of teacher m's term $\tau^2 KL(\sigma(T_m/\tau) \| \sigma(S/\tau))$ with respect to the
    student's logits (Du et al. 2020; the norm in LatentBE's Eq. 28 is that of a weighted sum of them). No gradient
    leads through it.

    >>> student, teachers = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 1, 2)
    >>> distillation_gradients(student, teachers, temperature=1.0)
    tensor([[ 0.2500, -0.2500]])
    """
    if student.ndim != 2 or teachers.ndim != 3 or teachers.shape[1:] != student.shape:
        raise InputError(
            f"expected logits (B, C) and (M, B, C), got {tuple(student.shape)} and {tuple(teachers.shape)}."
        )
    mine, theirs = (torch.softmax(at_least_float32(t.detach()) / temperature, dim=-1) for t in (student, teachers))
    return temperature * (mine - theirs).mean(dim=1)


def adaptive_weights(gradients: Tensor, *, cap: float) -> Tensor:
    r"""The weights of teachers by their gradients: (M, C) -> (M,).

    $\arg\min_\omega \|\sum_m \omega_m g_m\|^2$ with $\sum_m \omega_m = 1$ and $0 \le \omega_m \le cap$.

    LatentBE (Nam et al. 2022), Eq. 28 and 29; AE-KD (Du et al. 2020), where it is the dual of a one-class SVM. A cap
    below 1/M, which no weights could meet, counts as 1/M: all weights equal.

    Solved exactly, on the device and without waiting for it: each weight is 0, at the cap or free, the free ones of
    each of the $3^M$ cases follow from a linear system, and the best case that meets the bounds is the minimum. A ridge
    of 1e-9 of the gradients' size makes the answer unique: among equal teachers, equal weights.

    Two teachers that pull in opposite directions, the second three times as far: 3/4 and 1/4 cancel.

    >>> adaptive_weights(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]), cap=1.0)
    tensor([0.7500, 0.2500])
    >>> adaptive_weights(torch.tensor([[1.0, 0.0], [-3.0, 0.0]]), cap=0.6)
    tensor([0.6000, 0.4000])
    """
    if gradients.ndim != 2 or not 1 <= len(gradients) <= _MOST or not 0 < cap <= 1:
        raise InputError(
            f"adaptive weights need gradients (M, C) of 1 to {_MOST} teachers and a cap above 0 and at most 1, got "
            f"{tuple(gradients.shape)} and {cap}."
        )
    with torch.no_grad():
        wide = gradients.double()
        gram = wide @ wide.T
        gram = gram / gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
        gram = gram + _RIDGE * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
        return _minimum(gram, max(cap, 1 / len(gram))).to(at_least_float32(gradients).dtype)


def _minimum(gram: Tensor, cap: float) -> Tensor:
    """The ω (M,) that minimises ωᵀ K ω; K (M, M) is positive definite."""
    members = len(gram)
    place = torch.arange(members, device=gram.device)
    case = torch.arange(3**members, device=gram.device)
    state = (case[:, None] // 3**place) % 3  # (N, M): 0 is a weight of zero, 1 free, 2 at the cap
    free, fixed = (state == 1).to(gram.dtype), cap * (state == 2).to(gram.dtype)
    # With the others held, K_FF ω_F = λ·1 - K_F·fixed: identity stands in the rows that are not free.
    system = gram * free[:, :, None] * free[:, None, :] + torch.diag_embed(1 - free)
    u, v = _solved(system, torch.stack([free, free * (fixed @ gram)], dim=-1)).unbind(-1)
    some = free.sum(-1) > 0
    multiplier = (1 - fixed.sum(-1) + v.sum(-1)) / torch.where(some, u.sum(-1), 1)
    weights = free * (multiplier[:, None] * u - v) + fixed
    allowed = some & (weights > -1e-9).all(-1) & (weights < cap + 1e-9).all(-1)
    value = ((weights @ gram) * weights).sum(-1)
    best = torch.where(allowed, value, torch.inf).argmin()
    chosen = weights.index_select(0, best.reshape(1))[0].clamp(0, cap)
    return chosen / chosen.sum()


def _solved(system: Tensor, right: Tensor) -> Tensor:
    """X of A X = R for positive definite A (N, M, M) and R (N, M, K), by Gauss and Jordan.

    Such systems need no exchange of rows; torch's own solvers look at the result on the host.
    """
    members = system.shape[-1]
    table = torch.cat([system, right], dim=-1)
    for row in range(members):
        pivot = table[:, row] / table[:, row, row : row + 1]
        table = table - table[:, :, row : row + 1] * pivot[:, None]
        table[:, row] = pivot
    return table[:, :, members:]
