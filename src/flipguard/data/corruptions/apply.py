"""The fifteen kinds by name, and what applies them to a split or a data set."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flipguard.data.corruptions import blurs, distortions, noises, weather
from flipguard.data.corruptions.draws import Draws, Images
from flipguard.data.dataset import DataSet, Split
from flipguard.types import InputError

Corruption = Callable[[Images, int, Draws], Images]

CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": noises.gaussian_noise,
    "shot_noise": noises.shot_noise,
    "impulse_noise": noises.impulse_noise,
    "defocus_blur": blurs.defocus_blur,
    "glass_blur": blurs.glass_blur,
    "motion_blur": blurs.motion_blur,
    "zoom_blur": blurs.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": distortions.contrast,
    "elastic_transform": distortions.elastic_transform,
    "pixelate": distortions.pixelate,
    "jpeg_compression": distortions.jpeg_compression,
}
"""The fifteen kinds by name. Each takes images (B, H, W, channels) in [0, 1], a severity from 1 to 5, and draws."""

SMALLEST = 16
"""On a smaller side the mildest zoom and pixelation change nothing."""

_BLOCK = 512


@overload
def corrupted(data: Split, kind: str, severity: int, *, seed: int = 0) -> Split: ...
@overload
def corrupted(data: DataSet, kind: str, severity: int, *, seed: int = 0) -> DataSet: ...
def corrupted(data: Split | DataSet, kind: str, severity: int, *, seed: int = 0) -> Split | DataSet:
    """A split, or a data set's test part, with every image corrupted; training samples stay as they are.

    Ids and labels stay; the slice columns `corruption` and `severity` say what was done. Images are uint8
    (N, channels, H, W), one or three channels, at least 16 by 16; the severities are meant for 32 by 32.
    """
    if kind not in CORRUPTIONS:
        raise InputError(f"there is no corruption '{kind}'. Corruptions: {', '.join(CORRUPTIONS)}.")
    if severity not in range(1, 6):
        raise InputError(f"the severity of a corruption runs from 1 to 5, not {severity}.")
    if isinstance(data, DataSet):
        return replace(data, test=corrupted(data.test, kind, severity, seed=seed))
    images = _images(data.x)
    index = torch.from_numpy(_row_keys(data.ids))
    parts = [
        _corrupt(images[rows], kind, severity, seed, index[rows])
        for rows in (slice(start, start + _BLOCK) for start in range(0, len(images), _BLOCK))
    ]
    done = torch.cat(parts).to(data.y.device) if parts else images
    columns = {"corruption": np.full(len(data), kind), "severity": np.full(len(data), severity)}
    return replace(data, x=done, slices={**data.slices, **columns})


def _images(x: Any) -> Tensor:
    fits = isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 4 and x.shape[1] in (1, 3)
    if not fits or min(x.shape[2:]) < SMALLEST:
        came = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(
            f"corruptions need images in memory, uint8 (N, 1 or 3, H, W) of at least {SMALLEST} by {SMALLEST}, got "
            f"{came}; in_memory loads image files."
        )
    return x.cpu()


def _row_keys(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """A number for each sample that depends on its id alone."""
    digests = b"".join(hashlib.blake2b(str(i).encode(), digest_size=8).digest() for i in ids.tolist())
    return np.frombuffer(digests, "<i8").astype(np.int64)


def _corrupt(x: Tensor, kind: str, severity: int, seed: int, index: Tensor) -> Tensor:
    draws = Draws(seed, list(CORRUPTIONS).index(kind), index)
    pixels = x.permute(0, 2, 3, 1).numpy().astype(np.float32) / np.float32(255)
    done = CORRUPTIONS[kind](pixels, severity, draws)
    values = np.rint(np.clip(done, 0, 1) * 255).astype(np.uint8)
    return torch.from_numpy(np.ascontiguousarray(values.transpose(0, 3, 1, 2)))
