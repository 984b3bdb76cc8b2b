"""Frozen networks at the least cost on a GPU: BatchNorm folded into convolutions, ReLU and sums fused into them.

A frozen network's BatchNorm is a scale and a shift per channel: w' = w·γ/σ, b' = (b - μ)·γ/σ + β. What follows a
convolution (a shift, a sum with the shortcut, ReLU) is memory traffic, which cuDNN's fused kernels save.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flipguard.ensembles.combine import stacked
from flipguard.ensembles.paired import NARROW, CannotPair, paired
from flipguard.ensembles.references import NetworkReference
from flipguard.models.fusion import UNTRACEABLE, fuse_layers, is_sum
from flipguard.types import Batch, Output

LOG = logging.getLogger("flipguard.training")
CHANNELS = 8
"""Tensor cores read channels in groups of eight: an image's three are padded with zeros."""

WARM_UP, TRIED = 3, 5


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
        quick: nn.Module = _fused(folded(network))
    except UNTRACEABLE:
        quick = copy.deepcopy(network).eval()
    return _cast(quick, dtype)


def quickened_pairs(networks: Sequence[nn.Module], dtype: torch.dtype) -> list[nn.Module] | None:
    """The same for two networks at a time, which answer as one (`paired`), and for one that is left over.

    None where that cannot be done, or where no convolution is narrow enough to gain by it.
    """
    try:
        plain = [folded(network) for network in networks]
        if not any(isinstance(layer, nn.Conv2d) and layer.out_channels <= NARROW for layer in plain[0].modules()):
            return None
        twos = zip(plain[::2], plain[1::2], strict=False)
        found = [_cast(_fused(paired(first, second)), dtype) for first, second in twos]
    except (*UNTRACEABLE, CannotPair):
        return None
    return [*found, quickened(networks[-1], dtype)] if len(networks) % 2 else found


def _fused(plain: fx.GraphModule) -> fx.GraphModule:
    _pad_inputs(plain)
    quick = fuse_layers(plain, _fusable, lambda conv, _: _Fused(conv))
    quick.delete_all_unused_submodules()
    return quick


def _cast(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    return network.to(dtype=dtype, memory_format=torch.channels_last).requires_grad_(False)


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

    Where their convolutions are narrow, two networks at a time may be quicker: the first call measures which, and keeps
    what it `took` in milliseconds. Features, and inputs that are differentiated, still go through the networks
    themselves. Logits come back as float32.
    """

    def __init__(self, reference: NetworkReference, dtype: torch.dtype, device: torch.device) -> None:
        self.name, self.members, self.classes = reference.name, reference.members, reference.classes
        self.differentiable = reference.differentiable
        self._reference, self._dtype = reference, dtype
        self.took: dict[str, float] = {}
        ways = {"one by one": [quickened(network, dtype) for network in reference.networks]}
        if (pairs := quickened_pairs(reference.networks, dtype)) is not None and len(reference.networks) > 1:
            ways["in pairs"] = pairs
        self._ways = {name: [network.to(device) for network in networks] for name, networks in ways.items()}
        self._streams: Sequence[torch.cuda.Stream] = [torch.cuda.Stream(device) for _ in reference.networks[1:]]

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        x = batch.x
        if features or not isinstance(x, Tensor) or not x.is_floating_point() or x.requires_grad:
            return self._reference(batch, features=features)
        x = x.to(self._dtype)
        with torch.no_grad():
            if len(self._ways) > 1 and not torch.cuda.is_current_stream_capturing():
                self._choose(x)
            return Output(stacked(self._said(next(iter(self._ways.values())), x), self.name).float())

    def _said(self, networks: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
        here = torch.cuda.current_stream()
        said: list[Any] = [None] * len(networks)
        streams = self._streams[: len(networks) - 1]
        for place, stream in enumerate(streams, start=1):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                said[place] = networks[place](x)
        said[0] = networks[0](x)
        for stream in streams:
            here.wait_stream(stream)
        return [logits for one in said for logits in (one if isinstance(one, tuple) else (one,))]

    def _choose(self, x: Tensor) -> None:
        self.took = {name: _milliseconds(partial(self._said, networks, x)) for name, networks in self._ways.items()}
        best = min(self.took, key=self.took.__getitem__)
        told = ", ".join(f"{name} {time:.2f} ms" for name, time in self.took.items())
        LOG.info("%d networks as '%s' are asked %s (%s a batch)", self.members, self.name, best, told)
        self._ways = {best: self._ways[best]}

    def __getattr__(self, name: str) -> Any:
        """All else (heads, the map of classes, one drawn member) is the reference's own."""
        return getattr(self.__dict__["_reference"], name)


def _milliseconds(call: Callable[[], Any]) -> float:
    """Of the fastest replay of some, as a captured step has it: launched one by one, kernels wait for the host."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            call()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            call()
        took = []
        for _ in range(TRIED):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record(stream)
            graph.replay()
            ended.record(stream)
            ended.synchronize()
            took.append(began.elapsed_time(ended))
    torch.cuda.current_stream().wait_stream(stream)
    return min(took)
