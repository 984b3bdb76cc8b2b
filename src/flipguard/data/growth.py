"""Data that grows between two versions: the old model knew half the classes, or half the samples of each."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from flipguard.data.dataset import DataSet
from flipguard.data.splits import subset
from flipguard.files import whole_file
from flipguard.types import InputError

Grown = Literal["classes", "samples"]


@dataclass(frozen=True)
class Growth:
    """What the old model was trained on, drawn once and kept: a value that can be written to a file and read again.

    `classes` are the old model's, `ids` its training samples when the samples grew (None when the classes did: then it
    had every sample of its classes). `train` is the fingerprint of the whole training part, so that a draw is not
    applied to other data.
    """

    kind: Grown
    share: float
    seed: int
    classes: tuple[str, ...]
    ids: tuple[int | str, ...] | None
    train: str

    def old(self, data: DataSet) -> DataSet:
        """The old model's data set, out of the whole one: its own class list, its codes numbered anew."""
        if data.fingerprint("train") != self.train:
            raise InputError(f"this draw was made from other training samples than those of {data.name}: draw again.")
        if self.ids is None:
            return subset(data, classes=list(self.classes))
        rows = np.flatnonzero(np.isin(data.train.ids, np.asarray(self.ids)))
        return replace(data, train=data.train.select(rows))

    def write(self, path: str | Path) -> None:
        """As JSON, written beside and renamed."""
        with whole_file(Path(path)) as beside:
            beside.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> "Growth":
        """What `write` wrote."""
        try:
            found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
            ids = found["ids"]
            return cls(**{**found, "classes": tuple(found["classes"]), "ids": None if ids is None else tuple(ids)})
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"{path} is no readable record of grown data ({error}): draw again.") from error


def draw_growth(data: DataSet, *, kind: Grown, share: float = 0.5, seed: int = 0) -> Growth:
    """Which classes, or which samples of each class, the old model had: a share of them, drawn by seed.

    Draws by one seed are nested, so that a chain of versions can grow from a quarter to a half to all of it. PCT
    (Table 5) and ELODI (Tables 2 and 3) give the old model half of the classes, or half of each class's samples.
    """
    if kind not in get_args(Grown):
        raise InputError(f"data grows by 'classes' or by 'samples', not by {kind!r}.")
    if not 0 < share < 1:
        raise InputError(f"the old model's share of the {kind} lies between 0 and 1, both left out, got {share}.")
    train = data.fingerprint("train")
    if kind == "classes":
        old = subset(data, classes=float(share), seed=seed)
        if len(old.classes) < 2:
            raise InputError(f"a share of {share} leaves the old model {len(old.classes)} class; it needs at least 2.")
        return Growth(kind, share, seed, old.classes, None, train)
    old = subset(data, per_class=float(share), seed=seed)
    return Growth(kind, share, seed, data.classes, tuple(old.train.ids.tolist()), train)


def grown(data: DataSet, *, kind: Grown, share: float = 0.5, seed: int = 0) -> tuple[DataSet, DataSet]:
    """The old model's data and the new one's, which is all of it.

    >>> import torch
    >>> from flipguard.data.dataset import Split
    >>> split = Split(torch.zeros(8, 2), torch.tensor([0, 1, 2, 3] * 2), np.arange(8))
    >>> data = DataSet("toy", split, split, ("ant", "bee", "cat", "dog"), "features")
    >>> old, new = grown(data, kind="classes", seed=1)
    >>> len(old.classes), len(old.train), class_places(old.classes, new.classes) is None
    (2, 4, False)
    >>> old, new = grown(data, kind="samples")
    >>> sorted(old.train.y.tolist()), old.classes == new.classes
    ([0, 1, 2, 3], True)
    """
    return draw_growth(data, kind=kind, share=share, seed=seed).old(data), data


def class_places(old: Sequence[str], new: Sequence[str]) -> tuple[int, ...] | None:
    """The new model's column for each of the old one's classes, by name; None when the two lists are the same.

    This is what a reference's `classes` wants. A class that the new model lacks cannot be kept, and is refused.

    >>> class_places(("dog", "cat"), ("ant", "cat", "dog"))
    (2, 1)
    >>> class_places(("dog", "cow"), ("ant", "cat", "dog"))
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: the old model knows the class 'cow' and the new one does not: a class cannot be removed from one version to the next.
    """  # noqa: E501
    if tuple(old) == tuple(new):
        return None
    place = {name: number for number, name in enumerate(new)}
    for name in old:
        if name not in place:
            raise InputError(
                f"the old model knows the class '{name}' and the new one does not: a class cannot be removed from one "
                "version to the next."
            )
    return tuple(place[name] for name in old)
