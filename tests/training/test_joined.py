"""Several networks as one: the same logits and gradients as each alone, or a reason why not."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.models import build_model
from flipguard.training.capture import CannotCapture
from flipguard.training.grouped import grouped, wide_layer
from flipguard.training.joined import Joined, check_same, stacked

M, B, C = 3, 5, 7
BOTH = pytest.mark.parametrize("join", [stacked, grouped])


class Odd(nn.Module):
    """Groups, padded and concatenated channels, a layer that is used twice, BatchNorm without weights or statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False)
        self.norm, self.batch_alone = nn.BatchNorm2d(10, affine=False), nn.BatchNorm2d(10, track_running_stats=False)
        self.gate, self.head = nn.Linear(10, 10, bias=False), nn.Linear(10 * 25, C)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.first(x)), 2)
        x = torch.cat([F.pad(x, (0, 0, 0, 0, 1, 1)), self.second(x)], 1)
        x = self.batch_alone(self.norm(x))[..., :5, :5]
        x = x * torch.sigmoid(self.gate(x.mean([2, 3])))[..., None, None]
        return self.head((x * 2.0).view(x.size(0), -1)) + 0.5 * self.head(torch.flatten(x, 1))


def small(name: str) -> Callable[[], nn.Module]:
    return lambda: build_model(name, classes=C, width=2)


@BOTH
@pytest.mark.parametrize(
    ("build", "side"),
    [(small("resnet20"), 11), (small("resnet10"), 11), (small("vgg11"), 32), (small("wrn28_1"), 11), (Odd, 11)],
    ids=["resnet20", "resnet10", "vgg11", "wrn28_1", "odd"],
)
def test_logits_and_gradients_are_those_of_each_alone(
    build: Callable[[], nn.Module], side: int, join: Callable[..., Joined]
) -> None:
    """In double precision, where rounding cannot hide a mistake; a second pass sees the statistics of the first."""
    torch.manual_seed(0)
    networks = [build().double().train() for _ in range(M)]
    alone = copy.deepcopy(networks)
    inputs = [torch.randn(B, 3, side, side, dtype=torch.float64) for _ in range(M)]
    joined = join(networks)
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
                torch.testing.assert_close(mine.grad, theirs.grad)
                mine.grad = theirs.grad = None


@BOTH
def test_weights_stay_the_networks_own(join: Callable[..., Joined]) -> None:
    torch.manual_seed(0)
    networks = [build_model("cnn", classes=C, in_channels=3, width=2) for _ in range(M)]
    for network in networks:
        network.to(memory_format=torch.channels_last)
    parameters = [id(parameter) for network in networks for parameter in network.parameters()]
    before = copy.deepcopy([network.state_dict() for network in networks])
    strides = [parameter.stride() for parameter in networks[1].parameters()]
    joined = join(networks)
    assert [id(parameter) for network in networks for parameter in network.parameters()] == parameters
    assert [parameter.stride() for parameter in networks[1].parameters()] == strides
    for network, was in zip(networks, before, strict=True):
        now = network.state_dict()
        assert list(now) == list(was)
        assert all(torch.equal(now[name], was[name]) for name in was)
    inputs = [torch.randn(B, 3, 8, 8) for _ in range(M)]
    with torch.no_grad():
        for network in networks:
            network.head.bias.add_(1.0)
    check_same(joined, networks, inputs)


