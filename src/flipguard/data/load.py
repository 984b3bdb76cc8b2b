"""Data sets by name."""

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flipguard.data.cifar import load_cifar10, load_cifar100
from flipguard.data.dataset import DataSet
from flipguard.data.digits import load_digits
from flipguard.data.folders import load_image_folder, load_tiny_imagenet
from flipguard.data.idx import load_idx
from flipguard.data.mosaic import load_mosaic
from flipguard.data.npz import load_npz
from flipguard.data.scikit import load_sklearn
from flipguard.data.shards import load_webdataset
from flipguard.data.svhn import load_svhn
from flipguard.data.table import load_table
from flipguard.data.text import build_encoder, encode_text, load_ag_news, load_clinc150
from flipguard.types import InputError

DATA: dict[str, Callable[..., DataSet]] = {
    "digits": load_digits,
    "sklearn": load_sklearn,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
    "tiny-imagenet": load_tiny_imagenet,
    "image-folder": load_image_folder,
    "mnist-idx": load_idx,
    "ag-news": load_ag_news,
    "clinc150": load_clinc150,
    "npz": load_npz,
    "table": load_table,
    "mosaic": load_mosaic,
    "webdataset": load_webdataset,
}
"""Loaders by name. Each takes the data folder first, when it needs one, and then options by keyword."""

BUNDLED = frozenset({"digits", "sklearn"})
"""Data sets that need no folder."""


def load_data(spec: str | Mapping[str, Any], *, folder: "Path | str | None" = None) -> DataSet:
    """A data set by name, or by a mapping of `name` and the loader's options.

    The folder is the mapping's own `folder`, else the argument, else the environment variable FLIPGUARD_DATA. A text
    after a colon is short for the one option that a loader cannot do without: `mosaic:cifar100` is
    {"name": "mosaic", "set": "cifar100"}, and `image-folder:PATH` is {"name": "image-folder", "folder": PATH}. The option
    `encode` turns the texts of any set into tensors: {"words": 20000, "length": 64} learns a word list, {"tokenizer":
    PATH, "length": 64} takes a tokenizer.json (see `build_encoder`).

    >>> load_data("cifar")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: unknown data set 'cifar'; did you mean cifar10? Known: ag-news, cifar10, cifar100, clinc150, digits, image-folder, mnist-idx, mosaic, npz, sklearn, svhn, table, tiny-imagenet, webdataset.
    """  # noqa: E501
    options = _options(spec)
    name = options.pop("name", None)
    if name not in DATA:
        raise InputError(f"unknown data set {name!r}; {_nearest(str(name))}Known: {', '.join(sorted(DATA))}.")
    loader = DATA[name]
    encode = options.pop("encode", None)
    data = _load(name, loader, options, folder)
    return data if encode is None else encode_text(data, build_encoder(data, encode))


def _load(name: str, loader: Callable[..., DataSet], options: dict[str, Any], folder: "Path | str | None") -> DataSet:
    place = options.pop("folder", None) or folder or os.environ.get("FLIPGUARD_DATA")
    _check_options(name, loader, options)
    if name in BUNDLED:
        return loader(**options)
    if not place:
        raise InputError(f"{name} needs a folder: pass one, or set the environment variable FLIPGUARD_DATA.")
    root = Path(place).expanduser()
    if not root.is_dir():
        raise InputError(f"the data folder {root} does not exist.")
    return loader(root, **options)


def data_options(name: str) -> tuple[str, ...]:
    """What a data set's mapping may hold beside `name` and `folder`.

    >>> data_options("digits")
    ('test_size', 'encode')
    """
    return (*(p.name for p in _keywords(DATA[name])), "encode")


def _keywords(loader: Callable[..., DataSet]) -> list[inspect.Parameter]:
    parameters = inspect.signature(loader).parameters.values()
    return [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def _options(spec: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(spec, str):
        return dict(spec)
    name, colon, argument = spec.partition(":")
    if not colon:
        return {"name": name}
    return {"name": name, "set" if name in ("mosaic", "sklearn") else "folder": argument}


def _nearest(name: str) -> str:
    close = difflib.get_close_matches(name, DATA, n=1)
    return f"did you mean {close[0]}? " if close else ""


def _check_options(name: str, loader: Callable[..., DataSet], options: Mapping[str, Any]) -> None:
    known = _keywords(loader)
    names = [p.name for p in known]
    for option in options:
        if option not in names:
            raise InputError(f"{name} has no option {option!r}; it has {', '.join(names) or 'none'}.")
    for p in known:
        if p.default is p.empty and p.name not in options:
            raise InputError(f"{name} needs the option {p.name!r}.")
