"""Casts that are done together give the weights of casts that are done one by one, to the last bit."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from flipguard.models import build_model
from flipguard.training.at_once import AtOnce

B, C = 5, 7


def trained(network: nn.Module, forward: Callable[[Tensor], Tensor], at_once: AtOnce | None, parts: int) -> nn.Module:
    """Three updates in bfloat16, the gradients of a batch's parts added up."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    draw = torch.Generator().manual_seed(3)
    for _ in range(3):
        x, y = torch.randn(parts * B, 3, 8, 8, generator=draw), torch.randint(C, (parts * B,), generator=draw)
        for part in range(parts):
            rows = slice(part * B, (part + 1) * B)
            if at_once is not None:
                at_once.begin()
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
                loss = F.cross_entropy(forward(x[rows]).float(), y[rows])
            loss.backward()
            if at_once is not None:
                at_once.end()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return network


def test_updates_are_those_of_autocast() -> None:
    torch.manual_seed(1)
    plain = build_model("resnet10", classes=C, width=8)
    for parts in (1, 2):
        one, other = copy.deepcopy(plain), copy.deepcopy(plain)
        names = list(other.state_dict())
        traced = fx.symbolic_trace(other)
        at_once = AtOnce(traced, torch.bfloat16)
        trained(one, one, None, parts)
        trained(other, traced, at_once, parts)
        assert list(other.state_dict()) == names
        for name, value in one.state_dict().items():
            assert torch.equal(other.state_dict()[name], value), name
        assert not torch.equal(one.state_dict()[names[0]], plain.state_dict()[names[0]])


def test_a_layer_that_is_used_twice_or_does_not_learn() -> None:
    """Both are left to autocast."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fixed, self.own, self.head = nn.Linear(3 * 64, 11), nn.Linear(11, 11), nn.Linear(11, C)
            self.fixed.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.head(self.own(torch.relu(self.own(self.fixed(x.flatten(1))))))
            return result

    torch.manual_seed(1)
    one = Twice()
    other = copy.deepcopy(one)
    traced = fx.symbolic_trace(other)
    trained(other, traced, AtOnce(traced, torch.bfloat16), 1)
    trained(one, one, None, 1)
    for name, value in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
