"""Two networks that are trained in one step, as one where their convolutions are narrow.

`ensembles.paired` says why, for frozen networks, and `ensembles.pairing` walks the graphs. In training each network has
an input of its own, and its float32 weights stay its own. The larger weights that the joint convolutions read, zero
between the one network's channels and the other's, are written from them at the start of every step, and gradients are
taken back from their blocks (`blocks`). Where the ways part, a network's convolution reads both networks' channels,
with zeros for the other's, and gives a gradient to its own ones alone.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from flipguard.ensembles.pairing import Both, CannotPair, Each, Pairing
from flipguard.ensembles.patches import rounded_up
from flipguard.training.at_once import AtOnce
from flipguard.training.blocks import Block, Blocks
from flipguard.training.capture import CannotCapture
from flipguard.training.forwards import with_fused_norms
from flipguard.training.grouped import Pairs, check_known, plainly_traced, wide_layer
from flipguard.training.joined import TOLERANCE, Copied, Joined, check_alike

NARROW = 64
"""Convolutions of up to so many output channels are done together. Of 64 channels each, two take as long together as
one after the other, and the layers around them need half as many kernels (ResNet-18 on an H200)."""
HALF_TOLERANCE = 0.1
"""How far logits in half precision may be from those in full, by norm."""


def paired(networks: Sequence[nn.Module], dtype: torch.dtype | None = None) -> Joined:
    """Two networks as one; one that is left over by itself, by the same quick kernels.

    With a `dtype` passes are under autocast to it, and weights are cast to it together.
    """
    check_alike(networks)
    traced = [plainly_traced(network) for network in networks]
    if len(networks) == 1:
        return _joined(networks[0], traced[0], dtype)
    check_known(traced[0])
    first, second = traced
    pairing = _Pairing(first, second, dtype)
    try:
        together = pairing.made()
    except CannotPair as error:
        raise CannotCapture(str(error)) from error
    if not pairing.blocks:
        raise CannotCapture("no convolution is narrow enough to gain by it")
    return _joined(networks[0], together, dtype, pairing)


def _joined(
    network: nn.Module, traced: fx.GraphModule, dtype: torch.dtype | None, pairing: "_Pairing | None" = None
) -> Joined:
    device, seen = next(network.parameters()).device, list[Tensor]()
    traced.graph.eliminate_dead_code()
    traced.recompile()
    if device.type == "cuda":
        with suppress(ImportError):
            traced = with_fused_norms(traced, seen)
    blocks = [] if pairing is None else [Blocks(pairing.blocks)]
    casts = [] if dtype is None else [AtOnce(traced, dtype, [] if pairing is None else pairing.copies)]

    def call(inputs: list[Any]) -> Tensor:
        for cast in casts:
            cast.begin()
        for block in blocks:
            block.begin()
        with nullcontext() if dtype is None else torch.autocast(device.type, dtype, cache_enabled=False):
            said = traced(*inputs)
        if seen:
            torch._foreach_add_(seen, 1)
            seen.clear()
        return said[None] if isinstance(said, Tensor) else torch.stack(said)

    # A block's gradient goes to the copies that it was written from, and from there to the weights.
    copied: list[Copied] = [*blocks, *casts]
    weights = [] if pairing is None else pairing.weights
    return Joined(call, weights, traced, copied, TOLERANCE if dtype is None else HALF_TOLERANCE)


class _Pairing(Pairing):
    def __init__(self, first: fx.GraphModule, second: fx.GraphModule, dtype: torch.dtype | None) -> None:
        super().__init__(first, second, NARROW)
        self.dtype = dtype
        self.blocks: list[Block] = []
        self.weights: Pairs = []
        self.copies: list[tuple[nn.Parameter, Tensor]] = []
        self._uses = Counter(str(node.target) for node in first.graph.nodes if node.op == "call_module")
        self._beside: fx.Node | None = None
        self._seen: dict[fx.Node, fx.Node] = {}
        self._inputs: tuple[fx.Node, ...] = ()

    def input(self, node: fx.Node) -> Both:
        first, second = (self.graph.placeholder(f"{node.name}_{place}") for place in (0, 1))
        self._inputs, self.cut[node] = (first, second), Each((first, second))
        return Both(first, None)

    def convolutions(self, node: fx.Node) -> tuple[nn.Conv2d, nn.Conv2d] | None:
        """Only those that learn, and are used once: the gradients of two uses would be added in half precision."""
        found = super().convolutions(node)
        if found is None or self._uses[str(node.target)] > 1 or isinstance(found[0].padding, str):
            return None
        return found if all(own.requires_grad for own in found[0].parameters()) else None

    def together(self, node: fx.Node) -> nn.Module | None:
        layers = [modules[str(node.target)] for modules in self.modules]
        if isinstance(layers[0], nn.BatchNorm2d) and self._uses[str(node.target)] == 1:
            return wide_layer(layers, self.weights)
        return super().together(node)

    def convolved(self, given: Both, convolutions: tuple[nn.Conv2d, nn.Conv2d]) -> fx.Node:
        first = convolutions[0]
        outputs, inputs = first.out_channels, first.in_channels
        x, missing = given.node, 0
        if given.channels is None:
            missing = 0 if self.dtype is None else rounded_up(2 * inputs) - 2 * inputs
            if self._beside is None:
                self._beside = self.graph.call_function(_beside, (*self._inputs, missing))
            x = self._beside
        at = [(slice(k * outputs, (k + 1) * outputs), slice(k * inputs, (k + 1) * inputs)) for k in (0, 1)]
        copies = [self._copy(conv.weight) for conv in convolutions]
        weight = self._block((2 * outputs, 2 * inputs + missing, *first.kernel_size), copies, at)
        biases = [conv.bias for conv in convolutions if conv.bias is not None]
        rows = [(place[0],) for place in at]
        bias = self._block((2 * outputs,), [self._copy(own) for own in biases], rows) if biases else None
        return self.call(_Convolution(first, weight, bias), x)

    def parted(self, node: fx.Node, given: Both, convolutions: tuple[nn.Conv2d, nn.Conv2d]) -> Each:
        halves, apart = self.each(node.args[0]).nodes, []
        looked_at = None if given.channels is None else self._looked_at(given.node)
        for place, conv in enumerate(convolutions):
            if given.channels is None:
                apart.append(self.call(conv, halves[place]))
                continue
            inputs, own = conv.in_channels, self._copy(conv.weight)
            at = (slice(None), slice(place * inputs, (place + 1) * inputs))
            weight = self._block((conv.out_channels, 2 * inputs, *conv.kernel_size), [own], [at])
            bias = None if conv.bias is None else self._copy(conv.bias)
            apart.append(self.call(_Apart(conv, weight, own, bias, place), halves[place], looked_at))
        return Each((apart[0], apart[1]))

    def _looked_at(self, node: fx.Node) -> fx.Node:
        """A joint value without a gradient: that goes through the halves."""
        if node not in self._seen:
            self._seen[node] = self.graph.call_method("detach", (node,))
        return self._seen[node]

    def _copy(self, own: nn.Parameter) -> Tensor:
        """What a pass reads of a weight."""
        if self.dtype is None:
            return own
        copy = own.detach().to(self.dtype).requires_grad_()
        self.copies.append((own, copy))
        return copy

    def _block(self, shape: tuple[int, ...], parts: Sequence[Tensor], places: Sequence[tuple[slice, ...]]) -> Block:
        block = Block(shape, list(zip(parts, places, strict=True)))
        self.blocks.append(block)
        return block


def _beside(first: Tensor, second: Tensor, missing: int) -> Tensor:
    """The two networks' images as one, (B, 2·I, H, W), with so many channels of zeros."""
    parts = [first, second]
    if missing:
        b, _, h, w = first.shape
        last = first.is_contiguous(memory_format=torch.channels_last)
        memory_format = torch.channels_last if last else torch.contiguous_format
        like = {"dtype": first.dtype, "device": first.device, "memory_format": memory_format}
        parts.append(torch.empty(b, missing, h, w, **like).zero_())
    return torch.cat(parts, 1)


