"""WebDataset shards: tar files in which `KEY.jpg` and `KEY.cls` lie side by side, as large image sets are kept.

A shard is indexed once by its headers, and an image is then read from its place in the file. So a sample has an id (its
key), every epoch visits the whole set in an order that depends on the seed alone, and a run that was cut off goes on in
the middle of an epoch: none of that is to be had from shards that are streamed and shuffled in a buffer. What it asks
for is a disk that can be read at any place, and shards that are not compressed.
"""

import io
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flipguard.data.augment import IMAGENET_NORMALISATION
from flipguard.data.dataset import DataSet, Split
from flipguard.data.files import MAX_PIXELS, ImageFiles, open_image
from flipguard.data.tar import plain_files
from flipguard.types import InputError

IMAGES = frozenset({"jpg", "jpeg", "png", "webp", "bmp", "ppm"})
LABEL = "cls"
OWN, CLASSES = "shards.json", "classes.txt"
"""What `flipguard shards` writes beside its shards: that they are its own, and the classes' names."""
HELD = {"test": "test-*.tar", "validation": "validation-*.tar"}
MAX_LABEL_BYTES = 64
MAX_CLASSES = 1_000_000
"""More are refused: a few digits would otherwise make a list of names that no memory holds."""


@dataclass(frozen=True)
class ShardImages(ImageFiles):
    """Images inside of tar files: `names` are their keys, `spans` (N, 3) the shard, the first byte and the length."""

    shards: tuple[Path, ...] = ()
    spans: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64), compare=False)

    def select(self, rows: Sequence[int]) -> "ShardImages":
        return replace(self, names=tuple(self.names[row] for row in rows), spans=self.spans[np.asarray(rows, np.int64)])

    def open(self, row: int) -> Any:
        return open_image(io.BytesIO(self.content(row)), name=self.place(row), max_pixels=self.max_pixels)

    def place(self, row: int) -> str:
        return f"{self.shards[int(self.spans[row, 0])]}: {self.names[row]}"

    def content(self, row: int) -> bytes:
        shard, start, length = (int(value) for value in self.spans[row])
        with _opened(self.shards[shard]) as file:
            return os.pread(file, length, start)


def load_webdataset(
    root: Path,
    *,
    train: str = "*train*.tar",
    test: str = "*val*.tar",
    validation: str | None = None,
    classes: str | None = None,
    size: int = 224,
    resize: int | None = None,
    workers: int = 0,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> DataSet:
    """Shards by a pattern for each part, relative to the folder. Each sample is an image and a `.cls` with its class.

    `classes` is a text file with a line for each class, in the order of the codes; without it the codes themselves are
    the names. Sizes and `workers` are as those of image folders. Shards that `flipguard shards` packed say themselves
    what their classes and parts are.
    """
    if (root / OWN).is_file():
        _check_whole(root)
        classes = classes or CLASSES
        if validation is None and any(root.glob(HELD["validation"])):
            test, validation = HELD["test"], HELD["validation"]
    shape = ShardImages(root, (), size, resize or round(size * 256 / 224), max_pixels=max_pixels, workers=workers)
    patterns = {"train": train, "test": test} | ({"validation": validation} if validation else {})
    parts = {part: _part(root, pattern, part, shape) for part, pattern in patterns.items()}
    highest = max(int(split.y.max()) for split in parts.values())
    names = tuple(map(str, range(highest + 1))) if classes is None else _class_names(root / classes, highest)
    return DataSet(
        name or root.resolve().name,
        parts["train"],
        parts["test"],
        names,
        "image",
        IMAGENET_NORMALISATION,
        validation=parts.get("validation"),
    )


def _check_whole(root: Path) -> None:
    """Refuses a folder in which `flipguard shards` was stopped or found damaged images: a part of the samples."""
    try:
        expected = json.loads((root / OWN).read_text(encoding="utf-8"))["shards"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return
    there = sum(1 for _ in root.glob("*.tar"))
    if isinstance(expected, int) and there < expected:
        raise InputError(
            f"{root} has {there:,} of its {expected:,} shards: the same flipguard shards command writes the others."
        )


def _part(root: Path, pattern: str, part: str, shape: ShardImages) -> Split:
    shards = tuple(sorted(path for path in root.glob(pattern) if path.is_file()))
    if not shards:
        raise InputError(f"{root} has no shards for {part}: nothing there is called {pattern}. Set {part}.")
    with ThreadPoolExecutor() as several:
        found = list(several.map(_indexed, shards))
    names = tuple(key for keys, _, _ in found for key in keys)
    spans = np.concatenate(
        [np.column_stack([np.full(len(keys), shard), places]) for shard, (keys, places, _) in enumerate(found)]
    )
    codes = np.concatenate([labels for _, _, labels in found])
    images = replace(shape, names=names, shards=shards, spans=spans.astype(np.int64))
    return Split(images, torch.from_numpy(codes), np.array(names, dtype=str))


def _indexed(shard: Path) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """A shard's keys, where each one's image lies, (n, 2), and its class."""
    images: dict[str, tuple[int, int]] = {}
    labels: dict[str, tuple[int, int]] = {}
    for key, extension, start, length in _members(shard):
        where = images if extension in IMAGES else labels if extension == LABEL else None
        if where is None:
            continue
        if key in where:
            raise InputError(f"{shard} has two files of the kind .{extension} for the key {key}.")
        where[key] = (start, length)
    for some, others, lack in ((images, labels, "no .cls"), (labels, images, "no image")):
        lonely = next((key for key in some if key not in others), None)
        if lonely is not None:
            raise InputError(f"{shard} has {lack} for the key {lonely}.")
    if not images:
        raise InputError(f"{shard} has no samples: files KEY.jpg and KEY.cls were expected.")
    with _opened(shard) as file:
        codes = [_code(shard, key, file, *labels[key]) for key in images]
    return list(images), np.array(list(images.values()), np.int64), np.array(codes, np.int64)


def _members(shard: Path) -> Iterator[tuple[str, str, int, int]]:
    """Of every file its key, which ends at the first dot of its name, what comes after it, its place and length."""
    for path, start, length in plain_files(shard):
        folder, _, name = path.removeprefix("./").rpartition("/")
        key, dot, extension = name.partition(".")
        if key and dot:
            yield f"{folder}/{key}" if folder else key, extension.lower(), start, length


def _code(shard: Path, key: str, file: int, start: int, length: int) -> int:
    content = os.pread(file, length, start) if length <= MAX_LABEL_BYTES else b""
    text = content.decode("ascii", errors="replace").strip()
    if not text.isdigit():
        raise InputError(f"{shard}: {key}.{LABEL} must hold the number of a class, it holds {text[:20]!r}.")
    if int(text) >= MAX_CLASSES:
        raise InputError(f"{shard}: {key}.{LABEL} holds the class {text}; classes from {MAX_CLASSES:,} on are refused.")
    return int(text)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file to read from at any place; several processes and threads may do so at once."""
    try:
        file = os.open(path, os.O_RDONLY)
        try:
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error


def _class_names(path: Path, highest: int) -> tuple[str, ...]:
    try:
        names = tuple(line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error
    if highest >= len(names):
        raise InputError(f"{path} names {len(names)} classes, and the shards have the class {highest}.")
    return names
