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
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.fusion import fuse_conv_bn_eval

from flipguard.ensembles.combine import stacked
from flipguard.ensembles.dealt import dealt_out, joined
from flipguard.ensembles.paired import NARROW, CannotPair, paired
from flipguard.ensembles.patches import Patches, from_patches, rounded_up, shared_stem, with_channels
from flipguard.ensembles.references import NetworkReference
from flipguard.models.fusion import UNTRACEABLE, fuse_layers, is_sum
from flipguard.types import Batch, Output

LOG = logging.getLogger("flipguard.training")
WARM_UP, TRIED = 3, 5
ALONE = "one by one"


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
        return _quick(folded(network), dtype)
    except UNTRACEABLE:
        return _cast(copy.deepcopy(network).eval(), dtype)


class Way(nn.Module):
    """Quick copies that answer the same images, each for one network or, with a tuple, for two."""

    def __init__(self, networks: Sequence[nn.Module], patches: nn.Module | None = None) -> None:
        super().__init__()
        self.networks, self.patches = nn.ModuleList(networks), patches

    def read(self, x: Tensor) -> Tensor:
        """What the networks are given of the images (B, C, h, w)."""
        given: Tensor = x if self.patches is None else self.patches(x)
        return given


def quick_ways(networks: Sequence[nn.Module], dtype: torch.dtype) -> dict[str, Way]:
    """By name, the ways in which the networks can be asked; which is the quickest depends on the device."""
    try:
        ways = _ways(ALONE, [folded(network) for network in networks], dtype)
    except torch.OutOfMemoryError:
        raise
    except UNTRACEABLE as error:
        LOG.info("networks are asked as they are: their graph cannot be traced (%s)", error)
        return {ALONE: Way([quickened(network, dtype) for network in networks])}
    try:
        return {**ways, **_ways("in pairs", _pairs(networks), dtype)}
    except torch.OutOfMemoryError:
        raise
    except (*UNTRACEABLE, CannotPair) as error:
        LOG.info("networks are not asked in pairs: %s", error)
        return ways


def _ways(name: str, plain: Sequence[fx.GraphModule], dtype: torch.dtype) -> dict[str, Way]:
    stem = shared_stem(plain)
    # Before the first convolutions are padded, as all other layers are shared.
    reading = [] if stem is None else [from_patches(network) for network in plain]
    ways = {name: Way([_quick(network, dtype) for network in plain])}
    if stem is not None:
        patches = _cast(Patches(stem), dtype)
        ways[f"{name}, from patches"] = Way([_quick(network, dtype) for network in reading], patches)
    return ways


def _pairs(networks: Sequence[nn.Module]) -> list[fx.GraphModule]:
    """Two networks at a time, which answer as one (`paired`), and one that may be left over.

    Raises where that cannot be done, or where no convolution is narrow enough to gain by it.
    """
    plain = [folded(network) for network in networks]
    narrow = any(isinstance(layer, nn.Conv2d) and layer.out_channels <= NARROW for layer in plain[0].modules())
    if len(plain) < 2 or not narrow:
        raise CannotPair("there is nothing to gain by it")
    found = [paired(first, second) for first, second in zip(plain[::2], plain[1::2], strict=False)]
    return [*found, plain[-1]] if len(plain) % 2 else found


def apart(said: Sequence[Any]) -> list[Tensor]:
    """Each network's logits, whether it was asked alone or with another."""
    return [logits for one in said for logits in (one if isinstance(one, tuple) else (one,))]


def _quick(plain: fx.GraphModule, dtype: torch.dtype) -> nn.Module:
    return _cast(_fused(plain), dtype)


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
        again = sum(node.target == user.target for node in traced.graph.nodes) > 1
        if not isinstance(conv, nn.Conv2d) or conv.groups != 1 or again:
            continue
        wanted = rounded_up(conv.in_channels)
        if wanted > conv.in_channels:
            conv.weight = nn.Parameter(with_channels(conv.weight.data, wanted), requires_grad=False)
            conv.in_channels = wanted
            with traced.graph.inserting_after(node):
                padded = traced.graph.call_function(with_channels, (node, wanted))
            user.replace_input_with(node, padded)
    traced.recompile()


class QuickReference:
    """A network reference whose logits come from quick copies, side by side on streams of their own.

    Where their convolutions are narrow, two networks at a time may be quicker, and what their first convolutions read
    may be gathered once for all: the first call measures, and keeps what each way `took` in milliseconds. Features, and
    inputs that are differentiated, still go through the networks themselves. Logits come back as float32.
    """

    def __init__(self, reference: NetworkReference, dtype: torch.dtype, device: torch.device) -> None:
        self.name, self.members, self.classes = reference.name, reference.members, reference.classes
        self.differentiable = reference.differentiable
        self._reference, self._dtype = reference, dtype
        self.took: dict[str, float] = {}
        ways = quick_ways(list(reference.networks), dtype)
        if reference.dealt:
            # The others show all networks the same images.
            ways = {ALONE: ways[ALONE]}
        self._ways = {name: way.to(device) for name, way in ways.items()}
        self._streams: Sequence[torch.cuda.Stream] = [torch.cuda.Stream(device) for _ in reference.networks[1:]]

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        x = batch.x
        if features or not isinstance(x, Tensor) or not x.is_floating_point() or x.requires_grad:
            return self._reference(batch, features=features)
        x = x.to(self._dtype)
        with torch.no_grad():
            if len(self._ways) > 1 and not torch.cuda.is_current_stream_capturing():
                self._choose(x)
            said = self._said(next(iter(self._ways.values())), x)
            together = joined if self._reference.dealt else stacked
            return Output(together(said, self.name).float())

    def _said(self, way: Way, x: Tensor) -> list[Tensor]:
        here = torch.cuda.current_stream()
        given, networks = self._given(way, x)
        said: list[Any] = [None] * len(networks)
        streams = self._streams[: len(networks) - 1]
        for place, stream in enumerate(streams, start=1):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                said[place] = networks[place](given[place])
        said[0] = networks[0](given[0])
        for stream in streams:
            here.wait_stream(stream)
        return apart(said)

    def _given(self, way: Way, x: Tensor) -> tuple[list[Any], Sequence[nn.Module]]:
        """What each network is shown, and the networks."""
        if not self._reference.dealt:
            return [way.read(x)] * len(way.networks), way.networks
        parts = dealt_out(x, len(way.networks))
        return list(map(way.read, parts)), way.networks[: len(parts)]

    def _choose(self, x: Tensor) -> None:
        self.took = {name: _milliseconds(partial(self._said, way, x)) for name, way in self._ways.items()}
        best = min(self.took, key=self.took.__getitem__)
        told = "; ".join(f"{name} {time:.2f} ms" for name, time in self.took.items())
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
