"""The divergences, logit matching and focal weights against loops and each other."""

import math
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from flipguard.losses import (
    cross_entropy,
    focal_weight,
    kl_divergence,
    logit_matching,
    old_is_right,
    reverse_kl_divergence,
)
from flipguard.types import InputError

B, C = 5, 7


def pair(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    student, teacher = (3 * torch.randn(B, C, dtype=dtype, generator=generator) for _ in range(2))
    return student, teacher


def softmax(row: list[float], temperature: float) -> list[float]:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def kl_by_loop(p_logits: torch.Tensor, q_logits: torch.Tensor, temperature: float) -> torch.Tensor:
    values = []
    for p_row, q_row in zip(p_logits.tolist(), q_logits.tolist(), strict=True):
        p, q = softmax(p_row, temperature), softmax(q_row, temperature)
        values.append(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_divergences_equal_loops(temperature: float) -> None:
    student, teacher = pair()
    torch.testing.assert_close(
        kl_divergence(student, teacher, temperature=temperature),
        temperature**2 * kl_by_loop(teacher, student, temperature),
    )
    torch.testing.assert_close(
        reverse_kl_divergence(student, teacher, temperature=temperature), kl_by_loop(student, teacher, temperature)
    )


def test_kl_has_the_gradient_of_cross_entropy_with_soft_targets() -> None:
    student, teacher = pair()
    student.requires_grad_()
    (ours,) = torch.autograd.grad(kl_divergence(student, teacher, temperature=1.0).sum(), student)
    soft = F.cross_entropy(student, teacher.softmax(-1), reduction="sum")
    torch.testing.assert_close(ours, torch.autograd.grad(soft, student)[0])


def test_kl_at_a_high_temperature_is_logit_matching_of_centred_logits_over_c() -> None:
    student, teacher = pair()
    centred = logit_matching(student - student.mean(-1, keepdim=True), teacher - teacher.mean(-1, keepdim=True))
    torch.testing.assert_close(kl_divergence(student, teacher, temperature=1e4), centred / C, rtol=1e-3, atol=0)


def test_kl_in_float32_at_the_papers_temperature_stays_near_float64() -> None:
    student, teacher = pair()
    exact = kl_divergence(student, teacher, temperature=100.0)
    rounded = kl_divergence(student.float(), teacher.float(), temperature=100.0)
    torch.testing.assert_close(rounded.double(), exact, rtol=0, atol=0.02)


@pytest.mark.parametrize("divergence", [kl_divergence, reverse_kl_divergence])
def test_a_large_constant_on_all_logits_costs_no_digits(divergence: Callable[..., torch.Tensor]) -> None:
    student, teacher = (side.round().float() for side in pair())
    expected = divergence(student, teacher, temperature=1.0)
    torch.testing.assert_close(
        divergence(student + 8192, teacher - 8192, temperature=1.0), expected, rtol=1e-6, atol=1e-7
    )


def masked(*shape: int) -> torch.Tensor:
    """No chance for class 2 in any row, nor for class 5 in the last."""
    mask = torch.zeros(*shape, dtype=torch.bool)
    mask[..., 2] = mask[-1, 5] = True
    return mask


@pytest.mark.parametrize("temperature", [1.0, 4.0])
@pytest.mark.parametrize("both", [False, True], ids=["teacher", "both"])
def test_a_class_that_the_teacher_masks_adds_nothing(temperature: float, both: bool) -> None:
    """The student's gradient there is its own probability, as cross-entropy's with soft targets is; none if masked."""
    student, teacher = pair()
    teacher = teacher.masked_fill(masked(B, C), -torch.inf)
    student = (student.masked_fill(masked(B, C), -torch.inf) if both else student).requires_grad_()
    found = kl_divergence(student, teacher, temperature=temperature)
    # Torch too counts nothing where the target is 0, unless the student's log-probability is -inf.
    said = (student / temperature).log_softmax(-1).masked_fill(masked(B, C), 0)
    expected = temperature**2 * F.kl_div(said, (teacher / temperature).softmax(-1), reduction="none").sum(-1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weight = torch.arange(1.0, B + 1, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((weight * found).sum(), student)
    apart = (student / temperature).softmax(-1) - (teacher / temperature).softmax(-1)
    torch.testing.assert_close(gradient, weight[:, None] * temperature * apart, rtol=1e-12, atol=1e-14)


def test_a_masked_class_by_hand() -> None:
    """The teacher says (1/2, 1/2, 0), the student (1/2, 1/4, 1/4): ½ log 1 + ½ log 2."""
    teacher = torch.tensor([[0.0, 0.0, -torch.inf]], requires_grad=True)
    student = torch.tensor([[2.0, 1.0, 1.0]]).log().requires_grad_()
    loss = kl_divergence(student, teacher, temperature=1.0)
    assert loss.item() == pytest.approx(math.log(2) / 2)
    ours, theirs = torch.autograd.grad(loss.sum(), (student, teacher))
    assert ours[0].tolist() == pytest.approx([0, -1 / 4, 1 / 4], abs=1e-7)
    # p_k (log p_k/q_k - KL): log 1 and log 2 are as far from their mean, the loss.
    assert theirs[0].tolist() == pytest.approx([-math.log(2) / 4, math.log(2) / 4, 0], abs=1e-7)
    assert reverse_kl_divergence(student, teacher, temperature=1.0).item() == math.inf
    assert reverse_kl_divergence(teacher, student, temperature=1.0).item() == loss.item()
    # e⁻²⁰⁰⁰ is no float32, and 0 as well.
    far = torch.tensor([[0.0, 0.0, -2000.0]])
    assert kl_divergence(teacher, far, temperature=1.0).item() == 0


def test_logit_matching_equals_a_loop() -> None:
    student, teacher = pair()
    expected = [
        sum((a - b) ** 2 for a, b in zip(s, t, strict=True)) / 2
        for s, t in zip(student.tolist(), teacher.tolist(), strict=True)
    ]
    torch.testing.assert_close(logit_matching(student, teacher), torch.tensor(expected, dtype=torch.float64))


def test_focal_weights_multiply_their_own_sample() -> None:
    student, teacher = pair()
    y = teacher.argmax(-1)
    y[1], y[3] = (y[1] + 1) % C, (y[3] + 2) % C
    weight = focal_weight(teacher, y, alpha=1.0, beta=5.0)
    assert weight.tolist() == [6, 1, 6, 1, 6]
    weighted = weight * logit_matching(student, teacher)
    assert weighted.shape == (B,)
    by_loop = sum(w * d for w, d in zip(weight.tolist(), logit_matching(student, teacher).tolist(), strict=True))
    assert weighted.sum().item() == pytest.approx(by_loop)
    product_of_means = weight.mean() * logit_matching(student, teacher).mean()
    assert weighted.mean().item() != pytest.approx(product_of_means.item(), rel=0.01)


def test_naive_is_cross_entropy_where_the_old_model_is_right() -> None:
    student, old = pair()
    y = torch.tensor([0, 1, 2, 3, 4])
    right = old.tolist()
    expected = [
        loss * (max(range(C), key=row.__getitem__) == label)
        for loss, row, label in zip(cross_entropy(student, y).tolist(), right, y.tolist(), strict=True)
    ]
    assert (old_is_right(old, y) * cross_entropy(student, y)).tolist() == expected


def test_a_tie_of_the_old_model_counts_for_the_lower_class() -> None:
    assert old_is_right(torch.ones(2, C), torch.tensor([0, 1])).tolist() == [True, False]


def test_weights_of_half_precision_logits_are_float32() -> None:
    weight = focal_weight(torch.ones(2, C, dtype=torch.bfloat16), torch.tensor([0, 1]), alpha=0.001, beta=1.0)
    assert weight.dtype == torch.float32
    assert weight.tolist() == pytest.approx([1.001, 0.001])


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
@pytest.mark.parametrize("divergence", [kl_divergence, reverse_kl_divergence])
def test_refuses_a_temperature_that_is_not_positive(
    divergence: Callable[..., torch.Tensor], temperature: float
) -> None:
    with pytest.raises(InputError, match="temperature must be above 0"):
        divergence(*pair(), temperature=temperature)


def test_refuses_negative_weights_and_labels_that_would_broadcast() -> None:
    _, old = pair()
    with pytest.raises(InputError, match="must not be negative, got alpha=1 and beta=-1"):
        focal_weight(old, torch.zeros(B, dtype=torch.long), alpha=1, beta=-1)
    with pytest.raises(InputError, match=r"\(5, 7\) and \(5, 1\)"):
        focal_weight(old, torch.zeros(B, 1, dtype=torch.long), alpha=1.0, beta=5.0)
