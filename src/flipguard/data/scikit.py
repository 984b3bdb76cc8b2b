"""The small tables that scikit-learn carries: features, no images, no download."""

import importlib

import numpy as np
import torch

from flipguard.data.augment import measure_normalisation
from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.data.splits import split_validation
from flipguard.types import InputError, MissingExtra

SETS = ("breast_cancer", "iris", "wine")
_SPLIT_SEED = 0


def load_sklearn(*, set: str, test_size: float = 0.3) -> DataSet:
    """One of `SETS` as float32 features (N, D), a fixed share of each class held out as test.

    Features are normalised by the training part's mean and standard deviation. The split is the same in every run.
    """
    if set not in SETS:
        raise InputError(f"scikit-learn's tables are {', '.join(SETS)}, not {set!r}.")
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise MissingExtra(f"the data set {set} needs scikit-learn: pip install 'flipguard[train]'") from error
    table = getattr(datasets, f"load_{set}")()
    x = torch.from_numpy(table.data.astype(np.float32))
    y = torch.from_numpy(table.target.astype(np.int64))
    classes = tuple(str(name) for name in table.target_names)
    everything = Split(x, y, numbered_ids(set, len(y)))
    whole = DataSet(set, everything, everything.select([]), classes, "features")
    parts = split_validation(whole, size=test_size, seed=_SPLIT_SEED)
    assert parts.validation is not None
    normalisation = measure_normalisation(parts.train.x)
    return DataSet(set, parts.train, parts.validation, classes, "features", normalisation)
