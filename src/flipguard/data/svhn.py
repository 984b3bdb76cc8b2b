"""SVHN, cropped digits (Netzer et al. 2011): train_32x32.mat, test_32x32.mat and, if it is there, extra_32x32.mat."""

from pathlib import Path

import numpy as np
import torch

from flipguard.data.archive import check_md5
from flipguard.data.augment import measure_normalisation
from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.data.matlab import read_matlab
from flipguard.types import InputError

_MD5 = {
    "train": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "test": "eb5a983be6a315427106f1b164d9cef3",
    "extra": "a93ce644f1a588dc4d68dda5feec44a7",
}


def load_svhn(root: Path, *, extra: bool = False, verify: bool = True) -> DataSet:
    """SVHN from `root` or its folder svhn; `extra` also reads the 531,131 easier digits as the part `extra`."""
    folder = next((place for place in (root, root / "svhn") if (place / "train_32x32.mat").is_file()), root)
    parts = {}
    for part in ("train", "test", "extra") if extra else ("train", "test"):
        path = folder / f"{part}_32x32.mat"
        if not path.is_file():
            raise InputError(f"{path} does not exist.")
        if verify:
            check_md5(path, _MD5[part])
        parts[part] = read_mat(path, part)
    classes = tuple(str(digit) for digit in range(10))
    rest = {"extra": parts["extra"]} if extra else {}
    return DataSet(
        "svhn", parts["train"], parts["test"], classes, "image", measure_normalisation(parts["train"].x), extra=rest
    )


def read_mat(path: Path, part: str) -> Split:
    """X (H, W, C, N) and y (N, 1) of a MATLAB file, version 5; label 10 stands for the digit 0."""
    found = read_matlab(path, ("X", "y"))
    x, y = found.get("X"), found.get("y")
    if x is None or y is None or x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise InputError(f"{path} does not hold X, bytes (32, 32, 3, N), and y.")
    y = np.asarray(y).reshape(-1).astype(np.int64)
    if len(y) != x.shape[3]:
        raise InputError(f"{path} has {x.shape[3]:,} images and {len(y):,} labels.")
    if len(y) and (y.min() < 0 or y.max() > 10):
        raise InputError(f"{path} has labels from {y.min()} to {y.max()}; they should lie in 0 … 10.")
    images = torch.from_numpy(np.array(x.transpose(3, 2, 0, 1), order="C"))
    return Split(images, torch.from_numpy(y % 10), numbered_ids(part, len(y)))
