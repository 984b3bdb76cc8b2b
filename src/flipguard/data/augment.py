"""From stored inputs to network inputs, on the device: crop, flip, normalise."""

import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flipguard.data.randomness import AUGMENT, random_bits
from flipguard.types import InputError, Normalisation

# As published with the data sets' training images: the mean and standard deviation of pixels in [0, 1].
CIFAR10_NORMALISATION = Normalisation((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_NORMALISATION = Normalisation((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
IMAGENET_NORMALISATION = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _shifted(start: Tensor, n: int, padding: int, mode: str) -> tuple[Tensor, Tensor]:
    """Source positions (B, n) of a window that starts at `start` (B,) in a padded axis, and which of them are real."""
    position = torch.arange(n, device=start.device) + (start - padding)[:, None]
    inside = (position >= 0) & (position < n)
    if mode == "reflect":
        position = position.abs()
        position = (n - 1) - ((n - 1) - position).abs()
    return position.clamp(0, n - 1), inside


@dataclass(frozen=True)
class Augmentation:
    """A random crop out of the padded image and a random mirror image, keyed by (seed, epoch, index).

    Pads `crop_padding` pixels on each side (black, or reflected), cuts a window of the original size at one of
    (2·crop_padding + 1)² places, and mirrors half of the images when `flip` is set. Each image's choice depends on its
    own index alone, so the order of the batch, its size, and the device do not matter.
    """

    crop_padding: int = 4
    flip: bool = True
    padding_mode: Literal["zero", "reflect"] = "zero"

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise InputError(f"crop_padding must be 0 or more, not {self.crop_padding}.")
        if self.padding_mode not in ("zero", "reflect"):
            raise InputError(f"padding_mode must be 'zero' or 'reflect', not {self.padding_mode!r}.")

    def choices(self, seed: "int | Tensor", epoch: "int | Tensor", index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Top and left in 0 … 2·crop_padding, int64 (B,), and which to mirror, bool (B,).

        >>> top, left, mirror = Augmentation(crop_padding=2).choices(7, 0, torch.arange(1000))
        >>> top.unique().tolist(), left.unique().tolist()
        ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
        """
        bits = random_bits(seed, epoch, index, stream=AUGMENT)
        places, mask = 2 * self.crop_padding + 1, 2**24 - 1
        # Three independent stretches of one 64-bit hash: 24 bits, 24 bits, and the lowest.
        top, left = ((((bits >> by) & mask) * places) >> 24 for by in (40, 16))
        mirror = (bits & 1).bool() if self.flip else torch.zeros_like(bits, dtype=torch.bool)
        return top, left, mirror

    def __call__(self, x: Tensor, *, seed: "int | Tensor", epoch: "int | Tensor", index: Tensor) -> Tensor:
        """Images (B, C, H, W) of any type, of which row b is sample index[b]; returns the same shape and type.

        >>> x = torch.arange(9, dtype=torch.uint8).reshape(1, 1, 3, 3)
        >>> bool((Augmentation(crop_padding=0, flip=False)(x, seed=7, epoch=0, index=torch.tensor([5])) == x).all())
        True
        """
        height, width = x.shape[-2:]
        if self.padding_mode == "reflect" and self.crop_padding >= min(height, width):
            raise InputError(f"cannot reflect {self.crop_padding} pixels of a {height} × {width} image.")
        top, left, mirror = self.choices(seed, epoch, index)
        rows, row_inside = _shifted(top, height, self.crop_padding, self.padding_mode)
        columns, column_inside = _shifted(left, width, self.crop_padding, self.padding_mode)
        columns = torch.where(mirror[:, None], columns.flip(1), columns)
        column_inside = torch.where(mirror[:, None], column_inside.flip(1), column_inside)
        batch = torch.arange(len(x), device=x.device)[:, None, None, None]
        channel = torch.arange(x.shape[1], device=x.device)[None, :, None, None]
        window = x[batch, channel, rows[:, None, :, None], columns[:, None, None, :]]
        if self.padding_mode == "reflect" or self.crop_padding == 0:
            return window
        return window * (row_inside[:, None, :, None] & column_inside[:, None, None, :]).to(x.dtype)


@functools.lru_cache(maxsize=64)
def _constants(normalisation: Normalisation, unit: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scale and shift (C,) with (x / unit - mean) / std = x·scale + shift, kept so that no step copies them anew."""
    # Made outside inference mode even when first asked for inside it: such tensors could not be differentiated later.
    with torch.inference_mode(False):
        mean = torch.tensor(normalisation.mean, dtype=torch.float64)
        std = torch.tensor(normalisation.std, dtype=torch.float64)
        return (1 / (unit * std)).float().to(device), (-mean / std).float().to(device)


def normalise(
    x: Tensor,
    normalisation: Normalisation | None,
    *,
    dtype: torch.dtype = torch.float32,
    channels_last: bool = False,
) -> Tensor:
    """(x - mean) / std per channel, axis 1, with uint8 pixels first scaled to [0, 1].

    Computed in float32 and then cast to `dtype`.

    >>> pixels = torch.tensor([[0, 255]], dtype=torch.uint8)
    >>> normalise(pixels, Normalisation((0.5, 0.5), (0.5, 0.25))).tolist()
    [[-1.0, 2.0]]
    """
    unit = 255.0 if x.dtype == torch.uint8 else 1.0
    x = x.float()
    if normalisation is not None:
        if len(normalisation.mean) != x.shape[1]:
            raise InputError(f"the normalisation has {len(normalisation.mean)} channels and the input {x.shape[1]}.")
        scale, shift = (c.reshape(-1, *[1] * (x.dim() - 2)) for c in _constants(normalisation, unit, x.device))
        x = x * scale + shift
    elif unit != 1.0:
        x = x / unit
    x = x.to(dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last and x.dim() == 4 else x


def measure_normalisation(x: Tensor) -> Normalisation:
    """Mean and standard deviation per channel of training inputs (N, C, …); uint8 pixels count as x / 255.

    A constant channel gets a standard deviation of 1, so that it becomes 0 rather than nan. NumPy adds up in one order,
    however many threads there are: a run may go on where there are more.

    >>> measure_normalisation(torch.tensor([[0.0, 3.0], [2.0, 3.0]]))
    Normalisation(mean=(1.0, 3.0), std=(1.0, 1.0))
    """
    unit = 255.0 if x.dtype == torch.uint8 else 1.0
    mean, std = [], []
    for channel in range(x.shape[1]):
        values = x[:, channel].double().cpu().contiguous().numpy() / unit
        mean.append(float(values.mean()))
        spread = float(values.std())
        std.append(spread if spread > 1e-12 else 1.0)
    return Normalisation(tuple(mean), tuple(std))
