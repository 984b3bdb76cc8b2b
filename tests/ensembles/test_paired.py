"""Two networks as one say what each says, whatever their shapes, and only where they are of one kind."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles.paired import NARROW, CannotPair, paired
from flipguard.ensembles.quick import folded, quick_ways
from flipguard.models import build_model

B, C = 3, 7


def network(name: str, seed: int, **options: Any) -> nn.Module:
    """With running statistics and shifts that are not those of a fresh one."""
    torch.manual_seed(seed)
    found = build_model(name, classes=C, **options)
    draw = torch.Generator().manual_seed(seed)
    for key, value in found.state_dict().items():
        if "running" in key or value.ndim == 1:
            value.copy_(torch.rand(value.shape, generator=draw) + 0.5)
    return found.eval()


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet18", {"width": 8}), ("resnet10", {"width": 32}), ("resnet20", {}), ("wrn28_1", {})],
)
def test_both_networks_answer_as_by_themselves(name: str, options: dict[str, Any]) -> None:
    one, other = network(name, 1, **options), network(name, 2, **options)
    x = torch.randn(B, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        said = paired(folded(one), folded(other))(x)
        for found, expected in zip(said, (one(x), other(x)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(*said, rtol=1e-2)


def test_narrow_convolutions_are_done_together_and_wide_ones_apart() -> None:
    """ResNet-10 of width 16: stem and two stages of 16 and 32 channels together, two of 64 and 128 apart."""
    one, other = (folded(network("resnet10", seed, width=16)) for seed in (1, 2))
    alone = [m for m in one.modules() if isinstance(m, nn.Conv2d)]
    together = [m for m in paired(one, other).modules() if isinstance(m, nn.Conv2d)]
    narrow = sum(conv.out_channels <= NARROW for conv in alone)
    assert 0 < narrow < len(alone)
    assert len(together) == narrow + 2 * (len(alone) - narrow)
    shared = [conv for conv in together if any(conv is before for before in alone)]
    assert shared
    assert all(conv.out_channels > NARROW for conv in shared)


def test_shortcuts_without_weights_stay_joint_while_they_are_narrow() -> None:
    """ResNet-20: 13 convolutions of 16 and 32 channels together, with a padded shortcut between; 6 of 64 for each."""
    one, other = (folded(network("resnet20", seed)) for seed in (1, 2))
    assert sum(isinstance(m, nn.Conv2d) for m in paired(one, other).modules()) == 13 + 2 * 6


class Gated(nn.Module):
    """A joint value that meets something by sample and channel, which cannot be done together."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.head = nn.Conv2d(3, 5, 3), nn.Linear(5, C)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.stem(x))
        y = y * torch.softmax(y.mean((2, 3)), 1)[:, :, None, None]
        result: Tensor = self.head(y.flatten(2).amax(-1))
        return result


def test_what_is_not_by_channel_is_done_for_each() -> None:
    one, other = Gated(1).eval(), Gated(2).eval()
    x = torch.randn(B, 3, 9, 9, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        for found, expected in zip(paired(folded(one), folded(other))(x), (one(x), other(x)), strict=True):
            torch.testing.assert_close(found, expected)


class Parameterised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def test_networks_of_other_kinds_are_refused() -> None:
    one, other = folded(network("resnet20", 1)), folded(network("resnet10", 1))
    with pytest.raises(CannotPair, match="differ in length"):
        paired(one, other)
    with pytest.raises(CannotPair, match="differ at body_stem_0"):
        paired(folded(network("resnet10", 1, width=8)), folded(network("resnet10", 1, width=16)))
    with pytest.raises(CannotPair, match="tensor of the network's own"):
        paired(folded(Parameterised()), folded(Parameterised()))


def test_quick_pairs_where_they_can_pay() -> None:
    """Two and one of three narrow networks; none of wide ones, and none of two kinds."""
    narrow = [network("resnet20", seed) for seed in (1, 2, 3)]
    assert len(quick_ways(narrow, torch.float32)["in pairs"].networks) == 2
    wide = [network("resnet10", seed, width=64) for seed in (1, 2)]
    for networks in (wide, [narrow[0], network("resnet10", 1, width=8)], narrow[:1]):
        assert "in pairs" not in quick_ways(networks, torch.float32)
