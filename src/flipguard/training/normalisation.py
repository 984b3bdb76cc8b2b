"""BatchNorm, the sum with a shortcut, and ReLU in training as two kernels forward and two backward.

On a GPU these are memory traffic: torch's own kernels read and write an activation about nineteen times a step, these
eight times, or eleven with a shortcut, whose gradient they add up themselves. An activation in channels-last memory is
a matrix (R, C) of R = B·H·W rows:

    forward    mean and variance per channel; y = relu((x - mean)/σ·γ + β + z)
    backward   with g = dy·1(y > 0) and x̂ = (x - mean)/σ:   dβ = Σ g,  dγ = Σ g·x̂,
               dx = γ/σ·(g - dβ/R - x̂·dγ/R),  dz = g

Sums are taken in float32 around the running mean, so that a mean far from zero costs no digits. Each program leaves its
sums, and the one that is last to do so adds them up, always in the same order: the result does not depend on who it is.
Without a shortcut the sign of y is found from x again, which is read anyway; with one, the first kernel backward writes
g where the second, and the shortcut, read it.
"""

import operator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, fx, nn

TILE, WARPS = 2048, 2
"""Of the kernels that write every place."""

SUM_TILE, SUM_WARPS, SUM_PROGRAMS, SUM_STAGES = 4096, 4, 264, 3
"""Of the kernels that add up: two programs for each of an H200's processors. More of them read faster and end later, as
the last adds up what all have left."""

WIDEST = 64
"""Channels of a tile."""


@triton.jit
def _is_last(count, places):  # type: ignore[no-untyped-def]
    """Whether all other programs of this column of tiles have left their sums; the count is then ready for the next."""
    tl.debug_barrier()
    last = tl.atomic_add(count, 1) == places - 1
    if last:
        tl.store(count, 0)
    return last


