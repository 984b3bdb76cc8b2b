"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): the python and the binary form, extracted or as tar.gz."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from flipguard.data.archive import read_files, read_members
from flipguard.data.augment import CIFAR10_NORMALISATION, CIFAR100_NORMALISATION
from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.data.mosaic import load_mosaic
from flipguard.data.unpickle import read_pickle
from flipguard.types import InputError

_PIXELS = 3 * 32 * 32

Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Form:
    """One published form of a data set: where its files are, and the MD5 sums that its publisher gives."""

    folder: str
    archive: str
    archive_md5: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    names: tuple[str, ...]
    md5: tuple[tuple[str, str], ...] = ()


CIFAR10_PYTHON = Form(
    folder="cifar-10-batches-py",
    archive="cifar-10-python.tar.gz",
    archive_md5="c58f30108f718f92721af3b95e74349a",
    train=tuple(f"data_batch_{i}" for i in range(1, 6)),
    test=("test_batch",),
    names=("batches.meta",),
    md5=(
        ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
        ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
        ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
        ("data_batch_4", "634d18415352ddfa80567beed471001a"),
        ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
        ("test_batch", "40351d587109b95175f43aff81a1287e"),
        ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
    ),
)
CIFAR10_BINARY = Form(
    folder="cifar-10-batches-bin",
    archive="cifar-10-binary.tar.gz",
    archive_md5="c32a1d4ab5d03f1284b67883e8d87530",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    names=("batches.meta.txt",),
)
CIFAR100_PYTHON = Form(
    folder="cifar-100-python",
    archive="cifar-100-python.tar.gz",
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    train=("train",),
    test=("test",),
    names=("meta",),
    md5=(
        ("train", "16019d7e3df5f24257cddd939b257f8d"),
        ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
        ("meta", "7973b15100ade9c7d40fb424638fde48"),
    ),
)
CIFAR100_BINARY = Form(
    folder="cifar-100-binary",
    archive="cifar-100-binary.tar.gz",
    archive_md5="03b5dce01913d631647c71ecec9e9cb8",
    train=("train.bin",),
    test=("test.bin",),
    names=("fine_label_names.txt", "coarse_label_names.txt"),
)


def load_cifar10(root: Path, *, verify: bool = True) -> DataSet:
    """CIFAR-10 from the first form found under `root`."""
    form, files = _find(root, (CIFAR10_PYTHON, CIFAR10_BINARY), verify=verify)
    if form is CIFAR10_PYTHON:
        names = _names(read_pickle(files["batches.meta"], name="batches.meta"), "label_names", "batches.meta")
    else:
        names = _lines(files["batches.meta.txt"])
    parts = [_split(form, files, part, {"labels": names}) for part in ("train", "test")]
    return DataSet("cifar10", parts[0], parts[1], names, "image", CIFAR10_NORMALISATION)


def load_cifar100(root: Path, *, verify: bool = True) -> DataSet:
    """CIFAR-100 with its 100 fine classes, the 20 coarse ones as the slice `superclass`.

    From the first official form found under `root`, else from the mosaics, which hold the same images in another order
    and so have other ids.
    """
    if not _present(root, (CIFAR100_PYTHON, CIFAR100_BINARY)) and (root / "cifar100" / "labels.npz").is_file():
        return load_mosaic(root, set="cifar100")
    form, files = _find(root, (CIFAR100_PYTHON, CIFAR100_BINARY), verify=verify)
    if form is CIFAR100_PYTHON:
        meta = read_pickle(files["meta"], name="meta")
        fine, coarse = (_names(meta, f"{which}_label_names", "meta") for which in ("fine", "coarse"))
    else:
        fine, coarse = (_lines(files[f"{which}_label_names.txt"]) for which in ("fine", "coarse"))
    columns = {"coarse_labels": coarse, "fine_labels": fine}
    parts = [_split(form, files, part, columns) for part in ("train", "test")]
    return DataSet("cifar100", parts[0], parts[1], fine, "image", CIFAR100_NORMALISATION)


