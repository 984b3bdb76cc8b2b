"""The symmetric distances against what they are made of, and against each other."""

import torch
from torch import Tensor

from flipguard.losses import kl_divergence, probability_distance, reverse_kl_divergence, symmetric_kl_divergence

B, C = 5, 7


def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    first, second = (2 * torch.randn(B, C, dtype=torch.float64, generator=generator) for _ in range(2))
    return first, second


def test_symmetric_kl_is_both_divergences() -> None:
    first, second = pair()
    both = kl_divergence(first, second, temperature=1.0) + reverse_kl_divergence(first, second, temperature=1.0)
    torch.testing.assert_close(symmetric_kl_divergence(first, second), both)


def test_probability_distance_by_loop() -> None:
    first, second = pair()
    rows = zip(first.softmax(-1).tolist(), second.softmax(-1).tolist(), strict=True)
    expected = [sum(abs(a - b) for a, b in zip(p, q, strict=True)) for p, q in rows]
    torch.testing.assert_close(probability_distance(first, second), torch.tensor(expected, dtype=torch.float64))


def test_neither_side_is_the_teacher() -> None:
    first, second = pair()
    for distance in (symmetric_kl_divergence, probability_distance):
        torch.testing.assert_close(distance(first, second), distance(second, first))
        torch.testing.assert_close(distance(first + 3, second), distance(first, second))


def test_pinsker() -> None:
    """The paper's step from Eq. 8 to Eq. 9: the L1 distance is at most √(2·KL), hence at most √SKL."""
    first, second = pair()
    distance = probability_distance(first, second)
    assert (distance <= (2 * kl_divergence(first, second, temperature=1.0)).sqrt()).all()
    assert (distance <= symmetric_kl_divergence(first, second).sqrt()).all()


def test_at_most_two() -> None:
    one, other = torch.tensor([[1e4, -1e4, 0.0]]), torch.tensor([[-1e4, 1e4, 0.0]])
    assert probability_distance(one, other).item() == 2.0