class _Convolution(nn.Module):
    """Like another, with larger weights."""

    def __init__(self, like: nn.Conv2d, weight: Block, bias: Block | None) -> None:
        super().__init__()
        self._how, self._weight, self._bias = (like.stride, like.padding, like.dilation), weight, bias

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self._weight.tensor, None if self._bias is None else self._bias.tensor, *self._how)


class _Apart(nn.Module):
    """One network's convolution of its channels, `half` of `both`."""

    def __init__(self, like: nn.Conv2d, weight: Block, own: Tensor, bias: Tensor | None, place: int) -> None:
        super().__init__()
        self._how, self._weight, self._place = (like.stride, like.padding, like.dilation), weight, place
        # Not registered: the network's own parameters stay the only ones.
        self._own = (own, bias)

    def forward(self, half: Tensor, both: Tensor) -> Tensor:
        own, bias = self._own
        given = (half, both, self._weight.tensor, own.detach(), bias)
        found: Tensor = _OwnChannels.apply(*given, self._place, self._how)
        return found


class _OwnChannels(torch.autograd.Function):
    """A convolution of both networks' channels by a weight that is zero for the other's, of which half the channels get
    a gradient. As a convolution of that half alone it would have to be copied out first; as one of both, half of the
    gradient would be zeros, to be written and added up."""

    @staticmethod
    def forward(
        ctx: Any, half: Tensor, both: Tensor, weight: Tensor, own: Tensor, bias: Tensor | None, place: int, how: Any
    ) -> Tensor:
        both = both.to(weight.dtype)
        ctx.save_for_backward(both, weight, own)
        ctx.place, ctx.how, ctx.dtype, ctx.bias = place, how, half.dtype, bias is not None
        return F.conv2d(both, weight, bias, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        both, weight, own = ctx.saved_tensors
        half = both.chunk(2, 1)[ctx.place]
        to_half, _, _ = _backward(gradients[0], half, own, ctx.how, (True, False, False))
        _, to_weight, to_bias = _backward(gradients[0], both, weight, ctx.how, (False, True, ctx.bias))
        return to_half.to(ctx.dtype), None, to_weight, None, to_bias, None, None


def _backward(dy: Tensor, x: Tensor, weight: Tensor, how: Any, wanted: tuple[bool, bool, bool]) -> Any:
    """The gradients that are wanted: of the input, the weight, the bias."""
    stride, padding, dilation = how
    return torch.ops.aten.convolution_backward(
        dy, x, weight, [weight.shape[0]], stride, padding, dilation, False, [0, 0], 1, wanted
    )
