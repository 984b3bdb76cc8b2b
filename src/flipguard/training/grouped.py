"""Several convolutional networks as one wide network: M·C channels, convolutions in groups, BatchNorm per channel.

Everywhere axis 0 is the batch and axis 1 holds the members' channels, member by member: (B, M·C, …). A convolution with
M times the groups, BatchNorm, pooling, ReLU and sums then keep members apart by themselves; linear layers become one
batched product, and padded or concatenated channels are taken apart for a moment. A layer or function that is not
known to keep members apart is refused by name.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from flipguard.models.fusion import UNTRACEABLE
from flipguard.training.capture import CannotCapture
from flipguard.training.forwards import with_fused_norms
from flipguard.training.joined import Joined, check_alike, in_rows

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_KEPT = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Sigmoid, nn.Tanh),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool2d),
)
_FUNCTIONS = {
    *(operator.add, operator.iadd, operator.sub, operator.mul, operator.imul, operator.truediv),
    *(torch.add, torch.sub, torch.mul, torch.relu, torch.sigmoid, torch.tanh),
    *(F.relu, F.relu6, F.leaky_relu, F.elu, F.gelu, F.silu, F.hardswish),
    *(F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d),
}
_METHODS = {"relu", "contiguous", "add", "mul", "sigmoid", "tanh"}

Pairs = list[tuple[Tensor, Sequence[nn.Parameter]]]


class GroupedLinear(nn.Module):
    """M linear layers, (B, M·I) -> (B, M·O), as one batched product; weight (M, O, I), bias (M, O)."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight, self.bias = weight, bias

    def forward(self, x: Tensor) -> Tensor:
        members, _, inputs = self.weight.shape
        if x.dim() != 2:
            raise CannotCapture("a linear layer works on another axis than the channels")
        apart, weight = x.view(len(x), members, inputs).transpose(0, 1), self.weight.transpose(1, 2)
        y = torch.bmm(apart, weight) if self.bias is None else torch.baddbmm(self.bias[:, None], apart, weight)
        return y.transpose(0, 1).flatten(1)


def grouped(networks: Sequence[nn.Module]) -> Joined:
    """The networks as one wide network over the same memory; on a GPU with BatchNorm, sums and ReLU as single kernels.

    What it reads is the first network's graph, so the others must not take another path.
    """
    check_alike(networks)
    traced = plainly_traced(networks[0])
    weights: Pairs = []
    _widen(traced, networks, weights)
    wide: nn.Module = traced
    if next(networks[0].parameters()).is_cuda:
        try:
            wide = with_fused_norms(traced)
        except ImportError:
            wide = traced

    def call(inputs: list[Any]) -> Tensor:
        logits: Tensor = wide(torch.cat(inputs, dim=1))
        return logits.unflatten(1, (len(networks), -1)).transpose(0, 1)

    return Joined(call, weights, wide)


def plainly_traced(network: nn.Module) -> fx.GraphModule:
    """The graph of a network that has one input and layers that keep what they do to themselves."""
    if len(list(network.named_parameters(remove_duplicate=False))) > len(list(network.parameters())):
        raise CannotCapture("two layers share their weights")
    if any(module._forward_hooks or module._forward_pre_hooks for module in network.modules()):
        raise CannotCapture("a layer has hooks")
    try:
        traced = fx.symbolic_trace(network)
    except UNTRACEABLE as error:
        raise CannotCapture("the network's graph cannot be traced") from error
    inputs = sum(node.op == "placeholder" for node in traced.graph.nodes)
    if inputs != 1:
        raise CannotCapture(f"the network takes {inputs} inputs")
    return traced


def _widen(traced: fx.GraphModule, networks: Sequence[nn.Module], weights: Pairs) -> None:
    """Every layer and function of the graph by its wide form."""
    done: set[str] = set()
    for node in list(traced.graph.nodes):
        if node.op == "call_module":
            name = str(node.target)
            if name not in done:
                traced.set_submodule(name, wide_layer([n.get_submodule(name) for n in networks], weights))
                done.add(name)
        elif node.op == "call_function":
            node.target = _wide_function(node, len(networks))
        else:
            _check_other(node)
    traced.recompile()