class Watched(nn.BatchNorm2d):
    """Keeps what it is given."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.given: list[tuple[torch.dtype, tuple[int, ...]]] = []

    def forward(self, input: Tensor) -> Tensor:
        self.given.append((input.dtype, input.stride()))
        return super().forward(input)


class Layouts(nn.Module):
    """Convolutions that follow their weights' layout, and a value whose channels lie last by its own doing.

    On a GPU autocast has what convolutions give in half precision; on the CPU it leaves mapped ones alone, so that the
    type is set here.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 5, 3), nn.Conv2d(5, 5, 3), nn.Linear(5, C)
        self.norms = nn.ModuleList([Watched(5) for _ in range(3)])
        self.dtype, self.types = dtype, list[torch.dtype]()

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norms[0](self.first(x).to(self.dtype)))
        x = self.norms[1](self.second(x.float()).to(self.dtype))
        self.types.append(x.dtype)
        x = self.norms[2](x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
        result: Tensor = self.head(x.float().square().mean((2, 3)))
        return result


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("channels_last", [True, False])
def test_what_is_mapped_is_plain(dtype: torch.dtype, channels_last: bool) -> None:
    """vmap's rule for BatchNorm wants the input in the type of the statistics, and cuDNN's a layout that vmap knows."""
    torch.manual_seed(0)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    networks = [Layouts(dtype).to(memory_format=layout).train() for _ in range(M)]
    alone = copy.deepcopy(networks)
    inputs = [torch.randn(B, 3, 11, 11).contiguous(memory_format=layout) for _ in range(M)]
    joined, first = stacked(networks), networks[0]
    statistics = [norm.running_mean.data_ptr() for norm in first.norms]
    said, wanted = joined.call(inputs), torch.stack([n(x) for n, x in zip(alone, inputs, strict=True)])
    rounding = 1e-4 if dtype == torch.float32 else 0.02
    torch.testing.assert_close(said, wanted, rtol=rounding, atol=rounding)
    assert first.types == [dtype] == alone[0].types
    given = [one for norm in first.norms for one in norm.given]
    assert [dtype for dtype, _ in given] == [torch.float32] * 3
    assert all(strides[1] > strides[3] for _, strides in given)
    assert [norm.running_mean.data_ptr() for norm in first.norms] == statistics
    assert not any("forward" in vars(module) for module in first.modules())
    said.square().sum().backward()
    joined.hand_out()
    for one, other in zip(networks, alone, strict=True):
        for mine, theirs in zip(one.norms, other.norms, strict=True):
            torch.testing.assert_close(mine.running_mean, theirs.running_mean, rtol=rounding, atol=rounding)
            torch.testing.assert_close(mine.running_var, theirs.running_var, rtol=rounding, atol=rounding)
            assert mine.num_batches_tracked == 1
        for parameter in one.parameters():
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()


def layer(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(make())


class Summed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(1)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.one(x))


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def hooked() -> nn.Module:
    network = nn.Linear(5, 5)
    network.register_forward_hook(lambda *_: None)
    return network


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (layer(lambda: nn.LayerNorm(5)), "the layer LayerNorm is not known"),
        (layer(lambda: nn.Dropout(0.5)), "dropout would not draw"),
        (layer(lambda: nn.BatchNorm1d(5, momentum=None)), "plain means over all batches"),
        (layer(lambda: nn.Flatten(0)), "the layer Flatten is not known"),
        (layer(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))), "is not known|outside of a layer"),
        (Summed, "the method sum is not known"),
        (Tied, "two layers share their weights"),
        (Branching, "cannot be traced"),
        (Scaled, "outside of a layer"),
        (hooked, "has hooks"),
    ],
)
def test_what_cannot_be_grouped_says_why(build: Callable[[], nn.Module], reason: str) -> None:
    with pytest.raises(CannotCapture, match=reason):
        grouped([build(), build()])


@BOTH
def test_networks_that_differ(join: Callable[..., Joined]) -> None:
    with pytest.raises(CannotCapture, match="not of one shape"):
        join([nn.Linear(5, 7), nn.Linear(5, 11)])


def test_a_wrong_join_is_noticed() -> None:
    torch.manual_seed(0)
    networks = [nn.Linear(5, C) for _ in range(M)]
    inputs = [torch.randn(B, 5) for _ in range(M)]
    right = stacked(networks)
    check_same(right, networks, inputs)
    mixed = Joined(lambda x: right.call([x[1], x[0], x[2]]), right.weights, right.module)
    with pytest.raises(CannotCapture, match="do not say what they say alone"):
        check_same(mixed, networks, inputs)


def test_a_wide_norm_without_weights_says_so() -> None:
    wide = wide_layer([nn.BatchNorm2d(3, affine=False) for _ in range(2)], [])
    assert isinstance(wide, nn.BatchNorm2d)
    assert not wide.affine
    assert wide.weight is None
