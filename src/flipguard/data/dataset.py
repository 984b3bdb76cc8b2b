"""A data set in memory, or on its way there: parts with stable sample ids."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor

from flipguard.data.encoders import Encoder
from flipguard.data.files import ImageFiles
from flipguard.predictions.fingerprint import fingerprint
from flipguard.types import InputError, Normalisation

Texts: TypeAlias = tuple[str, ...]
Inputs: TypeAlias = "Tensor | dict[str, Tensor] | Texts | ImageFiles"
Kind: TypeAlias = Literal["image", "text", "features"]
Rows: TypeAlias = "Tensor | npt.NDArray[Any] | list[int]"


def _rows(x: Inputs) -> int:
    if isinstance(x, dict):
        sizes = {name: len(tensor) for name, tensor in x.items()}
        if len(set(sizes.values())) != 1:
            raise InputError(f"the inputs of a split differ in length: {sizes}.")
        return next(iter(sizes.values()))
    return len(x)


def _take(x: Inputs, rows: Tensor) -> Inputs:
    if isinstance(x, ImageFiles):
        return x.select(rows.tolist())
    if isinstance(x, tuple):
        return tuple(x[row] for row in rows.tolist())
    if isinstance(x, dict):
        return {name: tensor[rows.to(tensor.device)] for name, tensor in x.items()}
    return x[rows.to(x.device)]


@dataclass(frozen=True)
class Split:
    """One part of a data set.

    `x` holds images, uint8 (N, C, H, W); features, float32 (N, D); a dict of tensors (N, …), as tokenizers give; raw
    texts, a tuple of N strings, until they are encoded; or image files that are decoded while training. `y` holds class
    codes, int64 (N,), -1 where a sample has no class. `ids` (N,) are integers or strings, unique and the same in every
    run, so that prediction files can be joined on them. `slices` are further columns (N,). `texts` are what encoded
    texts were before, for a network that knows them by another tokenizer.

    >>> split = Split(torch.zeros(3, 2), torch.tensor([0, 1, 0]), np.array(["a", "b", "c"]))
    >>> split.select([2, 0]).ids.tolist()
    ['c', 'a']
    """

    x: Inputs
    y: Tensor
    ids: npt.NDArray[Any]
    slices: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    texts: Texts | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", np.asarray(self.ids))
        sizes = {"x": _rows(self.x), "y": len(self.y), "ids": len(self.ids)}
        sizes |= {f"slices[{name!r}]": len(column) for name, column in self.slices.items()}
        if len(set(sizes.values())) != 1:
            raise InputError(f"the columns of a split differ in length: {sizes}.")
        if len(set(self.ids.tolist())) != len(self.ids):
            values, counts = np.unique(self.ids, return_counts=True)
            raise InputError(f"sample ids must be unique; {values[counts > 1][0]!s} occurs {counts.max()} times.")

    def __len__(self) -> int:
        return len(self.y)

    def select(self, rows: Rows) -> "Split":
        """The given rows, in the given order."""
        rows = torch.as_tensor(rows, dtype=torch.int64).cpu()
        columns = {name: column[rows.numpy()] for name, column in self.slices.items()}
        texts = None if self.texts is None else tuple(self.texts[row] for row in rows.tolist())
        return Split(_take(self.x, rows), self.y[rows.to(self.y.device)], self.ids[rows.numpy()], columns, texts)

    def to(self, device: "torch.device | str") -> "Split":
        """The same rows with the tensors on a device. Texts and files stay where they are."""
        device = torch.empty(0, device=device).device
        x = self.x
        if self.y.device == device:
            return self
        if isinstance(x, dict):
            x = {name: tensor.to(device) for name, tensor in x.items()}
        elif isinstance(x, Tensor):
            x = x.to(device)
        return replace(self, x=x, y=self.y.to(device))


@dataclass(frozen=True)
class DataSet:
    """A named data set: training, test and perhaps validation samples over the same classes.

    `normalisation` says how inputs are scaled before a network sees them, always measured on training samples or
    published for the data set; `encoder` says how texts became tensors. `extra` holds further parts by name, such as
    out-of-scope samples (y is -1).
    """

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    kind: Kind
    normalisation: Normalisation | None = None
    validation: Split | None = None
    extra: Mapping[str, Split] = field(default_factory=dict)
    encoder: Encoder | None = None

    def __post_init__(self) -> None:
        if len(set(self.classes)) != len(self.classes):
            twice = next(name for name in self.classes if self.classes.count(name) > 1)
            raise InputError(f"{self.name}: class names must be unique; {twice!r} occurs more than once.")
        for part, split in self.parts().items():
            if len(split) and (int(split.y.min()) < -1 or int(split.y.max()) >= len(self.classes)):
                raise InputError(
                    f"{self.name}: {part} has class codes {int(split.y.min())} to {int(split.y.max())}, "
                    f"but there are {len(self.classes)} classes (0 to {len(self.classes) - 1})."
                )

    def parts(self) -> dict[str, Split]:
        """Every part that is there, by name: train, test, validation, then the extra ones."""
        found = {"train": self.train, "test": self.test}
        if self.validation is not None:
            found["validation"] = self.validation
        return found | dict(self.extra)

    def part(self, name: str) -> Split:
        """One part by name.

        >>> split = Split(torch.zeros(1, 2), torch.tensor([0]), np.array(["a"]))
        >>> DataSet("toy", split, split, ("cat",), "features").part("dev")
        Traceback (most recent call last):
        ...
        flipguard.types.InputError: toy has no part 'dev'; it has train, test.
        """
        parts = self.parts()
        if name not in parts:
            raise InputError(f"{self.name} has no part {name!r}; it has {', '.join(parts)}.")
        return parts[name]

    def fingerprint(self, part: str = "test") -> str:
        """The fingerprint of a part's ids and class names: equal to that of a prediction file over the same samples."""
        split = self.part(part)
        names = pa.array([self.classes[code] if code >= 0 else None for code in split.y.tolist()], pa.string())
        return fingerprint(pa.array(split.ids), names)

    def map(self, change: Callable[[Split], Split]) -> "DataSet":
        """The data set with `change` applied to every part.

        >>> split = Split(torch.zeros(3, 2), torch.tensor([0, 1, 0]), np.array(["a", "b", "c"]))
        >>> data = DataSet("toy", split, split, ("cat", "dog"), "features")
        >>> len(data.map(lambda part: part.select([0])).train)
        1
        """
        return replace(
            self,
            train=change(self.train),
            test=change(self.test),
            validation=None if self.validation is None else change(self.validation),
            extra={name: change(split) for name, split in self.extra.items()},
        )

    def to(self, device: "torch.device | str") -> "DataSet":
        """Every part's tensors on a device."""
        return self.map(lambda split: split.to(device))


def numbered_ids(part: str, n: int) -> npt.NDArray[np.str_]:
    """Ids for rows that have none of their own: the part and the place in the file.

    >>> numbered_ids("train", 2).tolist()
    ['train_00000', 'train_00001']
    """
    width = max(5, len(str(n - 1)))
    return np.array([f"{part}_{row:0{width}d}" for row in range(n)], dtype=str)
