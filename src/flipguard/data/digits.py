"""The handwritten digits that scikit-learn carries: 1,797 images of 8 × 8 pixels, no download."""

import importlib

import numpy as np
import torch

from flipguard.data.augment import measure_normalisation
from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.data.splits import split_validation
from flipguard.types import MissingExtra

_SPLIT_SEED = 0


def load_digits(*, test_size: float = 0.3) -> DataSet:
    """Digits as uint8 (N, 1, 8, 8), a fixed share of each class held out as test.

    The pixels' 0 … 16 become 0 … 255. The split is the same in every run: it has no seed to set.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtra("the digits data set needs scikit-learn: pip install 'flipguard[train]'") from error
    images, target = datasets.load_digits(return_X_y=True)
    pixels = np.rint(images * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    everything = Split(
        torch.from_numpy(pixels), torch.from_numpy(target.astype(np.int64)), numbered_ids("digit", len(target))
    )
    classes = tuple(str(digit) for digit in range(10))
    parts = split_validation(
        DataSet("digits", everything, everything.select([]), classes, "image"), size=test_size, seed=_SPLIT_SEED
    )
    assert parts.validation is not None
    return DataSet("digits", parts.train, parts.validation, classes, "image", measure_normalisation(parts.train.x))