def wide_layer(layers: Sequence[nn.Module], weights: Pairs) -> nn.Module:
    """M layers as one. Of exact types only: a subclass may compute something else."""
    check_layer(layers[0])
    first, kind, number = layers[0], type(layers[0]), len(layers)

    def together(name: str) -> nn.Parameter | None:
        own: list[Any] = [getattr(layer, name) for layer in layers]
        if own[0] is None:
            return None
        rows = in_rows(own)
        parameter = nn.Parameter(rows if kind is nn.Linear else rows.view(-1, *own[0].shape[1:]), own[0].requires_grad)
        weights.append((parameter, own))
        return parameter

    if isinstance(first, _CONVOLUTIONS) and kind in _CONVOLUTIONS:
        wide: nn.Module = kind(
            number * first.in_channels,
            number * first.out_channels,
            first.kernel_size,
            stride=first.stride,
            padding=first.padding,
            dilation=first.dilation,
            groups=number * first.groups,
            padding_mode=first.padding_mode,
            device="meta",
        )
        wide.weight, wide.bias = together("weight"), together("bias")
        return wide.train(first.training)
    if isinstance(first, _NORMS) and kind in _NORMS:
        wide = kind(number * first.num_features, first.eps, first.momentum, device="meta")
        wide.weight, wide.bias = together("weight"), together("bias")
        wide.affine, wide.track_running_stats = first.affine, first.track_running_stats
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            own: list[Any] = [getattr(layer, name) for layer in layers]
            setattr(wide, name, None if own[0] is None else in_rows(own).view(-1))
        return wide.train(first.training)
    if kind is nn.Linear:
        weight = together("weight")
        assert weight is not None
        return GroupedLinear(weight, together("bias"))
    return first


def check_known(traced: fx.GraphModule) -> None:
    """Raises unless all that the graph does is known to keep members apart."""
    for node in traced.graph.nodes:
        if node.op == "call_module":
            check_layer(traced.get_submodule(str(node.target)))
        elif node.op == "call_function":
            _wide_function(node, 1)
        else:
            _check_other(node)


def check_layer(layer: nn.Module) -> None:
    """Raises unless a layer is known to keep members apart, each with its own weights."""
    kind = type(layer)
    if isinstance(layer, _NORMS) and kind in _NORMS and layer.momentum is None:
        raise CannotCapture("BatchNorm's statistics are plain means over all batches")
    if kind in (*_CONVOLUTIONS, *_NORMS, nn.Linear, *_KEPT):
        return
    if isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        return
    if isinstance(layer, nn.Dropout):
        if kind is nn.Dropout and layer.p == 0:
            return
        raise CannotCapture("dropout would not draw what members draw alone")
    raise CannotCapture(f"the layer {kind.__name__} is not known to keep members apart")


def _wide_function(node: fx.Node, members: int) -> Callable[..., Any]:
    target: Callable[..., Any] = node.target
    if target in _FUNCTIONS:
        return target
    if target is F.pad:
        padding: Any = node.args[1] if len(node.args) > 1 else node.kwargs["pad"]
        return target if len(padding) <= 4 else _each(F.pad, members)
    if target is torch.cat and _axis(node) == 1:
        return _each(_cat_channels, members)
    if target is torch.flatten and _axis(node) == 1 and len(node.args) + len(node.kwargs) == 2:
        return target
    if target is operator.getitem and _is_window(node.args[1]):
        return target
    raise CannotCapture(f"the function {getattr(target, '__name__', target)} is not known to keep members apart")


def _axis(node: fx.Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", node.kwargs.get("start_dim", 0))


def _is_window(index: Any) -> bool:
    """x[..., a:b, c:d], rows and columns of an image, or x[..., None, None], numbers as images of one pixel."""
    if not isinstance(index, tuple) or index[0] is not Ellipsis:
        return False
    return len(index) <= 3 and all(part is None or isinstance(part, slice) for part in index[1:])


def _each(function: Callable[..., Tensor], members: int) -> Callable[..., Tensor]:
    """A function of one network's channels, for (B, M·C, …): members are taken apart for it."""

    def apart(x: Any, *args: Any, **kwargs: Any) -> Tensor:
        taken = [_apart(part, members) for part in x] if isinstance(x, list | tuple) else _apart(x, members)
        return function(taken, *args, **kwargs).flatten(1, 2)

    apart.__name__ = function.__name__
    return apart


def _apart(x: Tensor, members: int) -> Tensor:
    return x.unflatten(1, (members, -1))


def _cat_channels(parts: Sequence[Tensor], *_: Any, **__: Any) -> Tensor:
    return torch.cat(list(parts), dim=2)


def _check_other(node: fx.Node) -> None:
    if node.op == "call_method":
        _check_method(node)
    elif node.op not in ("placeholder", "output"):
        raise CannotCapture(f"the network uses {node.target} outside of a layer")


def _check_method(node: fx.Node) -> None:
    name, args = str(node.target), node.args[1:]
    if name in _METHODS or (name == "size" and args == (0,)):
        return
    if name == "flatten" and args == (1,) and not node.kwargs:
        return
    if name == "mean":
        axes: Any = args[0] if args else node.kwargs.get("dim")
        listed = list(axes) if isinstance(axes, list | tuple) else [axes]
        if all(isinstance(axis, int) and (axis >= 2 or -2 <= axis < 0) for axis in listed):
            return
    rows: Any = args[0] if args else None
    if name in ("view", "reshape") and args[1:] == (-1,) and isinstance(rows, fx.Node) and rows.target == "size":
        return
    raise CannotCapture(f"the method {name} is not known to keep members apart")
