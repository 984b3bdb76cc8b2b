"""The graphs of two networks of one architecture as one graph, joined while their convolutions are narrow.

A value of the joint graph is either `Both` networks' (one tensor: the first network's channels, then the second's) or
one for `Each`. What works channel by channel keeps a joint value joint. A convolution with more than `narrow` output
channels, or whatever mixes channels, parts the networks' ways: from there on each has layers of its own.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from flipguard.models.fusion import is_sum

NARROW = 32
"""Convolutions of frozen networks of up to so many output channels are done together."""

_BY_CHANNEL = (nn.ReLU, nn.Identity, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.Dropout)
_BY_CHANNEL_FUNCTIONS = (F.relu, torch.relu, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.pad)


def halved(x: Tensor) -> tuple[Tensor, ...]:
    """A joint value (B, 2·C, …) as that of each network."""
    return x.chunk(2, 1)


class CannotPair(ValueError):
    """The two networks are not of one architecture."""


@dataclass(frozen=True)
class Both:
    """One value for both networks: `channels` of the first, then as many of the second; none where it is the input."""

    node: fx.Node
    channels: int | None


@dataclass(frozen=True)
class Each:
    """A value for each network."""

    nodes: tuple[Any, Any]


class Pairing(ABC):
    """The walk through both graphs at once; how convolutions become one, or part, is said by those that inherit it."""

    def __init__(self, first: fx.GraphModule, second: fx.GraphModule, narrow: int = NARROW) -> None:
        self.old, self.narrow = (first, second), narrow
        self.modules = tuple(dict(network.named_modules(remove_duplicate=False)) for network in self.old)
        self.graph, self.root = fx.Graph(), nn.Module()
        self.found: dict[fx.Node, Both | Each] = {}
        self.cut: dict[fx.Node, Each] = {}
        self._names: dict[nn.Module, str] = {}
        # The two graphs have the same nodes in the same places: the first one's names serve for both.
        self._same = dict(zip(second.graph.nodes, first.graph.nodes, strict=False))

    @abstractmethod
    def input(self, node: fx.Node) -> Both | Each:
        """What the networks are given."""

    @abstractmethod
    def convolved(self, given: Both, convolutions: tuple[nn.Conv2d, nn.Conv2d]) -> fx.Node:
        """Both networks' narrow convolutions of a joint value as one."""

    @abstractmethod
    def parted(self, node: fx.Node, given: Both, convolutions: tuple[nn.Conv2d, nn.Conv2d]) -> Each:
        """Each network's wider convolution of a joint value, which is the `node`'s own."""

    def together(self, node: fx.Node) -> nn.Module | None:
        """One layer for a joint value in place of both networks', where there is one."""
        return self.modules[0][str(node.target)] if isinstance(self._layer(node), _BY_CHANNEL) else None

    def made(self) -> fx.GraphModule:
        for one, other in self._alike():
            if one.op == "output":
                self.graph.output(self.each(one.args[0]).nodes)
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

    def _rewritten(self, one: fx.Node, other: fx.Node) -> Both | Each:
        if one.op == "placeholder":
            return self.input(one)
        convolutions = self.convolutions(one)
        if convolutions is not None:
            given = self.found[one.args[0]]
            if isinstance(given, Both):
                if convolutions[0].out_channels <= self.narrow:
                    return Both(self.convolved(given, convolutions), convolutions[0].out_channels)
                return self.parted(one, given, convolutions)
        return self._by_channel(one) or Each((self._for_one(one, 0), self._for_one(other, 1)))

    def convolutions(self, node: fx.Node) -> tuple[nn.Conv2d, nn.Conv2d] | None:
        """The node's two convolutions, where they can be done together."""
        if node.op != "call_module" or len(node.args) != 1:
            return None
        both = tuple(modules[str(node.target)] for modules in self.modules)
        for conv in both:
            if not isinstance(conv, nn.Conv2d) or conv.groups != 1 or conv.padding_mode != "zeros":
                return None
        return both

    def _by_channel(self, node: fx.Node) -> Both | None:
        """A joint value of joint ones, where a node does the same to each channel by itself."""
        values = [self.found[part] for part in node.all_input_nodes]
        joint = [value for value in values if isinstance(value, Both) and value.channels]
        if not joint or len(joint) < len(values) or len({value.channels for value in joint}) > 1:
            return None
        channels: Any = joint[0].channels
        nodes = {part: value.node for part, value in zip(node.all_input_nodes, joint, strict=True)}
        if node.op == "call_module":
            layer = self.together(node)
            if layer is None:
                return None
            args, kwargs = fx.map_arg((node.args, node.kwargs), nodes.__getitem__)
            return Both(self.call(layer, *args, **kwargs), channels)
        if node.target is F.pad and len(padding := _padding(node)) > 4:
            channels += sum(padding[4:6])
            # Where the next layers are wide, the ways part here.
            if channels > self.narrow:
                return None
            return Both(self.graph.call_function(_padded, (joint[0].node, *node.args[1:]), node.kwargs), channels)
        if not (is_sum(node) or node.target in _BY_CHANNEL_FUNCTIONS or _is_window(node)):
            return None
        return Both(self.graph.node_copy(node, nodes.__getitem__), channels)

    def _layer(self, node: fx.Node) -> nn.Module | None:
        return self.modules[0][str(node.target)] if node.op == "call_module" else None

    def each(self, node: Any) -> Each:
        """A value as one for each network; a joint one is cut in two, where its ways part."""
        value = self.found[node]
        if isinstance(value, Each):
            return value
        if node not in self.cut:
            if value.channels is None:
                self.cut[node] = Each((value.node, value.node))
            else:
                halves = self.graph.call_function(halved, (value.node,))
                first, second = (self.graph.call_function(operator.getitem, (halves, place)) for place in (0, 1))
                self.cut[node] = Each((first, second))
        return self.cut[node]

    def _for_one(self, node: fx.Node, place: int) -> fx.Node:
        def mapped(part: fx.Node) -> Any:
            return self.each(self._same[part] if place else part).nodes[place]

        if node.op != "call_module":
            return self.graph.node_copy(node, mapped)
        args, kwargs = fx.map_arg((node.args, node.kwargs), mapped)
        return self.call(self.modules[place][str(node.target)], *args, **kwargs)

    def call(self, module: nn.Module, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of a layer in the joint graph, where it has one name however often it is called."""
        if module not in self._names:
            self._names[module] = f"layer{len(self._names)}"
            self.root.add_module(self._names[module], module)
        return self.graph.call_module(self._names[module], args, kwargs)


def _is_window(node: fx.Node) -> bool:
    """x[..., a:b, c:d], rows and columns of an image."""
    index = node.args[1] if node.target is operator.getitem else None
    if not isinstance(index, tuple) or len(index) > 3 or index[0] is not Ellipsis:
        return False
    return all(isinstance(part, slice) for part in index[1:])


def _padding(node: fx.Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs["pad"]


def _padded(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`F.pad` of each network's channels."""
    return torch.cat([F.pad(half, *args, **kwargs) for half in halved(x)], 1)
