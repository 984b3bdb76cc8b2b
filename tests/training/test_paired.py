"""Two networks as one where they are narrow: the logits, gradients and updates of each alone, or a reason why not."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.models import build_model
from flipguard.training.blocks import Block, Blocks
from flipguard.training.capture import CannotCapture
from flipguard.training.joined import Joined, check_same
from flipguard.training.paired import paired

B, C = 5, 7


class Odd(nn.Module):
    """A joint value that is read by what cannot be joint: a convolution in groups, one and a norm that are used twice,
    one that does not learn; with biases, windows, convolutions padded by a word, and a wide one of the images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(3, 6, 3, padding="same")
        self.over, self.wide = nn.Conv2d(3, 34, 1), nn.Conv2d(6, 34, 3, stride=2, padding=1)
        self.twice, self.fixed = nn.Conv2d(6, 6, 1), nn.Conv2d(6, 6, 1)
        self.apart, self.again = nn.Conv2d(6, 6, 3, padding=1, groups=2), nn.BatchNorm2d(6)
        self.bare, self.norm = nn.BatchNorm2d(6, affine=False), nn.BatchNorm2d(6)
        self.worded = nn.Conv2d(6, 34, 3, padding="same")
        self.unused, self.head = nn.Conv2d(6, 5, 1), nn.Linear(40, C)
        self.fixed.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.pad(self.norm(self.stem(x)), (1, 0, 0, 1))[..., 1:, :-1]
        y = F.max_pool2d(torch.relu(self.bare(y)), 2, 1)
        self.unused(y)
        z = self.twice(torch.relu(self.twice(y))) + self.fixed(y) + self.apart(y) + self.again(self.again(y))
        z = z + self.second(x)[..., 1:, 1:]
        wide = self.wide(y) + self.over(x)[..., :-1:2, :-1:2] + self.worded(y)[..., ::2, ::2]
        result: Tensor = self.head(torch.cat([wide, z[..., ::2, ::2]], 1).mean((2, 3)))
        return result


class Narrow(nn.Module):
    """All of it joint: one convolution after another, and a wider one at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 37, 3), nn.AdaptiveAvgPool2d(1))
        self.head = nn.Linear(37, C)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.layers(x).flatten(1))
        return result


def model(name: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: build_model(name, classes=C, **options)


KINDS = {
    "resnet18 of width 8": model("resnet18", width=8),
    "resnet18 of width 32": model("resnet18", width=32),
    "resnet10": model("resnet10", width=16),
    "resnet20": model("resnet20"),
    "wrn28_1": model("wrn28_1", width=2),
    "odd": Odd,
    "narrow": Narrow,
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks have something to part by."""
    monkeypatch.setattr("flipguard.training.paired.NARROW", 32)


def two(build: Callable[[], nn.Module], *, last: bool = False) -> list[nn.Module]:
    torch.manual_seed(0)
    networks = [build().train() for _ in range(2)]
    return [network.to(memory_format=torch.channels_last) for network in networks] if last else networks


def layers(joined: Joined, kind: str) -> int:
    return sum(type(layer).__name__ == kind for layer in joined.module.modules())


@pytest.mark.parametrize("last", [False, True], ids=["", "channels last"])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_each_alone(kind: str, last: bool) -> None:
    """In double precision, where rounding cannot hide a mistake; a second pass sees the statistics of the first."""
    networks = [network.double() for network in two(KINDS[kind], last=last)]
    alone = copy.deepcopy(networks)
    inputs = [torch.randn(B, 3, 11, 11, dtype=torch.float64) for _ in networks]
    joined = paired(networks)
    check_same(joined, networks, inputs)
    for _ in range(2):
        said, wanted = joined.call(inputs), torch.stack([n(x) for n, x in zip(alone, inputs, strict=True)])
        torch.testing.assert_close(said, wanted)
        for logits in (said, wanted):
            (logits * torch.linspace(-1, 1, logits.numel(), dtype=torch.float64).view_as(logits)).sum().backward()
        joined.hand_out()
        for one, other in zip(networks, alone, strict=True):
            for name, value in other.state_dict().items():
                torch.testing.assert_close(one.state_dict()[name], value)
            for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
                if theirs.grad is None:
                    assert mine.grad is None
                else:
                    torch.testing.assert_close(mine.grad, theirs.grad)
                mine.grad = theirs.grad = None
            with torch.no_grad():
                for parameter in (*one.parameters(), *other.parameters()):
                    parameter.mul_(0.9)


def test_what_goes_together() -> None:
    """ResNet-18 of width 32: the stem and the first stage's four, until two wider ones read what both have; all of a
    small one, shortcuts included, until its channels are averaged."""
    joined = paired(two(KINDS["resnet18 of width 32"]))
    assert layers(joined, "_Convolution") == 5
    assert layers(joined, "_Apart") == 4
    # Five joint ones, and fifteen for each: three stages of four and a shortcut.
    assert layers(joined, "BatchNorm2d") == 5 + 2 * 15
    small = paired(two(model("resnet20", width=3)))
    assert [layers(small, kind) for kind in ("_Convolution", "_Apart", "Conv2d")] == [19, 0, 0]


def updated(networks: list[nn.Module], joined: Joined | None, steps: int = 3) -> list[nn.Module]:
    """In bfloat16, each network with its own optimiser."""
    optimisers = [torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9) for network in networks]
    draw = torch.Generator().manual_seed(3)
    for _ in range(steps):
        inputs = [torch.randn(B, 3, 11, 11, generator=draw) for _ in networks]
        y = torch.randint(C, (B,), generator=draw)
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            if joined is None:
                said = torch.stack([network(x) for network, x in zip(networks, inputs, strict=True)])
            else:
                said = joined.call(inputs)
        assert said.dtype == torch.bfloat16
        F.cross_entropy(said.float().flatten(0, 1), y.repeat(len(networks))).backward()
        if joined is not None:
            joined.hand_out()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
    return networks


