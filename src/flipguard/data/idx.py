"""IDX files (LeCun et al. 1998), gzipped or not: MNIST, Fashion-MNIST, KMNIST and others of that form."""

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flipguard.data.augment import measure_normalisation
from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.types import InputError

MAX_BYTES = 2**32
_UNSIGNED_BYTE = 8
_PARTS = {"train": "train", "test": "t10k"}


def read_idx(path: Path, *, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of bytes in an IDX file, which must have the given number of dimensions."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _parse(file, path, dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error


def _parse(file: Any, path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    magic = file.read(4)
    expected = bytes([0, 0, _UNSIGNED_BYTE, dimensions])
    if magic != expected:
        raise InputError(
            f"{path} starts with {magic.hex() or 'nothing'}; an IDX file of this kind with {expected.hex()}."
        )
    header = file.read(4 * dimensions)
    if len(header) < 4 * dimensions:
        raise InputError(f"{path} is truncated: it ends inside its header.")
    shape = struct.unpack(f">{dimensions}I", header)
    size = math.prod(shape)
    # No images of a gigantic size are an array that NumPy cannot make either.
    if math.prod(max(side, 1) for side in shape) > MAX_BYTES:
        sides = " × ".join(f"{side:,}" for side in shape)
        raise InputError(f"{path} claims {sides} bytes; over {MAX_BYTES:,} are refused.")
    data = file.read(size + 1)
    if len(data) != size:
        what = "has more than" if len(data) > size else f"is truncated: it has {len(data):,} of"
        raise InputError(f"{path} {what} the {size:,} bytes that its header announces.")
    return np.frombuffer(bytearray(data), np.uint8).reshape(shape)


def _find(root: Path, stem: str, kind: str) -> Path:
    names = [f"{stem}{dot}{kind}{end}" for dot in ("-", ".") for end in ("", ".gz")]
    for folder in (root, root / "raw", root / "MNIST" / "raw"):
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise InputError(f"{root} has no {names[0]} (or {names[1]}).")


def load_idx(root: Path, *, classes: Sequence[str] | None = None, name: str = "mnist") -> DataSet:
    """train-images-idx3-ubyte, train-labels-idx1-ubyte and the t10k- pair; `classes` names the labels 0, 1, …"""
    splits = {}
    for part, stem in _PARTS.items():
        images_path = _find(root, f"{stem}-images", "idx3-ubyte")
        images = read_idx(images_path, dimensions=3)
        y = read_idx(_find(root, f"{stem}-labels", "idx1-ubyte"), dimensions=1)
        if len(images) != len(y):
            raise InputError(f"{images_path} has {len(images):,} images, and its labels file {len(y):,} labels.")
        codes = torch.from_numpy(y.astype(np.int64))
        splits[part] = Split(torch.from_numpy(images)[:, None], codes, numbered_ids(part, len(y)))
    if not len(splits["train"]):
        raise InputError(f"{root} has no training images.")
    count = 1 + max(int(split.y.max()) for split in splits.values() if len(split))
    names = tuple(classes) if classes is not None else tuple(str(code) for code in range(count))
    return DataSet(name, splits["train"], splits["test"], names, "image", measure_normalisation(splits["train"].x))
