"""Mosaics: image sets stored as a few large lossless pictures, and the packed texts that come with them."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flipguard.data.augment import CIFAR100_NORMALISATION
from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.data.files import open_image
from flipguard.data.npz import Arrays, archive_data, column, labels, read_npz, unpack_texts
from flipguard.types import InputError

SETS = ("cifar100", "svhn", "ag_news", "clinc150")
_TILE, _COLUMNS = 32, 100


def load_mosaic(root: Path, *, set: str) -> DataSet:
    """One of `SETS` from a folder of mosaics.

    cifar100 has all 60,000 original images, in an order of its own. svhn has a part of the test digits, re-cropped, and
    no training samples: it serves as out-of-distribution data. ag_news has a part of the training rows. clinc150 has
    out-of-scope parts in `extra`. Ids start with mosaic_, since row numbers differ from those of the official files.
    """
    key = set.replace("-", "_")
    if key not in SETS:
        raise InputError(f"unknown mosaic set {set!r}; known: {', '.join(SETS)}.")
    return {"cifar100": _cifar100, "svhn": _svhn, "ag_news": _ag_news, "clinc150": _clinc150}[key](root)


def read_mosaic(path: Path) -> Tensor:
    """The tiles of one mosaic, row by row, uint8 (N, 3, 32, 32)."""
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    picture = np.asarray(open_image(path))
    height, width, _ = picture.shape
    if width != _COLUMNS * _TILE or height % _TILE:
        raise InputError(f"{path} is {width} × {height}; a mosaic is {_COLUMNS * _TILE} wide and whole tiles high.")
    tiles = picture.reshape(height // _TILE, _TILE, _COLUMNS, _TILE, 3).transpose(0, 2, 4, 1, 3)
    return torch.from_numpy(np.array(tiles, order="C").reshape(-1, 3, _TILE, _TILE))


def _images(folder: Path, part: str, n: int) -> Tensor:
    pictures = sorted(folder.glob(f"{part}_*.webp"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if not pictures:
        raise InputError(f"{folder} has no {part}_0.webp.")
    x = torch.cat([read_mosaic(path) for path in pictures])
    if not n <= len(x) < n + _COLUMNS:
        raise InputError(f"{folder}: the {part} mosaics hold {len(x):,} tiles, and labels.npz {n:,} labels.")
    return x[:n]


def _image_split(folder: Path, arrays: Arrays, part: str) -> Split:
    path = folder / "labels.npz"
    y = labels(column(arrays, f"y_{part}", path), path, f"y_{part}")
    slices = {}
    if f"y_coarse_{part}" in arrays:
        slices["superclass"] = column(arrays, "coarse_classes", path)[arrays[f"y_coarse_{part}"]]
    return Split(_images(folder, part, len(y)), y, numbered_ids(f"mosaic_{part}", len(y)), slices)


def _classes(arrays: Arrays, path: Path) -> tuple[str, ...]:
    return tuple(str(name) for name in column(arrays, "classes", path).tolist())


def _cifar100(root: Path) -> DataSet:
    folder = root / "cifar100"
    arrays = read_npz(folder / "labels.npz")
    train, test = (_image_split(folder, arrays, part) for part in ("train", "test"))
    return DataSet("cifar100", train, test, _classes(arrays, folder / "labels.npz"), "image", CIFAR100_NORMALISATION)


def _svhn(root: Path) -> DataSet:
    folder = root / "svhn"
    arrays = read_npz(folder / "labels.npz")
    test = _image_split(folder, arrays, "test")
    classes = _classes(arrays, folder / "labels.npz")
    return DataSet("svhn-recropped", test.select([]), test, classes, "image")


def _ag_news(root: Path) -> DataSet:
    path = root / "ag_news.npz"
    return archive_data(read_npz(path), path, name="ag-news-part", prefix="mosaic_")


def _clinc150(root: Path) -> DataSet:
    path = root / "clinc150.npz"
    arrays = read_npz(path)
    data = archive_data(arrays, path, name="clinc150", prefix="mosaic_")
    extra = {}
    for part in ("oos_train", "oos_val", "oos_test"):
        texts = unpack_texts(column(arrays, f"text_{part}", path), column(arrays, f"offsets_{part}", path), path)
        unlabelled = torch.full((len(texts),), -1)
        extra[part] = Split(texts, unlabelled, numbered_ids(f"mosaic_{part}", len(texts)))
    return DataSet(**{**vars(data), "extra": extra})
