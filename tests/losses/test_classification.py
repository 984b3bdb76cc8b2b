"""Cross-entropy against a loop, and what it refuses."""

import math

import pytest
import torch

from flipguard.losses import cross_entropy
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
