"""Losses that pull a student's whole output towards a reference's, and the weights of focal distillation."""

from torch import Tensor

from flipguard.losses.logits import at_least_float32, check_labels, check_pair
from flipguard.types import InputError


def kl_divergence(student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    r"""Knowledge distillation's term, $\tau^2\,KL(\sigma(teacher/\tau) \| \sigma(student/\tau))$: two (B, C) -> (B,).

    Hinton et al. 2015, Sec. 2; the factor $\tau^2$ keeps the gradient's size when $\tau$ changes. It is the distance of
    PCT's released focal distillation too ($\tau$ = 100), where the paper's Eq. 8 writes `reverse_kl_divergence`.
    Cross-entropy with soft targets has the same gradient, but is not zero where student and teacher agree.

    The teacher says (1/2, 1/2), the student (3/4, 1/4): ½ log(2/3) + ½ log 2 = ½ log 4/3.

    >>> import torch
    >>> student, teacher = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)
    >>> round(kl_divergence(student, teacher, temperature=1.0).mul(2).exp().item(), 4)
    1.3333
    """
    check_pair(student, teacher)
    _check_temperature(temperature)
    return temperature**2 * _divergence(_scaled(teacher, temperature), _scaled(student, temperature))


def reverse_kl_divergence(student: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
    r"""$KL(\sigma(student/\tau) \| \sigma(teacher/\tau))$: two (B, C) -> (B,). PCT (Yan et al. 2021), Eq. 8 as written.

    There is no factor $\tau^2$: at the paper's $\tau$ = 100 its gradient is 10,000 times smaller than that of
    `kl_divergence`, so the weight of the term has to make up for it.

    The student says (3/4, 1/4), the teacher (1/2, 1/2): ¾ log 3/2 + ¼ log 1/2 = ¼ log 27/16.

    >>> import torch
    >>> student, teacher = torch.tensor([[3.0, 1.0]]).log(), torch.zeros(1, 2)
    >>> round(reverse_kl_divergence(student, teacher, temperature=1.0).mul(4).exp().item() * 16, 3)
    27.0
    """
    check_pair(student, teacher)
    _check_temperature(temperature)
    return _divergence(_scaled(student, temperature), _scaled(teacher, temperature))


def logit_matching(student: Tensor, teacher: Tensor) -> Tensor:
    r"""$\frac12 \|\phi^{student}(x) - \phi^{teacher}(x)\|_2^2$: two (B, C) -> (B,). PCT (Yan et al. 2021), Eq. 9.

    >>> import torch
    >>> logit_matching(torch.tensor([[1.0, 5.0]]), torch.tensor([[4.0, 1.0]]))  # (9 + 16) / 2
    tensor([12.5000])
    """
    check_pair(student, teacher)
    return (at_least_float32(student) - at_least_float32(teacher)).square().sum(-1) / 2


def old_is_right(old: Tensor, y: Tensor) -> Tensor:
    r"""$1(\hat y^{old}(x) = y)$ as booleans: logits (B, C), class codes y (B,) -> (B,). Ties go to the lower class.

    PCT's naive baseline (Eq. 6) is `cross_entropy` times this.

    >>> import torch
    >>> old_is_right(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]))
    tensor([ True, False])
    """
    check_labels(old, y)
    return old.argmax(-1) == y


def focal_weight(old: Tensor, y: Tensor, *, alpha: float, beta: float) -> Tensor:
    r"""$\alpha + \beta\,1(\hat y^{old}(x) = y)$: logits (B, C), class codes y (B,) -> (B,).

    PCT (Yan et al. 2021), Eq. 7. The paper uses $\alpha$ = 1 and $\beta$ = 5. The minus sign before its sum is a
    slip: the distance is minimised.

    >>> import torch
    >>> focal_weight(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]), alpha=1.0, beta=5.0)
    tensor([6., 1.])
    """
    if alpha < 0 or beta < 0:
        raise InputError(f"focal weights must not be negative, got alpha={alpha} and beta={beta}.")
    return alpha + beta * old_is_right(old, y).to(at_least_float32(old).dtype)


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise InputError(f"temperature must be above 0, got {temperature}.")


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """logits / τ, moved so that each sample's largest is 0: softmax does not change, and logsumexp keeps its digits."""
    scaled = at_least_float32(logits) / temperature
    return scaled - scaled.detach().amax(-1, keepdim=True)


def _divergence(p: Tensor, q: Tensor) -> Tensor:
    r"""$KL(\sigma(p) \| \sigma(q)) = lse(q) - lse(p) - \sum_k \sigma_k(p) (q_k - p_k)$.

    KL as the Bregman divergence of logsumexp: at p = q the value and both gradients are exactly 0, where a difference
    of log-softmaxes leaves the rounding of $\sum_k \sigma_k(p) \approx 1$ in the gradient. A class to which p gives no
    chance, such as one masked with -inf, adds nothing, whatever q says of it.
    """
    lse_p, lse_q = p.logsumexp(-1, keepdim=True), q.logsumexp(-1, keepdim=True)
    probability = (p - lse_p).exp()
    apart = q - p
    # 0 times an endless difference is no number: the difference itself is left out, and so is its gradient.
    apart = apart.masked_fill((probability == 0) & ~apart.isfinite(), 0)
    return (lse_q - lse_p).squeeze(-1) - (probability * apart).sum(-1)
