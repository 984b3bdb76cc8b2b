"""NumPy archives: arrays of images, features or texts under fixed names."""

import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from flipguard.data.augment import measure_normalisation
from flipguard.data.dataset import DataSet, Inputs, Kind, Split, Texts, numbered_ids
from flipguard.files import check_unpacked
from flipguard.types import DamagedFile, InputError

Arrays = dict[str, npt.NDArray[Any]]
Layout = Literal["NCHW", "NHWC"]


def read_npz(path: Path) -> Arrays:
    """All arrays of an archive. Arrays of Python objects are refused: they are pickles."""
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            unpacked = sum(entry.file_size for entry in archive.zip.infolist())
            check_unpacked(path, path.stat().st_size, unpacked)
            arrays = {name: archive[name] for name in archive.files}
    except InputError:
        raise
    except Exception as error:
        # A damaged archive can fail as BadZipFile, zlib.error, ValueError, EOFError, OSError or AttributeError.
        reason = " ".join(str(error).split())
        raise DamagedFile(f"{path} is damaged: it cannot be read as an NPZ archive ({reason}).", path) from error
    other = next((name for name, array in arrays.items() if not isinstance(array, np.ndarray)), None)
    if other is not None:
        raise InputError(f"{path}: its member {other!r} is no array; an NPZ archive holds nothing else.")
    return arrays


def column(arrays: Arrays, name: str, path: Path) -> npt.NDArray[Any]:
    """One array by name, or an error that lists what there is."""
    if name not in arrays:
        raise InputError(f"{path} has no array {name!r}; it has {', '.join(sorted(arrays)) or 'none'}.")
    return arrays[name]


def unpack_texts(text: npt.NDArray[Any], offsets: npt.NDArray[Any], path: Path) -> Texts:
    """Texts stored as one run of UTF-8 bytes; text i is text[offsets[i]:offsets[i+1]].

    >>> unpack_texts(np.frombuffer(b"onetwo", np.uint8), np.array([0, 3, 6]), Path("words.npz"))
    ('one', 'two')
    """
    places = offsets.tolist()
    if not places or places[0] < 0 or places[-1] > len(text) or np.any(np.diff(offsets) < 0):
        raise InputError(f"{path}: the offsets do not rise from 0 to the {len(text):,} bytes of text.")
    data = text.tobytes()
    try:
        return tuple(data[start:end].decode() for start, end in itertools.pairwise(places))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: a text is not UTF-8 ({error.reason}).") from error


def image_tensor(x: npt.NDArray[Any], path: Path, *, layout: Layout | None = None) -> torch.Tensor:
    """uint8 images as (N, C, H, W). The channel axis is the one of size 1 or 3 when `layout` does not say.

    >>> image_tensor(np.zeros((5, 7, 11, 3), np.uint8), Path("x.npz")).shape
    torch.Size([5, 3, 7, 11])
    """
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim != 4:
        raise InputError(f"{path}: images must be (N, H, W), (N, C, H, W) or (N, H, W, C), not {x.shape}.")
    if layout is None and x.shape[1] not in (1, 3) and x.shape[3] not in (1, 3):
        raise InputError(f"{path}: no axis of {x.shape} looks like channels; say layout: NCHW or NHWC.")
    if layout == "NHWC" or (layout is None and x.shape[1] not in (1, 3)):
        x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(x, order="C"))


def _inputs(arrays: Arrays, part: str, path: Path, layout: Layout | None) -> tuple[Inputs, Kind]:
    if f"text_{part}" in arrays:
        offsets = column(arrays, f"offsets_{part}", path)
        return unpack_texts(arrays[f"text_{part}"], offsets, path), "text"
    x = column(arrays, f"x_{part}", path)
    if x.dtype.kind == "U":
        return tuple(x.tolist()), "text"
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return image_tensor(x, path, layout=layout), "image"
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise InputError(f"{path}: x_{part} has type {x.dtype} and shape {x.shape}, which no kind of data has.")
    features = x.astype(np.float32)
    if not np.isfinite(features).all():
        raise InputError(f"{path}: x_{part} has values that are not finite.")
    return torch.from_numpy(features), "features"


def labels(y: npt.NDArray[Any], path: Path, name: str) -> torch.Tensor:
    """Class codes as int64 (N,)."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise InputError(f"{path}: {name} must be whole numbers (N,), not {y.dtype} {y.shape}.")
    return torch.from_numpy(y.astype(np.int64))


def load_npz(root: Path, *, file: str, layout: Layout | None = None, name: str | None = None) -> DataSet:
    """An archive with x_train, y_train, x_test, y_test and, if it has them, x_val, y_val, ids_…, classes.

    x is uint8 images, numeric features (N, …) or strings (N,); texts may also be packed as text_… and offsets_….
    y holds class codes, or class names when they are strings.
    """
    path = root / file
    return archive_data(read_npz(path), path, name=name or path.stem, layout=layout)


def archive_data(arrays: Arrays, path: Path, *, name: str, layout: Layout | None = None, prefix: str = "") -> DataSet:
    """The data set in the arrays of an archive; `prefix` starts the ids of rows that have none."""
    targets = {part: column(arrays, f"y_{part}", path) for part in ("train", "test")}
    if "y_val" in arrays:
        targets["val"] = arrays["y_val"]
    classes, codes = _class_codes(arrays, targets, path)
    parts: dict[str, Split] = {}
    kinds: set[Kind] = set()
    for part, y in codes.items():
        x, found = _inputs(arrays, part, path, layout)
        ids = arrays.get(f"ids_{part}", numbered_ids(f"{prefix}{part}", len(y)))
        parts[part] = Split(x, labels(y, path, f"y_{part}"), ids)
        kinds.add(found)
    if len(kinds) != 1:
        raise InputError(f"{path}: the parts are of different kinds: {', '.join(sorted(kinds))}.")
    kind, x = kinds.pop(), parts["train"].x
    normalisation = measure_normalisation(x) if isinstance(x, torch.Tensor) and len(x) else None
    return DataSet(name, parts["train"], parts["test"], classes, kind, normalisation, validation=parts.get("val"))


def _class_codes(arrays: Arrays, targets: Arrays, path: Path) -> tuple[tuple[str, ...], Arrays]:
    named = all(y.dtype.kind == "U" for y in targets.values())
    if "classes" in arrays:
        classes = tuple(str(name) for name in arrays["classes"].tolist())
    elif named:
        classes = tuple(sorted(set(targets["train"].tolist())))
    else:
        classes = tuple(str(code) for code in range(1 + max(int(y.max(initial=-1)) for y in targets.values())))
    if not named:
        return classes, targets
    codes = {name: code for code, name in enumerate(classes)}
    for part, y in targets.items():
        unknown = sorted(set(y.tolist()) - set(codes))
        if unknown:
            raise InputError(f"{path}: y_{part} has the class {unknown[0]!r}, which is not among the classes.")
    return classes, {part: np.array([codes[name] for name in y.tolist()], np.int64) for part, y in targets.items()}