def off(networks: list[nn.Module], others: list[nn.Module], start: list[nn.Module]) -> float:
    """How far apart, as a share of how far training has moved them."""

    def squares(some: list[nn.Module], more: list[nn.Module]) -> float:
        pairs = zip((p for n in some for p in n.parameters()), (p for n in more for p in n.parameters()), strict=True)
        return sum(float((one - other).detach().square().sum()) for one, other in pairs)

    return (squares(networks, others) / squares(others, start)) ** 0.5


@pytest.mark.parametrize("kind", ["resnet18 of width 8", "resnet20", "odd"])
def test_in_half_precision_weights_are_cast_together(kind: str) -> None:
    start = two(KINDS[kind], last=True)
    networks, alone, again = (copy.deepcopy(start) for _ in range(3))
    joined = paired(networks, torch.bfloat16)
    check_same(joined, networks, [torch.randn(B, 3, 11, 11) for _ in networks])
    updated(networks, joined)
    updated(alone, None)
    updated(again, paired(again, torch.bfloat16))
    assert all(parameter.dtype == torch.float32 for network in networks for parameter in network.parameters())
    assert off(networks, again, start) == 0
    assert off(networks, alone, start) < 0.25
    assert off(networks[:1], alone[1:], start[1:]) > 0.5


def test_zeros_between_the_networks_stay_zeros() -> None:
    """And what the stem reads beside six channels of images has no weight."""
    networks = two(KINDS["narrow"], last=True)
    joined = paired(networks, torch.bfloat16)
    updated(networks, joined)
    # The casts are from before the last update.
    joined.call([torch.randn(B, 3, 11, 11) for _ in networks])
    stem, first, second = (
        layer._weight.tensor for layer in joined.module.modules() if type(layer).__name__ in ("_Convolution", "_Apart")
    )
    assert (stem.shape, first.shape, second.shape) == ((10, 8, 3, 3), (37, 10, 3, 3), (37, 10, 3, 3))
    for part, own in (
        (stem[:5, :3], networks[0].layers[0]),
        (stem[5:, 3:6], networks[1].layers[0]),
        (first[:, :5], networks[0].layers[2]),
        (second[:, 5:], networks[1].layers[2]),
    ):
        assert torch.equal(part, own.weight.bfloat16())  # type: ignore[union-attr,operator]
        part.detach().zero_()
    assert not any(weight.any() for weight in (stem, first, second))
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in (stem, first, second))


def test_one_that_is_left_over_is_trained_as_alone() -> None:
    networks = two(KINDS["resnet10"])[:1]
    alone = copy.deepcopy(networks)
    updated(networks, paired(networks, torch.bfloat16))
    updated(alone, None)
    for name, value in alone[0].state_dict().items():
        assert torch.equal(networks[0].state_dict()[name], value), name


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return y if y.sum() > 0 else -y


def after(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Conv2d(3, 5, 3), *copy.deepcopy(layers))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (model("resnet10", width=64), "no convolution is narrow enough to gain by it"),
        (model("mlp", input_size=12), "no convolution is narrow enough to gain by it"),
        (Branching, "cannot be traced"),
        (after(nn.Dropout(0.5)), "dropout would not draw"),
        (after(nn.GroupNorm(5, 5)), "the layer GroupNorm is not known"),
        (after(nn.BatchNorm2d(5, momentum=None)), "plain means over all batches"),
        (after(nn.Softmax2d()), "the layer Softmax2d is not known"),
    ],
)
def test_what_cannot_be_paired_says_why(build: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(CannotCapture, match=reason):
        paired([build(), build()])


def test_networks_that_differ() -> None:
    with pytest.raises(CannotCapture, match="not of one shape"):
        paired([nn.Conv2d(3, 5, 3), nn.Conv2d(3, 7, 3)])
    strides = [nn.Sequential(nn.Conv2d(3, 5, 3, stride=stride)) for stride in (1, 2)]
    with pytest.raises(CannotCapture, match="the graphs differ at"):
        paired(strides)


def test_blocks_by_hand() -> None:
    """Two parts of one block in two layouts, and a block that nothing has reached."""
    one = torch.arange(8.0).view(2, 2, 2, 1).to(memory_format=torch.channels_last).requires_grad_()
    other = torch.tensor([5.0, 7.0], requires_grad=True)
    wide = Block((2, 3, 2, 1), [(one, (slice(None), slice(1, 3)))])
    long, unreached = Block((3,), [(other, (slice(0, 2),))]), Block((4,), [(other, (slice(1, 3),))])
    blocks = Blocks([wide, long, unreached])
    blocks.begin()
    assert torch.equal(wide.tensor[:, 1:], one)
    assert not wide.tensor[:, 0].any()
    assert long.tensor.tolist() == [5, 7, 0]
    assert unreached.tensor.tolist() == [0, 5, 7, 0]
    factor = torch.arange(12.0).view(2, 3, 2, 1)
    ((wide.tensor * factor).sum() + 3 * long.tensor.sum()).backward()
    blocks.end()
    assert torch.equal(one.grad, factor[:, 1:])
    assert other.grad.tolist() == [3, 3]
    assert wide.tensor.grad is None
    blocks.end()
    assert other.grad.tolist() == [3, 3]