def _present(root: Path, forms: Sequence[Form]) -> list[tuple[Form, Path]]:
    places = [(form, root / form.folder) for form in forms] + [(form, root / form.archive) for form in forms]
    places += [(form, root) for form in forms if (root / form.train[0]).is_file()]
    return [(form, path) for form, path in places if path == root or path.exists()]


def _find(root: Path, forms: Sequence[Form], *, verify: bool) -> tuple[Form, dict[str, bytes]]:
    found = _present(root, forms)
    if not found:
        looked = ", ".join([form.folder for form in forms] + [form.archive for form in forms])
        raise InputError(f"{root} holds none of {looked}.")
    form, path = found[0]
    files = (*form.train, *form.test, *form.names)
    if path.is_dir():
        return form, read_files(path, files, md5=dict(form.md5) if verify else {})
    return form, read_members(path, form.folder, files, md5=form.archive_md5 if verify else None)


def _split(form: Form, files: dict[str, bytes], part: str, columns: dict[str, tuple[str, ...]]) -> Split:
    """A part from its files. `columns` gives the label columns in the order of a binary record, with their classes."""
    pixels: list[Bytes] = []
    codes: dict[str, list[Codes]] = {column: [] for column in columns}
    for name in form.train if part == "train" else form.test:
        read = _records if name.endswith(".bin") else _batch
        found, labels = read(files[name], tuple(columns), name)
        pixels.append(found)
        for column, classes in columns.items():
            if len(labels[column]) and int(labels[column].max()) >= len(classes):
                raise InputError(f"{name}: label {labels[column].max()} is not one of the {len(classes)} {column}.")
            codes[column].append(labels[column])
    x = torch.from_numpy(np.concatenate(pixels).reshape(-1, 3, 32, 32))
    y = np.concatenate(codes["fine_labels" if "fine_labels" in columns else "labels"])
    slices = {}
    if "coarse_labels" in columns:
        slices["superclass"] = np.array(columns["coarse_labels"])[np.concatenate(codes["coarse_labels"])]
    return Split(x, torch.from_numpy(y), numbered_ids(part, len(y)), slices)


def _records(data: bytes, columns: tuple[str, ...], name: str) -> tuple[Bytes, dict[str, Codes]]:
    """The binary form: one byte per label, then 3,072 bytes of pixels, red first, row by row."""
    length = len(columns) + _PIXELS
    if not data or len(data) % length:
        raise InputError(f"{name} has {len(data):,} bytes, not a multiple of {length:,}: it is truncated or damaged.")
    records = np.frombuffer(data, np.uint8).reshape(-1, length)
    codes = {column: records[:, place].astype(np.int64) for place, column in enumerate(columns)}
    return records[:, len(columns) :].copy(), codes


def _batch(data: bytes, columns: tuple[str, ...], name: str) -> tuple[Bytes, dict[str, Codes]]:
    """The python form: a dict with `data`, uint8 (N, 3072), and one list per label column."""
    batch = read_pickle(data, name=name)
    pixels: Any = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise InputError(f"{name} has no 'data' of bytes (N, {_PIXELS:,}).")
    codes = {}
    for column in columns:
        try:
            codes[column] = np.array(batch.get(column), np.int64).reshape(len(pixels))
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} has no {column!r} with {len(pixels):,} whole numbers.") from error
        if len(pixels) and int(codes[column].min()) < 0:
            raise InputError(f"{name}: {column!r} has the negative label {codes[column].min()}.")
    return pixels, codes


def _names(meta: dict[str, Any], key: str, file: str) -> tuple[str, ...]:
    names = meta.get(key)
    if not isinstance(names, list) or not all(isinstance(name, bytes | str) for name in names):
        raise InputError(f"{file} has no list of names {key!r}.")
    return tuple(name.decode("utf-8", "replace") if isinstance(name, bytes) else name for name in names)


def _lines(data: bytes) -> tuple[str, ...]:
    return tuple(line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip())
