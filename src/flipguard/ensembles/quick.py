"""Frozen networks at the least cost on a GPU: BatchNorm folded into convolutions, ReLU and sums fused into them.

A frozen network's BatchNorm is a scale and a shift per channel: w' = w·γ/σ, b' = (b - μ)·γ/σ + β. What follows a
convolution (a shift, a sum with the shortcut, ReLU) is memory traffic, which cuDNN's fused kernels save.
"""

import copy
import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flipguard.ensembles.combine import stacked
from flipguard.ensembles.references import NetworkReference
from flipguard.types import Batch, Output


class _Fused(nn.Module):
    """relu(conv(x)) or relu(conv(x) + z) in one kernel."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self._places = (conv.stride, conv.padding, conv.dilation, conv.groups)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        if z is None:
            return torch.cudnn_convolution_relu(x, self.conv.weight, self.conv.bias, *self._places)
        return torch.cudnn_convolution_add_relu(x, self.conv.weight, z, 1.0, self.conv.bias, *self._places)


def folded(network: nn.Module) -> fx.GraphModule:
    """The network in evaluation mode with each BatchNorm that follows a convolution folded into it."""
    traced = fx.symbolic_trace(copy.deepcopy(network).eval())
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], _BatchNorm):
            continue
        before = node.args[0]
        if before.op != "call_module" or not isinstance(modules[before.target], _ConvNd) or len(before.users) > 1:
            continue
        together = fuse_conv_bn_eval(modules[before.target], modules[node.target])
        traced.set_submodule(before.target, together)
        modules[before.target] = together
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def quickened(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A frozen copy for CUDA in `dtype`, channels last: folded and fused where its graph can be traced.

    A network with branches that depend on data cannot be traced; its copy is only cast.
    """
    try:
        quick: nn.Module = _fuse_after_convolutions(folded(network))
    except (fx.proxy.TraceError, TypeError, ValueError, RuntimeError, AttributeError):
        quick = copy.deepcopy(network).eval()
    quick = quick.to(dtype=dtype, memory_format=torch.channels_last)
    return quick.requires_grad_(False)


def _fuse_after_convolutions(traced: fx.GraphModule) -> fx.GraphModule:
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if not _is_relu(node, modules):
            continue
        before = node.args[0]
        conv, rest = _convolution_before(before, modules)
        if conv is None:
            continue
        name = f"fused_{node.name}"
        traced.add_submodule(name, _Fused(cast(nn.Conv2d, modules[conv.target])))
        with traced.graph.inserting_before(node):
            together = traced.graph.call_module(name, (conv.args[0], *rest))
        node.replace_all_uses_with(together)
    traced.graph.eliminate_dead_code()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _convolution_before(node: Any, modules: dict[str, nn.Module]) -> tuple[Any, tuple[Any, ...]]:
    """The convolution that alone feeds a ReLU, and what is added to it in between, if anything."""
    if not isinstance(node, fx.Node) or len(node.users) != 1:
        return None, ()
    if _is_convolution(node, modules):
        return node, ()
    if node.target in (operator.add, torch.add) and len(node.args) == 2 and not node.kwargs:
        first, second = node.args
        for conv, other in ((first, second), (second, first)):
            if isinstance(other, fx.Node) and _is_convolution(conv, modules) and len(cast(Any, conv).users) == 1:
                return conv, (other,)
    return None, ()


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.ReLU)
    return node.op == "call_function" and node.target in (F.relu, torch.relu)


def _is_convolution(node: Any, modules: dict[str, nn.Module]) -> bool:
    if not isinstance(node, fx.Node) or node.op != "call_module":
        return False
    module = modules[str(node.target)]
    return isinstance(module, nn.Conv2d) and module.padding_mode == "zeros" and not isinstance(module.padding, str)


class QuickReference:
    """A network reference whose logits come from quick copies, side by side on streams of their own.

    Features, and inputs that are differentiated, still go through the networks themselves. Logits come back as float32.
    """

    def __init__(self, reference: NetworkReference, dtype: torch.dtype, device: torch.device) -> None:
        self.name, self.members, self.classes = reference.name, reference.members, reference.classes
        self.differentiable = reference.differentiable
        self._reference, self._dtype = reference, dtype
        self._networks = [quickened(network, dtype).to(device) for network in reference.networks]
        self._streams: Sequence[torch.cuda.Stream] = [torch.cuda.Stream(device) for _ in self._networks[1:]]

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        x = batch.x
        if features or not isinstance(x, Tensor) or not x.is_floating_point() or x.requires_grad:
            return self._reference(batch, features=features)
        x = x.to(self._dtype)
        here = torch.cuda.current_stream()
        said: list[Any] = [None] * len(self._networks)
        with torch.no_grad():
            for place, stream in enumerate(self._streams, start=1):
                stream.wait_stream(here)
                with torch.cuda.stream(stream):
                    said[place] = self._networks[place](x)
            said[0] = self._networks[0](x)
            for stream in self._streams:
                here.wait_stream(stream)
            return Output(stacked(said, self.name).float())
