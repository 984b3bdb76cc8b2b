"""Validation splits and the smaller data sets of growth settings, drawn by class and by seed."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flipguard.data.dataset import DataSet, Split
from flipguard.data.randomness import SUBSET, VALIDATION, random_order
from flipguard.types import InputError

Counts = npt.NDArray[np.int64]


def proportional_counts(available: Counts, size: int) -> Counts:
    """How many of each class to draw so that they add up to `size` in the proportions of `available`, (C,).

    Largest remainders get the units that rounding down leaves over; ties go to the first class.

    >>> proportional_counts(np.array([10, 10, 5]), 7).tolist()
    [3, 3, 1]
    """
    exact = available * (size / max(1, available.sum()))
    counts = np.floor(exact).astype(np.int64)
    left = size - int(counts.sum())
    counts[np.argsort(counts - exact, kind="stable")[:left]] += 1
    return counts


def class_counts(split: Split, classes: int) -> Counts:
    """Samples per class, (C,). Rows without a class are not counted."""
    y = split.y.cpu()
    return np.asarray(torch.bincount(y[y >= 0], minlength=classes).numpy(), np.int64)


def _draw(y: Tensor, counts: Counts, *, seed: int, stream: int) -> Tensor:
    """A mask (N,) of the first counts[c] rows of each class c in an order drawn by seed: a smaller draw by the same
    seed is part of a larger one."""
    order = random_order(seed, 0, len(y), stream=stream)
    chosen = torch.zeros(len(y), dtype=torch.bool)
    for code, count in enumerate(counts.tolist()):
        chosen[order[y[order] == code][:count]] = True
    return chosen


def split_validation(data: DataSet, *, size: int | float, seed: int) -> DataSet:
    """Move part of the training samples into a validation part, class by class; the test part is not touched.

    `size` is a number of samples, or a fraction of the training part when it is a float below 1. The draw depends on
    (seed, row) alone, so the same seed gives the same split whatever a run's other seeds are.

    >>> split = Split(torch.zeros(6, 2), torch.tensor([0, 1, 0, 1, 0, 1]), np.arange(6))
    >>> data = split_validation(DataSet("toy", split, split, ("cat", "dog"), "features"), size=2, seed=7)
    >>> len(data.train), sorted(data.validation.y.tolist()), len(data.test)
    (4, [0, 1], 6)
    """
    if data.validation is not None:
        raise InputError(f"{data.name} already has a validation part of {len(data.validation):,} samples.")
    n = len(data.train)
    wanted = round(size * n) if isinstance(size, float) and size < 1 else size
    if wanted < 1 or wanted != int(wanted):
        raise InputError(f"a validation size is a whole number of samples or a fraction below 1, not {size}.")
    wanted = int(wanted)
    if wanted >= n:
        raise InputError(f"{data.name} has {n:,} training samples: {wanted:,} for validation leave none to train on.")
    available = class_counts(data.train, len(data.classes))
    counts = proportional_counts(available, min(wanted, int(available.sum())))
    short = np.flatnonzero((available > 0) & (counts >= available))
    if len(short):
        raise InputError(
            f"{data.name}: too few samples per class: class {data.classes[short[0]]!r} has {available[short[0]]} and "
            f"a validation part of {wanted:,} would take them all. Ask for a smaller one."
        )
    chosen = _draw(data.train.y.cpu(), counts, seed=seed, stream=VALIDATION)
    rows = torch.arange(n)
    return replace(data, train=data.train.select(rows[~chosen]), validation=data.train.select(rows[chosen]))


def subset(
    data: DataSet,
    *,
    classes: int | float | Sequence[str] | None = None,
    per_class: int | float | None = None,
    seed: int = 0,
) -> DataSet:
    """A smaller version of a data set: fewer classes, fewer training samples of each, or both.

    `classes` is a number of classes or a fraction of them, drawn by seed, or their names. All parts lose the other
    classes, and the codes are numbered anew in the old order. `per_class` is a number of training samples or a fraction
    of each class; test and validation keep theirs. Draws by one seed are nested: half of the samples are among
    three quarters of them.

    >>> split = Split(torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]), np.arange(6))
    >>> data = DataSet("toy", split, split, ("cat", "dog", "emu"), "features")
    >>> small = subset(data, classes=["emu", "cat"], per_class=1)
    >>> small.classes, sorted(small.train.y.tolist()), small.test.y.tolist()
    (('cat', 'emu'), [0, 1], [0, 1, 0, 1])
    """
    if classes is not None:
        data = _fewer_classes(data, _chosen_classes(data, classes, seed=seed))
    if per_class is None:
        return data
    available = class_counts(data.train, len(data.classes))
    if isinstance(per_class, float) and 0 < per_class <= 1:
        counts = np.round(available * per_class).astype(np.int64)
    elif isinstance(per_class, int) and per_class >= 1:
        counts = np.full_like(available, per_class)
    else:
        raise InputError(f"per_class is a whole number from 1, or a fraction up to 1.0, not {per_class!r}.")
    short = np.flatnonzero((available < counts) | (counts < 1))
    if len(short):
        raise InputError(
            f"{data.name}: too few samples per class: class {data.classes[short[0]]!r} has {available[short[0]]} "
            f"and per_class={per_class} asks for {max(1, counts[short[0]])}."
        )
    chosen = _draw(data.train.y.cpu(), counts, seed=seed, stream=SUBSET)
    return replace(data, train=data.train.select(torch.arange(len(chosen))[chosen]))


def _chosen_classes(data: DataSet, classes: int | float | Sequence[str], *, seed: int) -> list[int]:
    total = len(data.classes)
    if isinstance(classes, int | float):
        count = round(classes * total) if isinstance(classes, float) and classes <= 1 else int(classes)
        if not 1 <= count <= total:
            raise InputError(f"{data.name} has {total} classes: classes={classes} cannot be drawn from them.")
        return sorted(random_order(seed, 1, total, stream=SUBSET)[:count].tolist())
    if isinstance(classes, str) or not classes:
        raise InputError(f"classes must be a number, a fraction or a list of names, not {classes!r}.")
    unknown = [name for name in classes if name not in data.classes]
    if unknown:
        raise InputError(f"{data.name} has no class {unknown[0]!r}.")
    return sorted({data.classes.index(name) for name in classes})


def _fewer_classes(data: DataSet, kept: list[int]) -> DataSet:
    codes = torch.full((len(data.classes) + 1,), -1)
    codes[torch.tensor(kept)] = torch.arange(len(kept))

    def restrict(split: Split) -> Split:
        y = codes[split.y.cpu()]
        # A row that never had a class (y = -1) reads the last entry and stays as it is.
        keep = (y >= 0) | (split.y.cpu() < 0)
        return replace(split.select(torch.arange(len(y))[keep]), y=y[keep].to(split.y.device))

    return replace(data.map(restrict), classes=tuple(data.classes[code] for code in kept))
