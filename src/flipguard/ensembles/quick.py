"""Frozen networks at the least cost on a GPU: BatchNorm folded into convolutions, ReLU and sums fused into them.

A frozen network's BatchNorm is a scale and a shift per channel: w' = w·γ/σ, b' = (b - μ)·γ/σ + β. What follows a
convolution (a shift, a sum with the shortcut, ReLU) is memory traffic, which cuDNN's fused kernels save.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flipguard.ensembles.combine import stacked
from flipguard.ensembles.references import NetworkReference
from flipguard.models.fusion import UNTRACEABLE, fuse_layers, is_sum
from flipguard.types import Batch, Output

CHANNELS = 8
"""Tensor cores read channels in groups of eight: an image's three are padded with zeros."""


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


def _fusable(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def folded(network: nn.Module) -> fx.GraphModule:
    """A copy in evaluation mode with each BatchNorm that follows a convolution folded into it.

    Where two convolutions are added, the first takes over the second's bias.
    """
    traced = fx.symbolic_trace(copy.deepcopy(network).eval())
    modules = dict(traced.named_modules())

    def convolution(node: Any) -> bool:
        return isinstance(node, fx.Node) and node.op == "call_module" and isinstance(modules[node.target], _ConvNd)

    for node in list(traced.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], _BatchNorm):
            before = node.args[0]
            if convolution(before) and len(before.users) == 1:
                modules[before.target] = fuse_conv_bn_eval(modules[before.target], modules[node.target])
                traced.set_submodule(before.target, modules[before.target])
                node.replace_all_uses_with(before)
                traced.graph.erase_node(node)
        elif is_sum(node) and all(convolution(part) and len(part.users) == 1 for part in node.args):
            first, second = (modules[part.target] for part in node.args)
            if first.bias is not None and second.bias is not None:
                first.bias.data.add_(second.bias.data)
                second.bias = None
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def quickened(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A frozen copy for CUDA in `dtype`, channels last: folded and fused where its graph can be traced.

    A network with branches that depend on data cannot be traced; its copy is only cast.
    """
    try:
        plain = folded(network)
        _pad_inputs(plain)
        quick: nn.Module = fuse_layers(plain, _fusable, lambda conv, _: _Fused(conv))
        quick.delete_all_unused_submodules()
    except UNTRACEABLE:
        quick = copy.deepcopy(network).eval()
    return quick.to(dtype=dtype, memory_format=torch.channels_last).requires_grad_(False)


def _pad_inputs(traced: fx.GraphModule) -> None:
    """A convolution on the images themselves reads zeros as further channels, up to a multiple of eight."""
    modules = dict(traced.named_modules())
    for node in traced.graph.nodes:
        if node.op != "placeholder" or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        conv = modules.get(str(user.target))
        missing = -conv.in_channels % CHANNELS if isinstance(conv, nn.Conv2d) and conv.groups == 1 else 0
        if isinstance(conv, nn.Conv2d) and missing:
            conv.weight = nn.Parameter(F.pad(conv.weight.data, (0, 0, 0, 0, 0, missing)), requires_grad=False)
            conv.in_channels += missing
            with traced.graph.inserting_after(node):
                padded = traced.graph.call_function(F.pad, (node, (0, 0, 0, 0, 0, missing)))
            user.replace_input_with(node, padded)
    traced.recompile()


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

    def __getattr__(self, name: str) -> Any:
        """All else (heads, the map of classes, one drawn member) is the reference's own."""
        return getattr(self.__dict__["_reference"], name)
