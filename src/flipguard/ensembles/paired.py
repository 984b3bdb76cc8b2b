"""Two frozen networks of one architecture as one, where their convolutions are narrow.

A convolution of 32 channels leaves a tensor core mostly idle. Two of them side by side, as one of 64 channels whose
weights are zero between the two, do twice the arithmetic that is needed in half as many kernels of a better shape;
whether that pays is measured where it is used. Where the networks get wider their ways part: each goes on by itself,
its first convolution reading both networks' channels with zeros for those of the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from flipguard.models.fusion import is_sum

NARROW = 32
"""Convolutions of up to so many output channels are done together."""

_BY_CHANNEL = (nn.ReLU, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout)
_BY_CHANNEL_FUNCTIONS = (F.relu, torch.relu, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)


class CannotPair(ValueError):
    """The two networks are not of one architecture."""


@dataclass(frozen=True)
class _Both:
    """One value for both networks: `channels` of the first, then as many of the second; none where it is the input."""

    node: fx.Node
    channels: int | None


@dataclass(frozen=True)
class _Each:
    nodes: tuple[Any, Any]


def paired(first: fx.GraphModule, second: fx.GraphModule) -> fx.GraphModule:
    """x -> (what the first says, what the second says). Both are frozen, in evaluation mode, with one graph.

    Of the paired network's convolutions only those with zeros between channels are new; others are shared.
    """
    return _Pairing(first, second).made()


class _Pairing:
    def __init__(self, first: fx.GraphModule, second: fx.GraphModule) -> None:
        self.old = (first, second)
        self.modules = tuple(dict(network.named_modules()) for network in self.old)
        self.graph, self.root = fx.Graph(), nn.Module()
        self.found: dict[fx.Node, _Both | _Each] = {}
        self.cut: dict[fx.Node, _Each] = {}
        self.layers = 0

    def made(self) -> fx.GraphModule:
        for one, other in self._alike():
            if one.op == "output":
                self.graph.output(self._each(one.args[0]).nodes)
            else:
                self.found[one] = self._rewritten(one, other)
        return fx.GraphModule(self.root, self.graph)

    def _alike(self) -> Iterator[tuple[fx.Node, fx.Node]]:
        nodes = [list(network.graph.nodes) for network in self.old]
        if len(nodes[0]) != len(nodes[1]):
            raise CannotPair("the graphs differ in length")
        for one, other in zip(*nodes, strict=True):
            said = [self._written(node, place) for place, node in enumerate((one, other))]
            if said[0] != said[1] or one.op == "get_attr":
                raise CannotPair(f"the graphs differ at {one}, or it is a tensor of the network's own")
            yield one, other

    def _written(self, node: fx.Node, place: int) -> tuple[str, ...]:
        """A node with its layer's shape, stride and all else that is written about it."""
        layer = repr(self.modules[place][str(node.target)]) if node.op == "call_module" else ""
        return node.op, str(node.target), str(node.args), str(node.kwargs), layer

    def _rewritten(self, one: fx.Node, other: fx.Node) -> _Both | _Each:
        if one.op == "placeholder":
            return _Both(self.graph.placeholder(str(one.target)), None)
        convolutions = self._convolutions(one)
        if convolutions is not None:
            given = self.found[one.args[0]]
            if isinstance(given, _Both):
                return self._convolved(given, *convolutions)
        values = [self.found[part] for part in one.all_input_nodes]
        if self._by_channel(one) and values and all(isinstance(value, _Both) and value.channels for value in values):
            return _Both(self._copied(one, 0, lambda node: self.found[node].node), values[0].channels)  # type: ignore[union-attr]
        return _Each((self._for_one(one, 0), self._for_one(other, 1)))

    def _convolutions(self, node: fx.Node) -> tuple[nn.Conv2d, nn.Conv2d] | None:
        """The node's two convolutions, where they can be done together."""
        if node.op != "call_module":
            return None
        both = tuple(modules[str(node.target)] for modules in self.modules)
        for conv in both:
            if not isinstance(conv, nn.Conv2d) or conv.groups != 1 or conv.padding_mode != "zeros":
                return None
        return both

    def _convolved(self, given: _Both, first: nn.Conv2d, second: nn.Conv2d) -> _Both | _Each:
        if first.out_channels <= NARROW:
            weights = [conv.weight for conv in (first, second)]
            weight = torch.cat(weights) if given.channels is None else _block_diagonal(*weights)
            bias = None if first.bias is None or second.bias is None else torch.cat([first.bias, second.bias])
            return _Both(self._call(_convolution(first, weight, bias), given.node), first.out_channels)
        if given.channels is None:
            return _Each((self._call(first, given.node), self._call(second, given.node)))
        nothing = torch.zeros_like(first.weight)
        wide = (torch.cat([first.weight, nothing], 1), torch.cat([nothing, second.weight], 1))
        apart = [
            self._call(_convolution(conv, weight, conv.bias), given.node)
            for conv, weight in zip((first, second), wide, strict=True)
        ]
        return _Each((apart[0], apart[1]))

    def _by_channel(self, node: fx.Node) -> bool:
        """Whether a node does the same to each channel by itself."""
        if node.op == "call_module":
            return isinstance(self.modules[0][str(node.target)], _BY_CHANNEL)
        return is_sum(node) or (node.op == "call_function" and node.target in _BY_CHANNEL_FUNCTIONS)

    def _each(self, node: Any) -> _Each:
        """A value as one for each network; a joint one is cut in two, where its ways part."""
        value = self.found[node]
        if isinstance(value, _Each):
            return value
        if value.channels is None:
            return _Each((value.node, value.node))
        if node not in self.cut:
            first, second = (
                self.graph.call_method("narrow", (value.node, 1, place * value.channels, value.channels))
                for place in (0, 1)
            )
            self.cut[node] = _Each((first, second))
        return self.cut[node]

    def _for_one(self, node: fx.Node, place: int) -> fx.Node:
        # The two graphs have the same nodes in the same places: the first one's names serve for both.
        named = dict(zip(self.old[1].graph.nodes, self.old[0].graph.nodes, strict=True)) if place else {}
        return self._copied(node, place, lambda part: self._each(named.get(part, part)).nodes[place])

    def _copied(self, node: fx.Node, place: int, mapped: Any) -> fx.Node:
        if node.op != "call_module":
            return self.graph.node_copy(node, mapped)
        arguments = fx.map_arg((node.args, node.kwargs), mapped)
        return self._call(self.modules[place][str(node.target)], *arguments[0], **arguments[1])

    def _call(self, module: nn.Module, *args: Any, **kwargs: Any) -> fx.Node:
        name = f"layer{self.layers}"
        self.layers += 1
        self.root.add_module(name, module)
        return self.graph.call_module(name, args, kwargs)


def _block_diagonal(first: Tensor, second: Tensor) -> Tensor:
    """Two weights (O, I, h, w) -> (2·O, 2·I, h, w), zero between the one's channels and the other's."""
    nothing = torch.zeros_like(first)
    return torch.cat([torch.cat([first, nothing], 1), torch.cat([nothing, second], 1)])


def _convolution(like: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """Another convolution with the same stride and padding."""
    found = nn.Conv2d(
        weight.shape[1],
        weight.shape[0],
        like.kernel_size,
        like.stride,
        like.padding,
        like.dilation,
        bias=bias is not None,
        device="meta",
    )
    found.weight = nn.Parameter(weight.detach(), requires_grad=False)
    found.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return found