@triton.jit
def _added_up(first, second, columns, inside, channels, places, BP: tl.constexpr, BC: tl.constexpr):  # type: ignore[no-untyped-def]
    """The programs' sums (places, C) over the places, past the cache of this processor: others wrote them."""
    one = tl.zeros((BP, BC), tl.float32)
    two = tl.zeros((BP, BC), tl.float32)
    for start in range(0, places, BP):
        row = start + tl.arange(0, BP)
        mask = (row < places)[:, None] & inside[None, :]
        at = row[:, None] * channels + columns[None, :]
        one += tl.load(first + at, mask=mask, other=0.0, cache_modifier=".cg")
        two += tl.load(second + at, mask=mask, other=0.0, cache_modifier=".cg")
    return tl.sum(one, 0), tl.sum(two, 0)


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    x, total, square, count, mean, rstd, running_mean, running_var, rows, channels, chunk, places, momentum, eps,
    BR: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Per program and channel Σ (x - shift) and Σ (x - shift)²; then mean and 1/σ, and the running statistics move."""
    place, columns = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < channels
    shift = tl.load(running_mean + columns, mask=inside, other=0.0)
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for start in tl.range(place * chunk, tl.minimum((place + 1) * chunk, rows), BR, num_stages=STAGES):
        row = start + tl.arange(0, BR)
        mask = (row < tl.minimum((place + 1) * chunk, rows))[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - shift[None, :], 0.0)
        first += value
        second += value * value
    tl.store(total + place * channels + columns, tl.sum(first, 0), mask=inside)
    tl.store(square + place * channels + columns, tl.sum(second, 0), mask=inside)
    if _is_last(count + tl.program_id(1), places):
        all_first, all_second = _added_up(total, square, columns, inside, channels, places, BR, BC)
        off = all_first / rows
        var = tl.maximum(all_second / rows - off * off, 0.0)
        tl.store(mean + columns, shift + off, mask=inside)
        tl.store(rstd + columns, 1.0 / tl.sqrt(var + eps), mask=inside)
        old = tl.load(running_var + columns, mask=inside, other=0.0)
        tl.store(running_mean + columns, shift + momentum * off, mask=inside)
        tl.store(running_var + columns, old + momentum * (var * (rows / (rows - 1.0)) - old), mask=inside)


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, z, y, mean, rstd, weight, bias, rows, channels, ADD: tl.constexpr, RELU: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = columns < channels
    mask = (row < rows)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * channels + columns[None, :]
    inverse = tl.load(rstd + columns, mask=inside, other=0.0)
    centre = tl.load(mean + columns, mask=inside, other=0.0)
    slope = tl.load(weight + columns, mask=inside, other=0.0)
    offset = tl.load(bias + columns, mask=inside, other=0.0)
    hat = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * inverse[None, :]
    value = hat * slope[None, :] + offset[None, :]
    if ADD:
        value += tl.load(z + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_sums(  # type: ignore[no-untyped-def]
    dy, dy2, y, x, g, mean, rstd, weight, bias, total, along, count, dbias, dweight, rows, channels, chunk, places,
    ADD: tl.constexpr, RELU: tl.constexpr, TWICE: tl.constexpr, KEEP: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Per program and channel Σ g and Σ g·x̂; then dβ and dγ. With KEEP also g; with TWICE dy comes in two parts."""
    place, columns = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < channels
    centre = tl.load(mean + columns, mask=inside, other=0.0)
    inverse = tl.load(rstd + columns, mask=inside, other=0.0)
    slope = tl.load(weight + columns, mask=inside, other=0.0)
    offset = tl.load(bias + columns, mask=inside, other=0.0)
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for start in tl.range(place * chunk, tl.minimum((place + 1) * chunk, rows), BR, num_stages=STAGES):
        row = start + tl.arange(0, BR)
        mask = (row < tl.minimum((place + 1) * chunk, rows))[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if TWICE:
            value += tl.load(dy2 + at, mask=mask, other=0.0).to(tl.float32)
        hat = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * inverse[None, :]
        if RELU and ADD:
            value = tl.where(tl.load(y + at, mask=mask, other=0.0) > 0, value, 0.0)
        elif RELU:
            value = tl.where(hat * slope[None, :] + offset[None, :] > 0, value, 0.0)
        if KEEP:
            tl.store(g + at, value.to(g.dtype.element_ty), mask=mask)
        first += value
        second += value * hat
    tl.store(total + place * channels + columns, tl.sum(first, 0), mask=inside)
    tl.store(along + place * channels + columns, tl.sum(second, 0), mask=inside)
    if _is_last(count + tl.program_id(1), places):
        all_first, all_second = _added_up(total, along, columns, inside, channels, places, BR, BC)
        tl.store(dbias + columns, all_first, mask=inside)
        tl.store(dweight + columns, all_second, mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    g, x, dx, mean, rstd, weight, bias, dbias, dweight, rows, channels, SIGN: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx from g, or with SIGN from dy, whose part where y is zero falls away."""
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = columns < channels
    mask = (row < rows)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * channels + columns[None, :]
    inverse = tl.load(rstd + columns, mask=inside, other=0.0)
    centre = tl.load(mean + columns, mask=inside, other=0.0)
    slope = tl.load(weight + columns, mask=inside, other=0.0)
    flat = tl.load(dbias + columns, mask=inside, other=0.0) / rows
    along = tl.load(dweight + columns, mask=inside, other=0.0) / rows
    value = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    hat = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * inverse[None, :]
    if SIGN:
        offset = tl.load(bias + columns, mask=inside, other=0.0)
        value = tl.where(hat * slope[None, :] + offset[None, :] > 0, value, 0.0)
    value = (inverse * slope)[None, :] * (value - flat[None, :] - hat * along[None, :])
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=mask)


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
        twice: bool,
    ) -> Any:
        x = x.contiguous(memory_format=torch.channels_last)
        z = None if z is None else z.contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        cut = _Layout(b * h * w, c)
        partial = torch.empty(2, cut.places, c, device=x.device, dtype=torch.float32)
        mean, rstd = torch.empty(2, c, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        _statistics[cut.reduce](
            x, partial[0], partial[1], counts[0], mean, rstd, norm.running_mean, norm.running_var, cut.rows, c,
            cut.chunk, cut.places, norm.momentum, norm.eps, **cut.sum_tiles,
        )  # fmt: skip
        _forward[cut.each](
            x,
            x if z is None else z,
            y,
            mean,
            rstd,
            weight,
            bias,
            cut.rows,
            c,
            ADD=z is not None,
            RELU=relu,
            **cut.tiles,
        )
        ctx.adds, ctx.relu, ctx.counts = z is not None, relu, counts
        ctx.save_for_backward(x, y if ctx.adds and relu else None, mean, rstd, weight, bias)
        ctx.set_materialize_grads(False)
        # Not a view: autograd keeps the two apart, and their gradients.
        return (y, y.new_empty(0).set_(y)) if twice else y

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, y, mean, rstd, weight, bias = ctx.saved_tensors
        given = [dy.contiguous(memory_format=torch.channels_last) for dy in gradients if dy is not None]
        if not given:
            return (None,) * 8
        dy = given[0]
        b, c, h, w = x.shape
        cut = _Layout(b * h * w, c)
        partial = torch.empty(2, cut.places, c, device=x.device, dtype=torch.float32)
        dbias, dweight = torch.empty(2, c, device=x.device, dtype=torch.float32)
        dx = torch.empty_like(x)
        keep = len(given) > 1 or y is not None
        g = torch.empty_like(dy) if keep else dy
        _gradient_sums[cut.reduce](
            dy, given[-1], dy if y is None else y, x, g, mean, rstd, weight, bias, partial[0], partial[1],
            ctx.counts[1], dbias, dweight, cut.rows, c, cut.chunk, cut.places, ADD=ctx.adds, RELU=ctx.relu,
            TWICE=len(given) > 1, KEEP=keep, **cut.sum_tiles,
        )  # fmt: skip
        sign = ctx.relu and not keep
        _backward[cut.each](g, x, dx, mean, rstd, weight, bias, dbias, dweight, cut.rows, c, SIGN=sign, **cut.tiles)
        return dx, g if ctx.adds else None, dweight, dbias, None, None, None, None


def norm_add_relu(
    x: Tensor,
    norm: nn.BatchNorm2d,
    *,
    z: Tensor | None = None,
    relu: bool = True,
    counts: Tensor | None = None,
    seen: list[Tensor] | None = None,
    twice: bool = False,
) -> Any:
    """relu(norm(x) + z), (B, C, H, W) in channels-last memory, with gradients; `norm` must be in training mode.

    With `twice` a pair of it, one for each of two readers, whose gradients are then added where they are used.

    `counts` (`fresh_counts`) are zero before and after; no two calls that run at the same time may share them. The
    norm's own count of batches is raised, or put into `seen` for the caller to raise.
    """
    if norm.num_batches_tracked is not None:
        if seen is None:
            norm.num_batches_tracked.add_(1)
        else:
            seen.append(norm.num_batches_tracked)
    counts = fresh_counts(norm).to(x.device) if counts is None else counts
    return _NormAddRelu.apply(x, z, norm.weight, norm.bias, norm, relu, counts, twice)


def fresh_counts(norm: nn.BatchNorm2d) -> Tensor:
    """Zeros, for each column of tiles, forward and backward."""
    return torch.zeros(2, _Layout(1, norm.num_features).blocks, dtype=torch.int32, device=norm.weight.device)


def fusable(layer: nn.Module) -> bool:
    """BatchNorm over images as it is mostly used: with weights, and running statistics that move at a fixed rate."""
    plain = isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats
    return plain and layer.momentum is not None


class FusedNorm(nn.Module):
    """relu(norm(x) + z) in place of the three; in evaluation, and off the GPU, by torch's own kernels.

    `seen` and `twice` as in `norm_add_relu`.
    """

    def __init__(self, norm: nn.BatchNorm2d, relu: bool, seen: list[Tensor] | None = None) -> None:
        super().__init__()
        self.norm, self.relu, self.seen, self.twice = norm, relu, seen, False
        self.register_buffer("counts", fresh_counts(norm), persistent=False)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Any:
        if self.norm.training and x.is_cuda and (z is None or z.dtype == x.dtype):
            return norm_add_relu(
                x, self.norm, z=z, relu=self.relu, counts=self.counts, seen=self.seen, twice=self.twice
            )
        y = self.norm(x) if z is None else self.norm(x) + z
        y = torch.relu(y) if self.relu else y
        return (y, y) if self.twice else y


def for_each_reader(traced: fx.GraphModule) -> fx.GraphModule:
    """Norms whose result is read twice give it twice: a shortcut's gradient needs no kernel of its own to be added."""
    for node in list(traced.graph.nodes):
        norm = traced.get_submodule(str(node.target)) if node.op == "call_module" else None
        if isinstance(norm, FusedNorm) and len(node.users) == 2:
            norm.twice = True
            readers = list(node.users)
            with traced.graph.inserting_after(node):
                parts = [traced.graph.call_function(operator.getitem, (node, place)) for place in (0, 1)]
            for reader, part in zip(readers, parts, strict=True):
                reader.replace_input_with(node, part)
    traced.recompile()
    return traced
