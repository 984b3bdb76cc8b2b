"""Cross-entropy against a loop, and what it refuses."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flipguard.losses import cross_entropy
from flipguard.losses.classification import MANY_CLASSES
from flipguard.types import InputError

B, C = 5, 7


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_equals_a_loop(smoothing: float) -> None:
    torch.manual_seed(1)
    logits, y = torch.randn(B, C, dtype=torch.float64), torch.randint(C, (B,))
    expected = []
    for row, label in zip(logits.tolist(), y.tolist(), strict=True):
        normaliser = math.log(sum(math.exp(value) for value in row))
        targets = [smoothing / C + (1 - smoothing) * (k == label) for k in range(C)]
        expected.append(sum(q * (normaliser - value) for q, value in zip(targets, row, strict=True)))
    got = cross_entropy(logits, y, label_smoothing=smoothing)
    assert got.shape == (B,)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_labels_of_any_integer_type() -> None:
    logits, y = torch.randn(B, C), torch.arange(B)
    assert torch.equal(cross_entropy(logits, y.to(torch.int32)), cross_entropy(logits, y))


def test_refuses_labels_that_would_broadcast() -> None:
    with pytest.raises(InputError, match=r"labels \(B,\), got \(5, 7\) and \(5, 1\)"):
        cross_entropy(torch.zeros(B, C), torch.zeros(B, 1, dtype=torch.long))


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, math.nan])
def test_refuses_a_smoothing_out_of_range(smoothing: float) -> None:
    with pytest.raises(InputError, match="label_smoothing"):
        cross_entropy(torch.zeros(B, C), torch.zeros(B, dtype=torch.long), label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_many_classes_have_the_loss_and_gradient_of_torch(smoothing: float) -> None:
    """Also over a stack of members, and for samples of different weight."""
    logits = torch.randn(3, B, MANY_CLASSES + 7, generator=torch.Generator().manual_seed(5)).double()
    y, weight = torch.tensor([0, 1030, 2, 2, 700]), torch.arange(1.0, B + 1).double()

    def ours(logits: Tensor) -> Tensor:
        return cross_entropy(logits, y, label_smoothing=smoothing) @ weight

    def theirs(logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing) @ weight

    for found, expected in zip(
        torch.func.vmap(torch.func.grad_and_value(ours))(logits),
        torch.func.vmap(torch.func.grad_and_value(theirs))(logits),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    leaf = logits[0].clone().requires_grad_()
    ours(leaf).backward()
    torch.testing.assert_close(leaf.grad, torch.func.grad(theirs)(logits[0]), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("classes", [C, MANY_CLASSES + 7])
def test_a_masked_class_has_no_part(classes: int) -> None:
    """Its logit is -inf, and so is its log-probability: the loss is torch's, and that of the other classes alone."""
    logits = torch.randn(B, classes, generator=torch.Generator().manual_seed(7)).double()
    logits[:, 3] = -torch.inf
    y, weight = torch.tensor([0, 2, classes - 1, 2, 5]), torch.arange(1.0, B + 1).double()
    leaf, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss = cross_entropy(leaf, y)
    expected = F.cross_entropy(other, y, reduction="none")
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-14)
    kept = torch.arange(classes) != 3
    alone = F.cross_entropy(logits[:, kept], y - (y > 3).long(), reduction="none")
    torch.testing.assert_close(loss, alone, rtol=1e-12, atol=1e-14)
    (loss @ weight).backward()
    (expected @ weight).backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-12, atol=1e-14)
    assert bool((leaf.grad[:, 3] == 0).all())


def test_the_gradient_of_many_classes_can_be_taken_once() -> None:
    """It has taken the place of what a second one would need: torch says so, and gives no wrong number."""
    leaf = torch.zeros(B, MANY_CLASSES + 7, requires_grad=True)
    loss = cross_entropy(leaf, torch.arange(B)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
