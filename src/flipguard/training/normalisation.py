"""BatchNorm, the sum with a shortcut, and ReLU in training as three kernels forward and three backward.

On a GPU these are memory traffic: torch's own kernels read and write an activation about nineteen times a step, these
about ten. An activation in channels-last memory is a matrix (R, C) of R = B·H·W rows:

    forward    mean and variance per channel; y = relu((x - mean)/σ·γ + β + z)
    backward   with g = dy·1(y > 0) and x̂ = (x - mean)/σ:   dβ = Σ g,  dγ = Σ g·x̂,
               dx = γ/σ·(g - dβ/R - x̂·dγ/R),  dz = g

Sums are taken in float32 around the running mean, so that a mean far from zero costs no digits.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

TILE, PROGRAMS, WARPS = 4096, 1056, 8


@triton.jit
def _sums(x, shift, total, square, rows, channels, chunk, BR: tl.constexpr, BC: tl.constexpr):  # type: ignore[no-untyped-def]
    """Per program and channel: Σ (x - shift) and Σ (x - shift)²."""
    place, columns = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < channels
    around = tl.load(shift + columns, mask=inside, other=0.0)
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for start in range(place * chunk, tl.minimum((place + 1) * chunk, rows), BR):
        row = start + tl.arange(0, BR)
        mask = (row < tl.minimum((place + 1) * chunk, rows))[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * channels + columns[None, :]
        value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - around[None, :], 0.0)
        first += value
        second += value * value
    tl.store(total + place * channels + columns, tl.sum(first, 0), mask=inside)
    tl.store(square + place * channels + columns, tl.sum(second, 0), mask=inside)


@triton.jit
def _statistics(  # type: ignore[no-untyped-def]
    total, square, mean, rstd, running_mean, running_var, rows, channels, places, momentum, eps,
    BP: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """The programs' sums to mean and 1/σ; the running statistics move."""
    columns = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = columns < channels
    first = tl.zeros((BC,), tl.float32)
    second = tl.zeros((BC,), tl.float32)
    for start in range(0, places, BP):
        row = start + tl.arange(0, BP)
        mask = (row < places)[:, None] & inside[None, :]
        at = row[:, None] * channels + columns[None, :]
        first += tl.sum(tl.load(total + at, mask=mask, other=0.0), 0)
        second += tl.sum(tl.load(square + at, mask=mask, other=0.0), 0)
    shift = tl.load(running_mean + columns, mask=inside, other=0.0)
    off = first / rows
    var = tl.maximum(second / rows - off * off, 0.0)
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
    scale = tl.load(rstd + columns, mask=inside, other=0.0) * tl.load(weight + columns, mask=inside, other=0.0)
    offset = tl.load(bias + columns, mask=inside, other=0.0) - tl.load(mean + columns, mask=inside, other=0.0) * scale
    value = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * scale[None, :] + offset[None, :]
    if ADD:
        value += tl.load(z + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _gradient_sums(  # type: ignore[no-untyped-def]
    dy, y, x, mean, rstd, total, along, rows, channels, chunk, RELU: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Per program and channel: Σ g and Σ g·x̂."""
    place, columns = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < channels
    centre = tl.load(mean + columns, mask=inside, other=0.0)
    inverse = tl.load(rstd + columns, mask=inside, other=0.0)
    first = tl.zeros((BR, BC), tl.float32)
    second = tl.zeros((BR, BC), tl.float32)
    for start in range(place * chunk, tl.minimum((place + 1) * chunk, rows), BR):
        row = start + tl.arange(0, BR)
        mask = (row < tl.minimum((place + 1) * chunk, rows))[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * channels + columns[None, :]
        g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            g = tl.where(tl.load(y + at, mask=mask, other=0.0) > 0, g, 0.0)
        hat = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * inverse[None, :]
        first += g
        second += g * hat
    tl.store(total + place * channels + columns, tl.sum(first, 0), mask=inside)
    tl.store(along + place * channels + columns, tl.sum(second, 0), mask=inside)


@triton.jit
def _gathered(  # type: ignore[no-untyped-def]
    total, along, dbias, dweight, channels, places, BP: tl.constexpr, BC: tl.constexpr
):
    columns = tl.program_id(0) * BC + tl.arange(0, BC)
    inside = columns < channels
    first = tl.zeros((BC,), tl.float32)
    second = tl.zeros((BC,), tl.float32)
    for start in range(0, places, BP):
        row = start + tl.arange(0, BP)
        mask = (row < places)[:, None] & inside[None, :]
        at = row[:, None] * channels + columns[None, :]
        first += tl.sum(tl.load(total + at, mask=mask, other=0.0), 0)
        second += tl.sum(tl.load(along + at, mask=mask, other=0.0), 0)
    tl.store(dbias + columns, first, mask=inside)
    tl.store(dweight + columns, second, mask=inside)


@triton.jit
def _backward(  # type: ignore[no-untyped-def]
    dy, y, x, dx, dz, mean, rstd, weight, dbias, dweight, rows, channels, ADD: tl.constexpr, RELU: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    columns = tl.program_id(1) * BC + tl.arange(0, BC)
    row = tl.program_id(0) * BR + tl.arange(0, BR)
    inside = columns < channels
    mask = (row < rows)[:, None] & inside[None, :]
    at = row.to(tl.int64)[:, None] * channels + columns[None, :]
    inverse = tl.load(rstd + columns, mask=inside, other=0.0)
    centre = tl.load(mean + columns, mask=inside, other=0.0)
    scale = inverse * tl.load(weight + columns, mask=inside, other=0.0)
    flat = tl.load(dbias + columns, mask=inside, other=0.0) / rows
    slope = tl.load(dweight + columns, mask=inside, other=0.0) / rows
    g = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        g = tl.where(tl.load(y + at, mask=mask, other=0.0) > 0, g, 0.0)
    if ADD:
        tl.store(dz + at, g.to(dz.dtype.element_ty), mask=mask)
    hat = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - centre[None, :]) * inverse[None, :]
    value = scale[None, :] * (g - flat[None, :] - hat * slope[None, :])
    tl.store(dx + at, value.to(dx.dtype.element_ty), mask=mask)


class _Layout:
    """How a matrix (R, C) is cut into tiles."""

    def __init__(self, rows: int, channels: int) -> None:
        self.rows, self.channels = rows, channels
        self.bc = min(triton.next_power_of_2(channels), 128)
        self.br = TILE // self.bc
        self.blocks = triton.cdiv(channels, self.bc)
        chunks = max(1, min(PROGRAMS // self.blocks, triton.cdiv(rows, self.br)))
        self.chunk = triton.cdiv(triton.cdiv(rows, chunks), self.br) * self.br
        self.places = triton.cdiv(rows, self.chunk)

    @property
    def reduce(self) -> tuple[int, int]:
        return self.places, self.blocks

    @property
    def each(self) -> tuple[int, int]:
        return triton.cdiv(self.rows, self.br), self.blocks


class _NormAddRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, z: Any, weight: Tensor, bias: Tensor, norm: nn.BatchNorm2d, relu: bool) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        z = None if z is None else z.contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        cut = _Layout(b * h * w, c)
        partial = torch.empty(2, cut.places, c, device=x.device, dtype=torch.float32)
        mean, rstd = torch.empty(2, c, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        tiles = {"BR": cut.br, "BC": cut.bc, "num_warps": WARPS}
        _sums[cut.reduce](x, norm.running_mean, partial[0], partial[1], cut.rows, c, cut.chunk, **tiles)
        _statistics[(triton.cdiv(c, 16),)](
            partial[0], partial[1], mean, rstd, norm.running_mean, norm.running_var, cut.rows, c, cut.places,
            norm.momentum, norm.eps, BP=128, BC=16,
        )  # fmt: skip
        _forward[cut.each](
            x, x if z is None else z, y, mean, rstd, weight, bias, cut.rows, c, ADD=z is not None, RELU=relu, **tiles
        )
        ctx.save_for_backward(x, y, mean, rstd, weight)
        ctx.adds, ctx.relu = z is not None, relu
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, y, mean, rstd, weight = ctx.saved_tensors
        dy = gradients[0].contiguous(memory_format=torch.channels_last)
        b, c, h, w = x.shape
        cut = _Layout(b * h * w, c)
        partial = torch.empty(2, cut.places, c, device=x.device, dtype=torch.float32)
        dbias, dweight = torch.empty(2, c, device=x.device, dtype=torch.float32)
        dx = torch.empty_like(x)
        dz = torch.empty_like(x) if ctx.adds and ctx.relu else None
        tiles = {"BR": cut.br, "BC": cut.bc, "num_warps": WARPS}
        _gradient_sums[cut.reduce](
            dy, y, x, mean, rstd, partial[0], partial[1], cut.rows, c, cut.chunk, RELU=ctx.relu, **tiles
        )
        _gathered[(triton.cdiv(c, 16),)](partial[0], partial[1], dbias, dweight, c, cut.places, BP=128, BC=16)
        _backward[cut.each](
            dy, y, x, dx, dx if dz is None else dz, mean, rstd, weight, dbias, dweight, cut.rows, c,
            ADD=dz is not None, RELU=ctx.relu, **tiles,
        )  # fmt: skip
        return dx, (dy if ctx.adds and dz is None else dz), dweight, dbias, None, None


def norm_add_relu(x: Tensor, norm: nn.BatchNorm2d, *, z: Tensor | None = None, relu: bool = True) -> Tensor:
    """relu(norm(x) + z), (B, C, H, W) in channels-last memory, with gradients; `norm` must be in training mode."""
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return _NormAddRelu.apply(x, z, norm.weight, norm.bias, norm, relu)


def fusable(layer: nn.Module) -> bool:
    """BatchNorm over images as it is mostly used: with weights, and running statistics that move at a fixed rate."""
    plain = isinstance(layer, nn.BatchNorm2d) and layer.affine and layer.track_running_stats
    return plain and layer.momentum is not None


class FusedNorm(nn.Module):
    """relu(norm(x) + z) in place of the three; in evaluation, and off the GPU, by torch's own kernels."""

    def __init__(self, norm: nn.BatchNorm2d, relu: bool) -> None:
        super().__init__()
        self.norm, self.relu = norm, relu

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        if self.norm.training and x.is_cuda and (z is None or z.dtype == x.dtype):
            return norm_add_relu(x, self.norm, z=z, relu=self.relu)
        y = self.norm(x) if z is None else self.norm(x) + z
        return torch.relu(y) if self.relu else y
