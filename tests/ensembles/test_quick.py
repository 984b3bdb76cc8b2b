"""Frozen networks say the same in every way of asking them; where a way cannot be had, it is not there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.ensembles.patches import Patches, Stem, from_patches, shared_stem
from flipguard.ensembles.quick import apart, folded, quick_ways
from flipguard.models import build_model

B, C = 3, 7
ALONE, PAIRS, PATCHES = "one by one", "in pairs", ", from patches"


@pytest.fixture(autouse=True)
def fused_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's fused kernels by what they are defined as: they are not there without a GPU."""

    def conv_relu(x: Tensor, weight: Tensor, bias: Tensor | None, *places: Any) -> Tensor:
        return F.relu(F.conv2d(x, weight, bias, *places))

    def conv_add_relu(x: Tensor, weight: Tensor, z: Tensor, alpha: float, bias: Tensor | None, *places: Any) -> Tensor:
        return F.relu(F.conv2d(x, weight, bias, *places) + alpha * z)

    monkeypatch.setattr(torch, "cudnn_convolution_relu", conv_relu)
    monkeypatch.setattr(torch, "cudnn_convolution_add_relu", conv_add_relu)


def networks(build: Callable[[], nn.Module], count: int = 3) -> list[nn.Module]:
    """With running statistics and shifts that are not those of a fresh one."""
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        network = build().eval()
        for key, value in network.state_dict().items():
            if "running" in key or value.ndim == 1:
                value.copy_(torch.rand(value.shape) + 0.5)
        found.append(network)
    return found


def built(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: build_model(name, classes=C, **options)


class Plain(nn.Module):
    """One first convolution or several, then what every network has."""

    def __init__(self, *first: nn.Conv2d, read: bool = False) -> None:
        super().__init__()
        self.first, self.read = nn.ModuleList(first), read
        self.body = nn.Conv2d(first[0].out_channels, 5, 3, padding=1)
        self.head = nn.Linear(5, C)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first[0](x))
        for other in list(self.first)[1:]:
            y = y + other(x)
        y = torch.relu(self.body(y)).mean((2, 3))
        result: Tensor = self.head(y)
        return result + x.mean() if self.read else result


class Twice(nn.Module):
    """Its first convolution is its second too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 3, 3), nn.Linear(3, C)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.conv(self.conv(x)).mean((2, 3)))
        return result


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, C)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x.mean((2, 3)))
        return y if y.sum() > 0 else -y


def two() -> nn.Module:
    return Plain(nn.Conv2d(3, 11, 3, stride=2, padding=1), nn.Conv2d(3, 11, 3, stride=2, padding=1, bias=False))


@pytest.mark.parametrize(
    ("build", "ways"),
    [
        (built("resnet10", width=4), (ALONE, ALONE + PATCHES, PAIRS, PAIRS + PATCHES)),
        (built("resnet20", width=40), (ALONE, ALONE + PATCHES)),
        (built("wrn28_1"), (ALONE, ALONE + PATCHES, PAIRS, PAIRS + PATCHES)),
        (built("resnet10", width=4, stem="imagenet"), (ALONE, PAIRS)),
        (two, (ALONE, ALONE + PATCHES, PAIRS, PAIRS + PATCHES)),
        (lambda: Plain(nn.Conv2d(3, 40, 4, stride=4)), (ALONE, ALONE + PATCHES, PAIRS, PAIRS + PATCHES)),
        (lambda: Plain(nn.Conv2d(3, 11, 5)), (ALONE, PAIRS)),
        (lambda: Plain(nn.Conv2d(3, 11, 1)), (ALONE, PAIRS)),
        (lambda: Plain(nn.Conv2d(3, 9, 3, groups=3)), (ALONE, PAIRS)),
        (lambda: Plain(nn.Conv2d(3, 11, 3, dilation=2)), (ALONE, PAIRS)),
        (lambda: Plain(nn.Conv2d(3, 11, 3, padding=1, padding_mode="circular")), (ALONE, PAIRS)),
        (lambda: Plain(nn.Conv2d(3, 11, 3, padding="same")), (ALONE, PAIRS)),
        (lambda: Plain(nn.Conv2d(3, 11, 3), nn.Conv2d(3, 11, (3, 3), stride=1, bias=False), read=True), (ALONE, PAIRS)),
        (Twice, (ALONE, PAIRS)),
        (Branching, (ALONE,)),
    ],
)
def test_every_way_says_what_the_networks_say(build: Callable[[], nn.Module], ways: tuple[str, ...]) -> None:
    alone = networks(build)
    x = torch.randn(B, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    found = quick_ways(alone, torch.float32)
    assert tuple(found) == ways
    with torch.no_grad():
        wanted = torch.stack([network(x) for network in alone])
        for way in found.values():
            said = apart([network(way.read(x)) for network in way.networks])
            torch.testing.assert_close(torch.stack(said), wanted, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(wanted[0], wanted[1], rtol=1e-2)


def test_all_but_the_first_layer_is_shared() -> None:
    ways = quick_ways(networks(built("resnet10", width=4)), torch.bfloat16)
    for name in (ALONE, PAIRS):
        whole, patched = ({id(p): p for p in ways[way].networks.parameters()} for way in (name, name + PATCHES))
        assert all(parameter.dtype == torch.bfloat16 for parameter in patched.values())
        own = [parameter.shape for key, parameter in patched.items() if key not in whole]
        # A stem's weight and bias for each that is asked: 27 values and 5 zeros; of three the last has no other.
        widths = {ALONE: (4, 4, 4), PAIRS: (8, 4)}[name]
        assert own[::2] == [torch.Size((width, 32, 1, 1)) for width in widths]
        assert len(own) == 2 * len(ways[name].networks)


def test_networks_with_other_first_layers_are_asked_from_the_images() -> None:
    first, second = Plain(nn.Conv2d(3, 5, 3, padding=1)).eval(), Plain(nn.Conv2d(3, 5, 3, padding=0)).eval()
    assert shared_stem([folded(first)]) == Stem(3, (3, 3), (1, 1), (1, 1))
    assert shared_stem([folded(first), folded(second)]) is None
    assert shared_stem([]) is None


@pytest.mark.parametrize(
    ("stem", "channels"),
    [
        (Stem(3, (3, 3), (1, 1), (1, 1)), 32),
        (Stem(3, (3, 3), (2, 2), (1, 1)), 32),
        (Stem(3, (4, 4), (4, 4), (0, 0)), 48),
        (Stem(2, (3, 5), (2, 1), (0, 2)), 32),
        (Stem(1, (7, 7), (1, 1), (3, 3)), 56),
    ],
)
def test_patches_are_the_values_themselves(stem: Stem, channels: int) -> None:
    """Copied in bf16 to the bit, in the order of a kernel's weights; further channels are zero."""
    x = torch.randn(B, stem.channels, 13, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = Patches(stem).to(torch.bfloat16)(x.contiguous(memory_format=torch.channels_last))
    wanted = F.unfold(x.float(), stem.kernel, padding=stem.padding, stride=stem.stride).bfloat16()
    assert found.shape[:2] == (B, channels)
    assert torch.equal(found.flatten(2)[:, : stem.values], wanted)
    assert not found[:, stem.values :].any()


def test_a_network_is_left_as_it_was() -> None:
    plain = folded(networks(built("resnet10", width=4), 1)[0])
    x = torch.randn(B, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    stem = shared_stem([plain])
    assert stem is not None
    with torch.no_grad():
        before = plain(x)
        torch.testing.assert_close(from_patches(plain)(Patches(stem)(x)), before, rtol=1e-4, atol=1e-4)
        assert torch.equal(plain(x), before)
