"""The regularisers of confidence against loops and limits."""

import math

import pytest
import torch
from torch import Tensor

from flipguard.losses import divergence_from_uniform, kl_divergence, prediction_entropy, reverse_kl_divergence
from flipguard.types import InputError

B, C = 5, 7


def some_logits() -> Tensor:
    return 2 * torch.randn(B, C, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("k", [None, 1, 3, C])
def test_equal_loops(k: int | None) -> None:
    logits = some_logits()
    entropy, divergence = [], []
    for row in logits.tolist():
        powers = [math.exp(value) for value in row]
        kept = sorted((power / sum(powers) for power in powers), reverse=True)[:k]
        entropy.append(-sum(p * math.log(p) for p in kept))
        divergence.append(sum((p - 1 / C) * math.log(C * p) for p in kept))
    torch.testing.assert_close(prediction_entropy(logits, k=k), torch.tensor(entropy, dtype=torch.float64))
    torch.testing.assert_close(divergence_from_uniform(logits, k=k), torch.tensor(divergence, dtype=torch.float64))


def test_from_uniform_is_both_divergences() -> None:
    logits, uniform = some_logits(), torch.zeros(B, C, dtype=torch.float64)
    both = kl_divergence(logits, uniform, temperature=1.0) + reverse_kl_divergence(logits, uniform, temperature=1.0)
    torch.testing.assert_close(divergence_from_uniform(logits), both)


def test_limits() -> None:
    """Uniform predictions have entropy log C and no distance; sure ones no entropy, and a distance that grows on."""
    uniform = torch.full((B, C), 3.0)
    torch.testing.assert_close(prediction_entropy(uniform), torch.full((B,), math.log(C)))
    assert divergence_from_uniform(uniform).abs().max() < 1e-6
    sure = torch.nn.functional.one_hot(torch.arange(B), C)
    assert torch.equal(prediction_entropy(1e4 * sure), torch.zeros(B))
    near, far = divergence_from_uniform(1e3 * sure), divergence_from_uniform(1e4 * sure)
    torch.testing.assert_close(far - near, torch.full((B,), 9e3 * (1 - 1 / C)))


def test_bad_arguments() -> None:
    for loss in (prediction_entropy, divergence_from_uniform):
        with pytest.raises(InputError, match=r"logits \(B, C\), got \(7,\)"):
            loss(torch.zeros(C))
        with pytest.raises(InputError, match=f"k={C + 1} classes"):
            loss(torch.zeros(B, C), k=C + 1)
