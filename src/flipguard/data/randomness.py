"""Randomness without a generator: every draw is a hash of (seed, stream, counter, index).

A sample's draw depends on nothing else: not on the order of the batch, its size, the worker, the device, or on what was
drawn before. A resumed run therefore needs no generator state. Only integer tensor operations are used, so the bits
agree on CPU and GPU, no value travels to the host, and a captured step can replay them with a counter held in a tensor.
"""

import math

import torch
from torch import Tensor

ORDER, AUGMENT, VALIDATION, SUBSET, METHOD, CROP, CORRUPT = range(1, 8)
"""Streams: two draws with equal seed, counter and index but different streams have nothing in common."""

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _wrap(x: "int | Tensor") -> "int | Tensor":
    """Reduce a Python integer to signed 64 bits, as tensor arithmetic does by itself."""
    return (x + 2**63) % 2**64 - 2**63 if isinstance(x, int) else x


def _shift(x: "int | Tensor", by: int) -> "int | Tensor":
    """A logical right shift: `>>` on signed integers copies the sign bit, so the copies are masked off."""
    return (x >> by) & (2 ** (64 - by) - 1)


def _mix(x: "int | Tensor") -> "int | Tensor":
    """The finaliser of splitmix64 (Steele et al. 2014, variant 13): a bijection in which every input bit reaches every
    output bit. Python integers and int64 tensors give the same values.

    >>> _mix(1) == int(_mix(torch.tensor(1)))
    True
    """
    x = _wrap((x ^ _shift(x, 30)) * _FIRST)
    x = _wrap((x ^ _shift(x, 27)) * _SECOND)
    return x ^ _shift(x, 31)


def _state(seed: "int | Tensor", counter: "int | Tensor", stream: int) -> "int | Tensor":
    key = _mix(_wrap(_mix(_wrap(seed + _GOLDEN)) + _wrap(stream * _GOLDEN)))
    return _mix(_wrap(key ^ _mix(_wrap(counter + _GOLDEN))))


def random_bits(seed: "int | Tensor", counter: "int | Tensor", index: Tensor, *, stream: int = METHOD) -> Tensor:
    """64 random bits per row, as int64 in the shape of `index`.

    The bits are output number `index` of a splitmix64 generator whose state is a hash of (seed, stream, counter).
    `counter` is an epoch or a step: a number, or a scalar tensor when the step is captured.

    >>> index = torch.tensor([3, 1, 2])
    >>> bits = random_bits(7, 0, index)
    >>> bool((bits.flip(0) == random_bits(7, 0, index.flip(0))).all())
    True
    >>> bool((bits == random_bits(7, 1, index)).any())
    False
    """
    return _mix((index.long() + 1) * _GOLDEN + _state(seed, counter, stream))


def random_uniform(
    seed: "int | Tensor", counter: "int | Tensor", index: Tensor, *, draws: int | None = None, stream: int = METHOD
) -> Tensor:
    """Numbers in [0, 1) on a grid of 2⁻²⁴, float32 (B,), or (B, draws) when several are wanted per row.

    >>> random_uniform(7, 0, torch.arange(5), draws=3).shape
    torch.Size([5, 3])
    """
    bits = random_bits(seed, counter, index, stream=stream)
    if draws is not None:
        bits = random_bits(0, bits[..., None], torch.arange(draws, device=index.device), stream=stream)
    return _shift(bits, 40).to(torch.float32) * 2.0**-24  # type: ignore[union-attr]


def random_normal(
    seed: "int | Tensor", counter: "int | Tensor", index: Tensor, *, draws: int, stream: int = METHOD
) -> Tensor:
    """Standard normal numbers, float32 (B, draws), by Box and Muller: √(-2 ln(1-u)) cos(2πv).

    The bits behind them agree across devices; logarithm and cosine may differ in the last place.

    >>> noise = random_normal(7, 0, torch.arange(1000), draws=11)
    >>> abs(float(noise.mean())) < 0.05, abs(float(noise.std()) - 1) < 0.05
    (True, True)
    """
    uniform = random_uniform(seed, counter, index, draws=2 * draws, stream=stream)
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform[..., :draws]))
    return radius * torch.cos((2.0 * math.pi) * uniform[..., draws:])


def random_order(
    seed: int, counter: int, n: int, *, stream: int = ORDER, device: "torch.device | str | None" = None
) -> Tensor:
    """A permutation of 0 … n-1, int64 (n,): the rows sorted by their random bits.

    >>> sorted(random_order(7, 0, 5).tolist())
    [0, 1, 2, 3, 4]
    """
    return random_bits(seed, counter, torch.arange(n, device=device), stream=stream).argsort(stable=True)
