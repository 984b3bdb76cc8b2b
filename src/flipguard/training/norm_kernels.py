"""The kernels of `normalisation`, in Triton. An activation in channels-last memory is a matrix (R, C), R = B·H·W:

    forward    mean and variance per channel; y = relu((x - mean)/σ·γ + β + z)
    backward   with g = dy·1(y > 0) and x̂ = (x - mean)/σ:   dβ = Σ g,  dγ = Σ g·x̂,
               dx = γ/σ·(g - dβ/R - x̂·dγ/R),  dz = g

Sums are taken in float32 around the first row, so that a mean far from zero costs no digits. Each program leaves its
sums, and the one that is last to do so adds them up, always in the same order: the result does not depend on who it is.
Without a shortcut the sign of y is found from x again, which is read anyway; with one, the first kernel backward writes
g where the second, and the shortcut, read it.
"""

import triton
import triton.language as tl

# One compiled kernel serves all shapes of a kind.
UNSPECIALISED = ["rows", "chunk", "places"]


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


@triton.jit(do_not_specialize=UNSPECIALISED)
def statistics(  # type: ignore[no-untyped-def]
    x, total, square, count, mean, rstd, running_mean, running_var, rows, channels, chunk, places, momentum, eps,
    BR: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Per program and channel Σ (x - shift) and Σ (x - shift)²; then mean and 1/σ, and the running statistics move."""
    place, columns = tl.program_id(0), tl.program_id(1) * BC + tl.arange(0, BC)
    inside = columns < channels
    shift = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
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
        centre = shift + off
        var = tl.maximum(all_second / rows - off * off, 0.0, propagate_nan=tl.PropagateNan.ALL)
        tl.store(mean + columns, centre, mask=inside)
        tl.store(rstd + columns, 1.0 / tl.sqrt(var + eps), mask=inside)
        old = tl.load(running_mean + columns, mask=inside, other=0.0)
        tl.store(running_mean + columns, old + momentum * (centre - old), mask=inside)
        old = tl.load(running_var + columns, mask=inside, other=0.0)
        tl.store(running_var + columns, old + momentum * (var * (rows / (rows - 1.0)) - old), mask=inside)


@triton.jit(do_not_specialize=UNSPECIALISED)
def forward(  # type: ignore[no-untyped-def]
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
        value = tl.maximum(value, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _part(dy, row, columns, mask, channels, START: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """A reader's gradient: of all channels where WIDTH is zero, else (R, WIDTH) from START on and zero for others."""
    if WIDTH == 0:
        inside = mask
        at = row.to(tl.int64)[:, None] * channels + columns[None, :]
    else:
        inside = mask & ((columns >= START) & (columns < START + WIDTH))[None, :]
        at = row.to(tl.int64)[:, None] * WIDTH + (columns - START)[None, :]
    return tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=UNSPECIALISED)
def gradient_sums(  # type: ignore[no-untyped-def]
    dy, dy2, dy3, dy4, y, x, g, mean, rstd, weight, bias, total, along, count, dbias, dweight, rows, channels,
    chunk, places, ADD: tl.constexpr, RELU: tl.constexpr, PARTS: tl.constexpr, KEEP: tl.constexpr,
    S1: tl.constexpr, W1: tl.constexpr, S2: tl.constexpr, W2: tl.constexpr,
    S3: tl.constexpr, W3: tl.constexpr, S4: tl.constexpr, W4: tl.constexpr,
    BR: tl.constexpr, BC: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Per program and channel Σ g and Σ g·x̂; then dβ and dγ. With KEEP also g. dy comes in parts."""
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
        value = _part(dy, row, columns, mask, channels, S1, W1)
        if PARTS > 1:
            value += _part(dy2, row, columns, mask, channels, S2, W2)
        if PARTS > 2:
            value += _part(dy3, row, columns, mask, channels, S3, W3)
        if PARTS > 3:
            value += _part(dy4, row, columns, mask, channels, S4, W4)
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


@triton.jit(do_not_specialize=UNSPECIALISED)
def backward(  # type: ignore[no-untyped-def]
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
