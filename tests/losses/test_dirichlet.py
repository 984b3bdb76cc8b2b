"""Proxy-EnD² against torch's own Dirichlet distributions."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Dirichlet, kl_divergence

from flipguard.losses import proxy_concentration, proxy_dirichlet
from flipguard.types import InputError

M, B, C = 3, 5, 7
torch.set_num_threads(1)


def random(*shape: int, seed: int = 4) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_concentration_by_loops() -> None:
    teachers = random(M, B, C)
    mean, precision = proxy_concentration(teachers, epsilon=0.0)
    for row in range(B):
        p = [teachers[m, row].softmax(-1).tolist() for m in range(M)]
        bar = [sum(p[m][k] for m in range(M)) / M for k in range(C)]
        logs = [sum(torch.tensor(p[m][k]).log().item() for m in range(M)) / M for k in range(C)]
        below = sum(bar[k] * (torch.tensor(bar[k]).log().item() - logs[k]) for k in range(C))
        assert mean[row].tolist() == pytest.approx(bar)
        assert precision[row].item() == pytest.approx((C - 1) / 2 / below, rel=1e-4)


def test_it_is_eq_33_less_its_constant_and_with_the_first_terms_weight_at_one() -> None:
    student, teachers = random(B, C), random(M, B, C, seed=5)
    mean, precision = proxy_concentration(teachers)
    alpha, beta = student.exp() + 1, precision[:, None] * mean + 1
    total = beta.sum(-1)
    assert torch.allclose(total, precision + C)
    eq_33 = kl_divergence(Dirichlet(alpha), Dirichlet(beta)) / total
    apart = torch.digamma(alpha) - torch.digamma(alpha.sum(-1, keepdim=True))
    constant = (torch.lgamma(beta).sum(-1) - torch.lgamma(total)) / total
    first = C / total * (mean * apart).sum(-1)
    assert torch.allclose(proxy_dirichlet(student, teachers), eq_33 - constant - first)


def test_gradcheck_and_one_number_per_sample() -> None:
    student, teachers = random(B, C).requires_grad_(), random(M, B, C, seed=5)
    weight = torch.tensor([0.5, 2.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda logits: weight * proxy_dirichlet(logits, teachers), student)
    order = torch.tensor([3, 0, 4, 1, 2])
    whole = proxy_dirichlet(student, teachers)
    assert torch.allclose(proxy_dirichlet(student[order], teachers[:, order]), whole[order])


def test_descent_leads_to_the_members_mean() -> None:
    teachers, student = random(M, B, C), torch.zeros(B, C, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([student], lr=0.1)
    for _ in range(500):
        optimiser.zero_grad()
        proxy_dirichlet(student, teachers).sum().backward()
        optimiser.step()
    alpha = student.detach().exp() + 1
    mean = alpha / alpha.sum(-1, keepdim=True)
    assert torch.allclose(mean, teachers.softmax(-1).mean(0), atol=0.05)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_stays_finite_far_out(dtype: torch.dtype) -> None:
    student, teachers = (1e4 * random(B, C).sign()).to(dtype), (1e4 * random(M, B, C, seed=5).sign()).to(dtype)
    student.requires_grad_()
    loss = proxy_dirichlet(student, teachers)
    loss.sum().backward()
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss).all()
    assert torch.isfinite(student.grad).all()  # type: ignore[union-attr,arg-type]


def test_shapes_that_would_broadcast() -> None:
    with pytest.raises(InputError, match=r"\(B, C\) and \(M, B, C\)"):
        proxy_dirichlet(torch.zeros(B, C), torch.zeros(M, B, 1))
