"""Every loss crossed with what holds for all of them."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from flipguard.losses import (
    cross_entropy,
    divergence_from_uniform,
    kl_divergence,
    logit_difference_inhibition,
    logit_matching,
    prediction_entropy,
    probability_distance,
    reverse_kl_divergence,
    symmetric_kl_divergence,
)
from flipguard.types import InputError

M, B, C = 3, 5, 7

torch.set_num_threads(1)

MATCHING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": partial(kl_divergence, temperature=2.0),
    "kl_100": partial(kl_divergence, temperature=100.0),
    "reverse_kl": partial(reverse_kl_divergence, temperature=2.0),
    "logit_matching": logit_matching,
    "ldi": logit_difference_inhibition,
    "ldi_top": partial(logit_difference_inhibition, k=3, ranked_by="either", reduction="sum"),
    "ldi_margin": partial(logit_difference_inhibition, p=1.5, margin=0.05),
    "ldi_absolute": partial(logit_difference_inhibition, p=1.0, k=1, ranked_by="student"),
    "symmetric_kl": symmetric_kl_divergence,
    "probability_distance": probability_distance,
}
"""Losses towards a reference: zero where student and reference agree."""

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **MATCHING,
    "cross_entropy": lambda student, reference: cross_entropy(student, reference.argmax(-1)),
    "smoothed": lambda student, reference: cross_entropy(student, reference.argmax(-1), label_smoothing=0.1),
    "entropy": lambda student, reference: prediction_entropy(student),
    "entropy_top": lambda student, reference: prediction_entropy(student, k=3),
    "from_uniform": lambda student, reference: divergence_from_uniform(student),
    "from_uniform_top": lambda student, reference: divergence_from_uniform(student, k=3),
}

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
every_matching_loss = pytest.mark.parametrize("loss", MATCHING.values(), ids=MATCHING)


def pair(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    student, reference = (torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
    return student, reference


@every_loss
def test_one_number_per_sample_that_only_that_sample_decides(loss: Callable[..., Tensor]) -> None:
    student, reference = pair(B, C)
    whole = loss(student, reference)
    assert whole.shape == (B,)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(loss(student[order], reference[order]), whole[order])
    parts = torch.cat([loss(student[:2], reference[:2]), loss(student[2:], reference[2:])])
    torch.testing.assert_close(parts, whole)


@every_loss
def test_gradcheck_with_weights_of_their_own(loss: Callable[..., Tensor]) -> None:
    student, reference = pair(B, C)
    weight = torch.tensor([0.5, 2.0, 0.0, 3.0, 1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda logits: weight * loss(logits, reference), student.requires_grad_(), raise_exception=True
    )


@every_matching_loss
def test_gradcheck_towards_the_reference(loss: Callable[..., Tensor]) -> None:
    student, reference = pair(B, C)
    assert torch.autograd.gradcheck(lambda logits: loss(student, logits), reference.requires_grad_())


@every_matching_loss
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_agreement_gives_exactly_zero_loss_and_gradient(loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
    student, _ = pair(B, C, dtype=dtype)
    reference = student.clone()
    student.requires_grad_()
    value = loss(student, reference)
    value.sum().backward()
    assert torch.equal(value, torch.zeros_like(value))
    assert torch.equal(student.grad, torch.zeros_like(student))


@every_matching_loss
def test_disagreement_costs_and_a_step_down_the_gradient_helps(loss: Callable[..., Tensor]) -> None:
    student, reference = pair(B, C)
    student.requires_grad_()
    value = loss(student, reference)
    assert (value > 0).all()
    (gradient,) = torch.autograd.grad(value.sum(), student)
    assert loss(student - 1e-4 * gradient, reference).sum() < value.sum()


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
    student, reference = pair(B, C, dtype=dtype)
    value = loss(student, reference)
    assert value.dtype == torch.float32
    assert torch.equal(value, loss(student.float(), reference.float()))


@every_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_stays_finite_with_logits_of_ten_thousand(loss: Callable[..., Tensor], dtype: torch.dtype) -> None:
    student, reference = pair(B, C)
    student, reference = (1e4 * student.sign()).to(dtype), (1e4 * reference.sign()).to(dtype)
    student.requires_grad_()
    value = loss(student, reference)
    value.mean().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(student.grad).all()


@every_loss
def test_members_side_by_side_equal_one_after_another(loss: Callable[..., Tensor]) -> None:
    student, reference = pair(M, B, C)
    together = torch.func.vmap(loss)(student, reference)
    assert together.shape == (M, B)
    torch.testing.assert_close(together, torch.stack([loss(student[m], reference[m]) for m in range(M)]))


@every_matching_loss
@pytest.mark.parametrize("shape", [(B, 1), (C,), (1, C), (B, C - 1)])
def test_refuses_shapes_that_would_broadcast(loss: Callable[..., Tensor], shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="one shape"):
        loss(torch.zeros(B, C), torch.zeros(shape))
