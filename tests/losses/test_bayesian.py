"""The CR rule's targets, sample by sample."""

import pytest
import torch

from flipguard.losses import cost_ratio_target
from flipguard.types import InputError

B, C = 101, 7


@pytest.mark.parametrize("cost_ratio", [1.0, 2.0, 5.0, 10.0])
def test_targets_by_a_loop(cost_ratio: float) -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = (torch.randn(B, C, generator=generator, dtype=torch.float64) for _ in range(2))
    stored = old.argmax(-1)
    target = cost_ratio_target(old, new, stored, cost_ratio=cost_ratio)
    p = old.softmax(-1) * new.softmax(-1)
    for row in range(B):
        best = int(p[row].argmax())
        change = p[row, best] > cost_ratio * p[row, stored[row]]
        assert target[row] == (best if change else stored[row])


def test_a_larger_ratio_changes_fewer() -> None:
    generator = torch.Generator().manual_seed(0)
    old, new = (torch.randn(B, C, generator=generator) for _ in range(2))
    stored = old.argmax(-1)
    changed = [int((cost_ratio_target(old, new, stored, cost_ratio=c) != stored).sum()) for c in (1.0, 2.0, 5.0, 10.0)]
    assert changed[0] > changed[1] > changed[2] > changed[3] > 0


def test_no_gradient_and_no_ratio_below_one() -> None:
    new = torch.randn(B, C, requires_grad=True)
    stored = torch.zeros(B, dtype=torch.long)
    assert not cost_ratio_target(torch.zeros(B, C), new, stored, cost_ratio=2.0).requires_grad
    with pytest.raises(InputError, match=r"at least 1, got 0\.5"):
        cost_ratio_target(new, new, stored, cost_ratio=0.5)
