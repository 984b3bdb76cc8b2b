"""Text classification: AG News as published, and the way from texts to tensors."""

import csv
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.types import InputError

AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def encode_text(data: DataSet, encode: Callable[[list[str]], Mapping[str, Tensor]]) -> DataSet:
    """The data set with its raw texts turned into tensors.

    `encode` takes all texts of a part and gives tensors (N, …) by name, as a tokenizer does that pads and truncates to
    a fixed length.

    >>> import numpy as np
    >>> part = Split(("a", "bbb"), torch.tensor([0, 1]), np.arange(2))
    >>> data = DataSet("toy", part, part, ("x", "y"), "text")
    >>> encode_text(data, lambda texts: {"length": torch.tensor([len(t) for t in texts])}).train.x
    {'length': tensor([1, 3])}
    """
    return data.map(functools.partial(_encode_split, encode=encode))


def _encode_split(split: Split, *, encode: Callable[[list[str]], Mapping[str, Tensor]]) -> Split:
    if not isinstance(split.x, tuple):
        raise InputError("only raw texts can be encoded; this data set holds tensors or files already.")
    return replace(split, x=dict(encode(list(split.x))))


def load_ag_news(root: Path) -> DataSet:
    """train.csv and test.csv without a header: class 1 … 4, title, description (Zhang et al. 2015).

    A text is the title and the description with a space between; the files' backslashes, which stand for line breaks,
    become spaces. classes.txt, when it is there, names the classes.
    """
    folder = next(
        (place for place in (root, root / "ag_news_csv", root / "ag_news") if (place / "train.csv").is_file()), root
    )
    names = folder / "classes.txt"
    classes = tuple(names.read_text(encoding="utf-8").splitlines()) if names.is_file() else AG_NEWS_CLASSES
    train, test = (read_news(folder / f"{part}.csv", part, len(classes)) for part in ("train", "test"))
    return DataSet("ag-news", train, test, classes, "text")


def read_news(path: Path, part: str, classes: int) -> Split:
    """The rows of one file."""
    texts, codes = [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file, strict=True), start=1):
                if len(row) != 3 or not row[0].isdecimal() or not 1 <= int(row[0]) <= classes:
                    raise InputError(
                        f"{path}, row {number}: expected a class from 1 to {classes}, a title, a description."
                    )
                codes.append(int(row[0]) - 1)
                texts.append(" ".join(f"{row[1]} {row[2]}".replace("\\", " ").split()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV file ({error}).") from error
    if not texts:
        raise InputError(f"{path} has no rows.")
    return Split(tuple(texts), torch.tensor(codes), numbered_ids(part, len(texts)))
