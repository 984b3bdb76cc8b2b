"""BatchNorm, the sum with a shortcut, and ReLU in training as two kernels forward and two backward (`norm_kernels`).

On a GPU these are memory traffic: torch's own kernels read and write an activation about nineteen times a step, these
eight times, or eleven with a shortcut, whose gradient they add up themselves.
"""

import operator
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
from torch import Tensor, fx, nn

from flipguard.ensembles.pairing import halved
from flipguard.models.fusion import changes_input
from flipguard.training import norm_kernels

TILE, WARPS = 2048, 2
"""Of the kernels that write every place."""

SUM_TILE, SUM_WARPS, SUM_PROGRAMS, SUM_STAGES = 4096, 4, 264, 3
"""Of the kernels that add up: two programs for each of an H200's processors. More of them read faster and end later, as
the last adds up what all have left."""

WIDEST = 64
"""Channels of a tile."""

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Triton's interpreter runs the kernels on the CPU, slowly."""

READERS = 4
"""The most readers of one result whose gradients are added on the way."""

Span = tuple[int, int]
"""The channels that a reader is given: the first of them, and how many."""


class _Layout:
    """How a matrix (R, C) is cut into tiles."""

    def __init__(self, rows: int, channels: int) -> None:
        self.rows, self.channels = rows, channels
        bc = min(triton.next_power_of_2(channels), WIDEST)
        self.blocks = triton.cdiv(channels, bc)
        self.tiles: dict[str, Any] = {"BR": TILE // bc, "BC": bc, "num_warps": WARPS}
        self.sum_tiles: dict[str, Any] = {"BR": SUM_TILE // bc, "BC": bc, "num_warps": SUM_WARPS, "STAGES": SUM_STAGES}
        tall = SUM_TILE // bc
        chunks = max(1, min(SUM_PROGRAMS // self.blocks, triton.cdiv(rows, tall)))
        self.chunk = triton.cdiv(triton.cdiv(rows, chunks), tall) * tall
        self.places = triton.cdiv(rows, self.chunk)

    @property
    def reduce(self) -> tuple[int, int]:
        return self.places, self.blocks

    @property
    def each(self) -> tuple[int, int]:
        return triton.cdiv(self.rows, self.tiles["BR"]), self.blocks


class _NormAddRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        z: Any,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        relu: bool,
        counts: Tensor,
        spans: tuple[Span, ...],
    ) -> Any:
        x = x.contiguous(memory_format=torch.channels_last)
        z = None if z is None else z.contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        cut = _Layout(b * h * w, c)
        partial = torch.empty(2, cut.places, c, device=x.device, dtype=torch.float32)
        mean, rstd = torch.empty(2, c, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        norm_kernels.statistics[cut.reduce](
            x, partial[0], partial[1], counts[0], mean, rstd, norm.running_mean, norm.running_var, cut.rows, c,
            cut.chunk, cut.places, norm.momentum, norm.eps, **cut.sum_tiles,
        )  # fmt: skip
        norm_kernels.forward[cut.each](
            x, x if z is None else z, y, mean, rstd, weight, bias, cut.rows, c,
            ADD=z is not None, RELU=relu, **cut.tiles,
        )  # fmt: skip
        ctx.adds, ctx.relu, ctx.counts, ctx.spans = z is not None, relu, counts, spans or ((0, c),)
        ctx.save_for_backward(x, y if ctx.adds and relu else None, mean, rstd, weight, bias)
        ctx.set_materialize_grads(False)
        return tuple(_shared(y, span) for span in spans) if spans else y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, y, mean, rstd, weight, bias = ctx.saved_tensors
        parts = [(dy, span) for dy, span in zip(gradients, ctx.spans, strict=True) if dy is not None]
        if not parts:
            return (None,) * 8
        given = [dy.contiguous(memory_format=torch.channels_last) for dy, _ in parts]
        b, c, h, w = x.shape
        unused = READERS - len(parts)
        numbers = [number for _, span in parts for number in (span if span != (0, c) else (0, 0))] + [0, 0] * unused
        cut = _Layout(b * h * w, c)
        partial = torch.empty(2, cut.places, c, device=x.device, dtype=torch.float32)
        dbias, dweight = torch.empty(2, c, device=x.device, dtype=torch.float32)
        dx = torch.empty_like(x)
        keep = len(parts) > 1 or parts[0][1] != (0, c) or y is not None
        g = torch.empty_like(x, dtype=given[0].dtype) if keep else given[0]
        norm_kernels.gradient_sums[cut.reduce](
            *given, *given[:1] * unused, x if y is None else y, x, g, mean, rstd, weight, bias,
            partial[0], partial[1], ctx.counts[1], dbias, dweight, cut.rows, c, cut.chunk, cut.places,
            ctx.adds, ctx.relu, len(parts), keep, *numbers, **cut.sum_tiles,
        )  # fmt: skip
        sign = ctx.relu and not keep
        norm_kernels.backward[cut.each](
            g, x, dx, mean, rstd, weight, bias, dbias, dweight, cut.rows, c, SIGN=sign, **cut.tiles
        )
        return dx, g if ctx.adds else None, dweight, dbias, None, None, None, None


def _shared(y: Tensor, span: Span) -> Tensor:
    """Channels of y in the same memory, not as a view: autograd keeps them apart, and their gradients."""
    part = y.detach().narrow(1, *span)
    return y.new_empty(0).set_(y.untyped_storage(), part.storage_offset(), part.shape, part.stride())


def norm_add_relu(
    x: Tensor,
    norm: nn.BatchNorm2d,
    *,
    z: Tensor | None = None,
    relu: bool = True,
    counts: Tensor | None = None,
    seen: list[Tensor] | None = None,
    spans: Sequence[Span] = (),
) -> Any:
    """relu(norm(x) + z), (B, C, H, W) in channels-last memory, with gradients; `norm` must be in training mode.

    With `spans` it comes as a tuple, for each reader the channels that it needs; the gradients of those that have one,
    at most `READERS`, are added where they are used.

    `counts` (`fresh_counts`) are zero before and after; no two calls that run at the same time may share them. The
    norm's own count of batches is raised, or put into `seen` for the caller to raise.
    """
    if norm.num_batches_tracked is not None:
        if seen is None:
            norm.num_batches_tracked.add_(1)
        else:
            seen.append(norm.num_batches_tracked)
    if x.numel() == x.shape[1]:
        raise ValueError("BatchNorm needs more than one value per channel in training.")
    counts = fresh_counts(norm).to(x.device) if counts is None else counts
    return _NormAddRelu.apply(x, z, norm.weight, norm.bias, norm, relu, counts, tuple(spans))


def fresh_counts(norm: nn.BatchNorm2d) -> Tensor:
    """Zeros, for each column of tiles, forward and backward."""
    return torch.zeros(2, _Layout(1, norm.num_features).blocks, dtype=torch.int32, device=norm.weight.device)


def fusable(layer: nn.Module) -> bool:
    """BatchNorm over images as it is mostly used: with weights, and running statistics that move at a fixed rate."""
    plain = isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats
    return plain and layer.momentum is not None


class FusedNorm(nn.Module):
    """relu(norm(x) + z) in place of the three; in evaluation, and off the GPU, by torch's own kernels.

    `seen` and `spans` as in `norm_add_relu`.
    """

    def __init__(self, norm: nn.BatchNorm2d, relu: bool, seen: list[Tensor] | None = None) -> None:
        super().__init__()
        self.norm, self.relu, self.seen, self.spans = norm, relu, seen, list[Span]()
        self.register_buffer("counts", fresh_counts(norm), persistent=False)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Any:
        if self.norm.training and (x.is_cuda or INTERPRETED) and (z is None or z.dtype == x.dtype):
            return norm_add_relu(
                x, self.norm, z=z, relu=self.relu, counts=self.counts, seen=self.seen, spans=self.spans
            )
        y = self.norm(x) if z is None else self.norm(x) + z
        y = torch.relu(y) if self.relu else y
        return tuple(y.narrow(1, *span) for span in self.spans) if self.spans else y


def for_each_reader(traced: fx.GraphModule) -> fx.GraphModule:
    """Norms whose result is read more than once give it as often: no kernel of its own adds a shortcut's gradient.

    Readers of half of the channels (`halved`) are given those; one that only looks (`detach`) has no gradient.
    """
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        norm = modules[str(node.target)] if node.op == "call_module" else None
        if not isinstance(norm, FusedNorm):
            continue
        found = list(_readers(node, norm.norm.num_features))
        if any(changes_input(reader, modules) for reader, _, _ in found):
            # The others would see its values, and their gradients would not know.
            continue
        if len(found) > 1 and sum(reader.target != "detach" for reader, _, _ in found) <= READERS:
            norm.spans = [span for _, _, span in found]
            with traced.graph.inserting_after(node):
                parts = [traced.graph.call_function(operator.getitem, (node, place)) for place in range(len(found))]
            for (reader, value, _), part in zip(found, parts, strict=True):
                reader.replace_input_with(value, part)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _readers(node: fx.Node, channels: int) -> Iterator[tuple[fx.Node, fx.Node, Span]]:
    """Each reader, the value that it reads, and the channels of the norm's result that this is."""
    for user in node.users:
        if user.target is halved:
            for half in user.users:
                for reader in half.users:
                    yield reader, half, (half.args[1] * (channels // 2), channels // 2)
        else:
            yield user, node, (0, channels)
