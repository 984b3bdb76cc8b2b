"""What a first convolution reads, gathered once for all frozen networks that look at the same images.

A convolution over three channels leaves a tensor core mostly idle, and every network would do it again. With the k·k·C
values under each place as channels it is a 1×1 convolution, a plain matrix product.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

MOST = 64
"""Patches of more values are larger than what a network's first layer writes."""
CHANNELS = 8
"""Tensor cores read channels in groups of eight: what is missing is padded with zeros."""


@dataclass(frozen=True)
class Stem:
    """How first convolutions go over the images."""

    channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def values(self) -> int:
        """In a patch."""
        return self.channels * self.kernel[0] * self.kernel[1]


class Patches(nn.Module):
    """x (B, C, h, w) -> the values under each place of a kernel (B, k·k·C, h', w'), with zeros up to 8·n channels.

    A convolution whose weights are ones and zeros copies them, at any stride and padding; exactly in bfloat16.

    >>> patches = Patches(Stem(1, (2, 2), (1, 1), (0, 0)))
    >>> patches(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])).flatten()
    tensor([1., 2., 3., 4., 0., 0., 0., 0.])
    """

    def __init__(self, stem: Stem) -> None:
        super().__init__()
        self._stem = stem
        ones = torch.eye(rounded_up(stem.values), stem.values).view(-1, stem.channels, *stem.kernel)
        self.weight = nn.Parameter(with_channels(ones, rounded_up(stem.channels)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(
            with_channels(x, self.weight.shape[1]), self.weight, stride=self._stem.stride, padding=self._stem.padding
        )


def rounded_up(channels: int) -> int:
    """To what tensor cores read."""
    return channels + -channels % CHANNELS


def with_channels(x: Tensor, channels: int) -> Tensor:
    """(·, C, h, w) with zeros as further channels."""
    return F.pad(x, (0, 0, 0, 0, 0, channels - x.shape[1]))


def shared_stem(networks: Sequence[fx.GraphModule]) -> Stem | None:
    """How all convolutions on the networks' input go over it, where nothing else reads it and all do alike."""
    found = {_stem(conv) for network in networks for conv in _first_layers(network)}
    if len(found) != 1 or not all(_first_layers(network) for network in networks):
        return None
    (stem,) = found
    return stem if stem is not None and stem.values <= MOST else None


def from_patches(network: fx.GraphModule) -> fx.GraphModule:
    """The network as it reads `Patches` of its `shared_stem`; all layers but the first are shared, not copied."""
    found = fx.GraphModule(network, copy.deepcopy(network.graph))
    for node in _readers(found):
        conv = found.get_submodule(str(node.target))
        assert isinstance(conv, nn.Conv2d)
        found.set_submodule(str(node.target), _on_patches(conv))
    return found


def _readers(network: fx.GraphModule) -> list[fx.Node]:
    given = next((node for node in network.graph.nodes if node.op == "placeholder"), None)
    return [] if given is None else list(given.users)


def _first_layers(network: fx.GraphModule) -> list[nn.Module | None]:
    """What reads the input; None for what is no layer on it alone, or a layer that is used again."""
    called = [node.target for node in network.graph.nodes if node.op == "call_module"]
    return [
        network.get_submodule(str(node.target))
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs and called.count(node.target) == 1
        else None
        for node in _readers(network)
    ]


def _stem(layer: nn.Module | None) -> Stem | None:
    if not isinstance(layer, nn.Conv2d) or isinstance(layer.padding, str):
        return None
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and layer.dilation == (1, 1)
    if not plain or layer.kernel_size == (1, 1):
        return None
    return Stem(layer.in_channels, layer.kernel_size, layer.stride, layer.padding)


def _on_patches(conv: nn.Conv2d) -> nn.Conv2d:
    weight = conv.weight.detach().flatten(1)[..., None, None]
    weight = with_channels(weight, rounded_up(weight.shape[1]))
    found = nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=conv.bias is not None, device="meta")
    found.weight = nn.Parameter(weight, requires_grad=False)
    found.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach(), requires_grad=False)
    return found
