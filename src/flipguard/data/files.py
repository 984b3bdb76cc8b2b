"""Image files that are decoded when they are needed, by worker processes, for data that does not fit into memory."""

import importlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from flipguard.data.randomness import CROP, random_uniform
from flipguard.types import InputError, MissingExtra

MAX_PIXELS = 80_000_000
"""Larger images are refused before they are decoded: a few kilobytes can unpack to gigabytes."""

Box = tuple[float, float, float, float]


def pillow() -> Any:
    """`PIL.Image`, or an error that names the extra."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtra("reading image files needs Pillow: pip install 'flipguard[images]'") from error


def open_image(source: "Path | BinaryIO", *, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Any:
    """A decoded RGB Pillow image. Unreadable, truncated and oversized files are an error that names the file."""
    image_module, path = pillow(), name or source
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes near its own limit; here they are refused.
            warnings.simplefilter("ignore", image_module.DecompressionBombWarning)
            image = image_module.open(source)
        with image:
            width, height = image.size
            if width * height > max_pixels:
                raise InputError(
                    f"{path} has {width} × {height} pixels; images over {max_pixels:,} pixels are refused."
                )
            if image.mode != "RGB":
                return image.convert("RGB")
            # What is RGB already is not copied: a seventh of the time that a photograph takes.
            image.load()
            return image
    except InputError:
        raise
    except image_module.UnidentifiedImageError as error:
        # Its own text shows the path again or, of bytes, where they lie in memory.
        raise InputError(f"{path} cannot be read as an image (of no known format).") from error
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more on damaged files.
        raise InputError(f"{path} cannot be read as an image ({' '.join(str(error).split())}).") from error


def random_box(width: int, height: int, uniform: Sequence[float], *, scale: tuple[float, float]) -> Box:
    """A random part of an image as (left, top, right, bottom), its area in `scale` and its aspect between 3/4 and 4/3.

    As in Szegedy et al. 2015, but clipped to the image instead of drawn again, so that four numbers in [0, 1) always
    suffice.

    >>> random_box(100, 50, (0.999999, 0.5, 0.0, 0.0), scale=(1.0, 1.0))
    (0.0, 0.0, 70.71067811865476, 50.0)
    """
    area = width * height * (scale[0] + (scale[1] - scale[0]) * uniform[0])
    aspect = (3 / 4) * (16 / 9) ** uniform[1]
    w, h = min(width, (area * aspect) ** 0.5), min(height, (area / aspect) ** 0.5)
    left, top = (width - w) * uniform[2], (height - h) * uniform[3]
    return left, top, left + w, top + h


@dataclass(frozen=True)
class ImageFiles:
    """N image files under a folder, decoded on demand to uint8 (3, size, size).

    Without randomness: the shorter side is scaled to `resize`, then the centre is cut. With a seed: a random part whose
    area lies in `scale`, keyed by (seed, epoch, index) and so the same in any worker.
    """

    folder: Path
    names: tuple[str, ...]
    size: int
    resize: int
    scale: tuple[float, float] = (0.08, 1.0)
    max_pixels: int = MAX_PIXELS
    workers: int = 0
    """Processes that decode ahead of training and predicting, unless a caller asks for another number."""

    def __post_init__(self) -> None:
        if not 1 <= self.size <= self.resize:
            raise InputError(f"an image size must be at least 1 and at most resize, not {self.size} of {self.resize}.")

    def __len__(self) -> int:
        return len(self.names)

    def select(self, rows: Sequence[int]) -> "ImageFiles":
        return replace(self, names=tuple(self.names[row] for row in rows))

    def open(self, row: int) -> Any:
        """One image as it is stored, a decoded Pillow image."""
        return open_image(self.folder / self.names[row], max_pixels=self.max_pixels)

    def place(self, row: int) -> str:
        """Where an image lies, for messages."""
        return str(self.folder / self.names[row])

    def content(self, row: int) -> bytes:
        """A file's bytes."""
        try:
            return (self.folder / self.names[row]).read_bytes()
        except OSError as error:
            raise InputError(f"{self.place(row)} cannot be read: {error.strerror or error}.") from error

    def decode(self, row: int) -> npt.NDArray[np.uint8]:
        """One image as models are judged on it, uint8 (3, size, size): by Pillow, and so the same on any machine."""
        image = self.open(row)
        width, height = image.size
        side = min(width, height) * self.size / self.resize
        left, top = (width - side) / 2, (height - side) / 2
        box: Box = (left, top, left + side, top + side)
        if (width, height) != (self.size, self.size) or box != (0.0, 0.0, width, height):
            image = image.resize((self.size, self.size), resample=pillow().Resampling.BILINEAR, box=box)
        return np.asarray(image, np.uint8).transpose(2, 0, 1).copy()

    def random_part(self, row: int, uniform: Sequence[float]) -> Tensor:
        """One image to train on, uint8 (3, size, size): the part that four numbers in [0, 1) place, in whole pixels.

        Scaled by torch, which takes a third of Pillow's time for it and now and then differs by a shade.
        """
        image = self.open(row)
        width, height = image.size
        left, top, right, bottom = random_box(width, height, uniform, scale=self.scale)
        (left, right), (top, bottom) = _whole(left, right, width), _whole(top, bottom, height)
        pixels = torch.from_numpy(np.array(image.crop((left, top, right, bottom)))).permute(2, 0, 1)
        scaled: Tensor = functional.interpolate(
            pixels[None], (self.size, self.size), mode="bilinear", antialias=True, align_corners=False
        )
        return scaled[0]

    def batch(self, rows: Sequence[int], *, seed: int | None = None, epoch: int = 0) -> Tensor:
        """Several images, uint8 (B, 3, size, size); random parts of them when a seed is given."""
        images = _room((len(rows), 3, self.size, self.size))
        if seed is None:
            for place, row in enumerate(rows):
                images[place] = torch.from_numpy(self.decode(row))
            return images
        uniform = random_uniform(seed, epoch, torch.as_tensor(rows), draws=4, stream=CROP).tolist()
        for place, row in enumerate(rows):
            images[place] = self.random_part(row, uniform[place])
        return images

    def stream(
        self, batches: Sequence[Sequence[int]], *, seed: int | None = None, epoch: int = 0, workers: int | None = None
    ) -> Iterator[Tensor]:
        """The images of each batch of rows in turn, decoded by worker processes ahead of time."""
        workers = self.workers if workers is None else workers
        loader = torch.utils.data.DataLoader(
            _Decoder(self, batches, seed, epoch),
            batch_size=None,
            shuffle=False,
            num_workers=workers,
            # Without its own generator a loader draws from the global one, and so would disturb other streams.
            generator=torch.Generator(),
            pin_memory=workers > 0 and torch.cuda.is_available(),
        )
        for images in loader:
            if isinstance(images, str):
                raise InputError(images)
            yield images


def _whole(low: float, high: float, size: int) -> tuple[int, int]:
    """The nearest whole pixels, at least one of them.

    >>> _whole(2.6, 7.4, 9), _whole(8.7, 9.0000001, 9)
    ((3, 7), (8, 9))
    """
    first = min(round(low), size - 1)
    return first, min(size, max(first + 1, round(high)))


def _room(shape: tuple[int, ...]) -> Tensor:
    """An empty batch; in a worker it lies where the other process finds it, and is not copied on its way."""
    if torch.utils.data.get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(math.prod(shape))).view(shape)


@dataclass(frozen=True)
class _Decoder:
    """What a worker process runs. An unreadable file comes back as its message: an exception that crosses processes
    would arrive wrapped in a traceback instead of one line."""

    files: ImageFiles
    batches: Sequence[Sequence[int]]
    seed: int | None
    epoch: int

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, step: int) -> "Tensor | str":
        try:
            return self.files.batch(self.batches[step], seed=self.seed, epoch=self.epoch)
        except InputError as error:
            return str(error)
