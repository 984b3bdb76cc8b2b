"""Image folders: one folder per class, as ImageNet and iNaturalist come, and Tiny-ImageNet's own layout."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.data.augment import IMAGENET_NORMALISATION, measure_normalisation
from flipguard.data.dataset import DataSet, Split
from flipguard.data.files import MAX_PIXELS, ImageFiles
from flipguard.types import InputError

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


def in_memory(data: DataSet, *, workers: int = 0, batch_size: int = 256) -> DataSet:
    """A data set of image files with every image decoded into one uint8 tensor per part, (N, 3, size, size).

    The normalisation is measured anew on the training images.
    """

    def decode(split: Split) -> Split:
        if not isinstance(split.x, ImageFiles):
            return split
        batches = [list(range(i, min(i + batch_size, len(split)))) for i in range(0, len(split), batch_size)]
        images = torch.empty(len(split), 3, split.x.size, split.x.size, dtype=torch.uint8)
        for rows, decoded in zip(batches, split.x.stream(batches, workers=workers), strict=True):
            images[rows] = decoded
        return replace(split, x=images)

    decoded = data.map(decode)
    if not isinstance(data.train.x, ImageFiles) or not len(data.train):
        return decoded
    return replace(decoded, normalisation=measure_normalisation(decoded.train.x))


def load_image_folder(
    root: Path,
    *,
    size: int = 224,
    resize: int | None = None,
    memory: bool = False,
    workers: int = 0,
    allow_missing_classes: bool = False,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> DataSet:
    """train/CLASS/… and test/CLASS/… (or val/CLASS/…, which is the validation part when there is a test folder too).

    Images stay on disk and are decoded to size × size while training, by `workers` processes ahead of it; `memory`
    decodes them all at once. `resize` is
    the length of the shorter side before the centre is cut, by default 256/224 of `size`. Ids are relative paths. Every
    class must have training images, and test images unless `allow_missing_classes` is set.
    """
    train = root / "train"
    others = [root / part for part in ("test", "val", "validation") if (root / part).is_dir()]
    if not train.is_dir() or not others:
        raise InputError(f"{root} needs a folder train and a folder test or val, each with one folder per class.")
    classes = tuple(sorted(path.name for path in train.iterdir() if path.is_dir() and not path.name.startswith(".")))
    if not classes:
        raise InputError(f"{train} has no class folders.")
    shape = ImageFiles(root, (), size, resize or round(size * 256 / 224), max_pixels=max_pixels, workers=workers)
    splits = [_class_folders(train, classes, shape, complete=True)]
    splits += [_class_folders(place, classes, shape, complete=not allow_missing_classes) for place in others[:2]]
    data = DataSet(
        name or root.resolve().name,
        splits[0],
        splits[1],
        classes,
        "image",
        IMAGENET_NORMALISATION,
        validation=splits[2] if len(splits) > 2 else None,
    )
    return in_memory(data, workers=workers) if memory else data


def from_timm(
    train: Any, test: Any, *, size: int = 224, resize: int | None = None, workers: int = 0, name: str | None = None
) -> DataSet:
    """Two data sets of timm's over folders (`timm.data.create_dataset("", root=…)`) as one of ours.

    Files, classes and their order are timm's; ids are paths. Images are read, cut and put in order as those of
    `load_image_folder`: a transform that timm's data set has is not used. Options are as there.
    """
    readers: list[Any] = [getattr(each, "reader", None) for each in (train, test)]
    if not all(hasattr(reader, "samples") and hasattr(reader, "class_to_idx") for reader in readers):
        raise InputError("of timm's data sets those over folders of images can be used; for tar files: webdataset.")
    classes = tuple(sorted(readers[0].class_to_idx, key=readers[0].class_to_idx.__getitem__))
    if readers[1].class_to_idx != readers[0].class_to_idx:
        raise InputError("the two data sets of timm's have different classes: give both the same class_map.")
    # Not resolved: links within a folder may lead out of it.
    root = Path(os.path.commonpath([str(Path(reader.root).absolute()) for reader in readers]))
    shape = ImageFiles(root, (), size, resize or round(size * 256 / 224), workers=workers)

    def split(reader: Any) -> Split:
        names = [Path(path).absolute().relative_to(root).as_posix() for path, _ in reader.samples]
        return _file_split(names, [code for _, code in reader.samples], shape)

    parts = [split(reader) for reader in readers]
    return DataSet(name or root.name or "timm", parts[0], parts[1], classes, "image", IMAGENET_NORMALISATION)


def _image_names(folder: Path, root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")
    )


def _file_split(names: list[str], codes: Iterable[int], shape: ImageFiles) -> Split:
    y = torch.tensor(list(codes), dtype=torch.int64)
    return Split(replace(shape, names=tuple(names)), y, np.array(names, dtype=str))


def _class_folders(folder: Path, classes: tuple[str, ...], shape: ImageFiles, *, complete: bool) -> Split:
    found = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    unknown = sorted(found - set(classes))
    if unknown:
        raise InputError(f"{folder / unknown[0]} is not one of the {len(classes)} training classes.")
    names, codes = [], []
    for code, name in enumerate(classes):
        images = _image_names(folder / name, shape.folder) if name in found else []
        if not images and complete:
            raise InputError(f"{folder} has no images of class {name!r}.")
        names += images
        codes += [code] * len(images)
    if not names:
        raise InputError(f"{folder} has no images.")
    return _file_split(names, codes, shape)


def load_tiny_imagenet(root: Path, *, memory: bool = True, workers: int = 0, words: bool = False) -> DataSet:
    """Tiny-ImageNet-200: 64 × 64 images; its labelled validation images are the test part.

    The classes are WordNet ids, or with `words` the names that words.txt gives them. Decoded into memory (1.4 GB)
    unless `memory` is False.
    """
    folder = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
    wnids = tuple(_read_lines(folder / "wnids.txt"))
    shape = ImageFiles(folder, (), 64, 64, scale=(0.25, 1.0), workers=workers)
    train = _class_folders(folder / "train", wnids, shape, complete=True) if (folder / "train").is_dir() else None
    if train is None:
        raise InputError(f"{folder} has no folder train.")
    classes = _words(folder / "words.txt", wnids) if words else wnids
    test = _annotated(folder / "val", wnids, shape)
    data = DataSet("tiny-imagenet", train, test, classes, "image", IMAGENET_NORMALISATION)
    return in_memory(data, workers=workers) if memory else data


def _read_lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error}).") from error


def _words(path: Path, wnids: tuple[str, ...]) -> tuple[str, ...]:
    names = dict(line.split("\t", 1) for line in _read_lines(path) if "\t" in line)
    missing = [wnid for wnid in wnids if wnid not in names]
    if missing:
        raise InputError(f"{path} has no name for {missing[0]}.")
    return tuple(f"{wnid} {names[wnid]}" for wnid in wnids)


def _annotated(folder: Path, wnids: tuple[str, ...], shape: ImageFiles) -> Split:
    """The images of val/images with the classes that val_annotations.txt gives: file, class, box, tab-separated."""
    path = folder / "val_annotations.txt"
    codes = {wnid: code for code, wnid in enumerate(wnids)}
    names, y = [], []
    for number, line in enumerate(_read_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) < 2 or fields[1] not in codes:
            raise InputError(f"{path}, line {number}: expected a file name and one of the {len(wnids)} classes.")
        image = folder / "images" / fields[0]
        if Path(fields[0]).name != fields[0] or not image.is_file():
            raise InputError(f"{path}, line {number}: {image} does not exist.")
        names.append(image.relative_to(shape.folder).as_posix())
        y.append(codes[fields[1]])
    return _file_split(names, y, shape)
