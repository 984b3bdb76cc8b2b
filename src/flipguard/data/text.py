"""Text classification: AG News and CLINC-150 as published, and the way from texts to tensors."""

import csv
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flipguard.data.dataset import DataSet, Split, numbered_ids
from flipguard.data.encoders import Encoder, WordEncoder, read_encoder
from flipguard.models.pretrained import pretrained_folder
from flipguard.types import InputError

MOST_CHARACTERS = 1_000_000
"""Of one text. A tokenizer takes many times a text's size in memory, and no text to be classified is a library."""

AG_NEWS_CLASSES = ("World", "Sports", "Business", "Sci/Tech")


def encode_text(data: DataSet, encode: Encoder | Callable[[list[str]], Mapping[str, Tensor]]) -> DataSet:
    """The data set with its raw texts turned into tensors.

    `encode` takes all texts of a part and gives tensors (N, …) by name, as a tokenizer does that pads and truncates to
    a fixed length. An `Encoder` stays with the data set, so that a release can carry it.

    >>> import numpy as np
    >>> part = Split(("a", "bbb"), torch.tensor([0, 1]), np.arange(2))
    >>> data = DataSet("toy", part, part, ("x", "y"), "text")
    >>> encode_text(data, lambda texts: {"length": torch.tensor([len(t) for t in texts])}).train.x
    {'length': tensor([1, 3])}
    """
    encoded = data.map(functools.partial(_encode_split, encode=encode))
    return replace(encoded, encoder=encode) if isinstance(encode, Encoder) else encoded


def _encode_split(split: Split, *, encode: Callable[[list[str]], Mapping[str, Tensor]]) -> Split:
    if not isinstance(split.x, tuple):
        raise InputError("only raw texts can be encoded; this data set holds tensors or files already.")
    longest = max(map(len, split.x), default=0)
    if longest > MOST_CHARACTERS:
        raise InputError(f"a text has {longest:,} characters; texts of more than {MOST_CHARACTERS:,} are refused.")
    return replace(split, x=dict(encode(list(split.x))), texts=split.x)


def encoded_by(data: DataSet, encoder: Encoder) -> DataSet:
    """The data set with its texts as another encoder gives them: a network knows no tokens but its own.

    Tensors that came about otherwise are taken as they are.
    """
    if isinstance(data.train.x, tuple):
        return encode_text(data, encoder)
    if data.encoder is None or data.encoder is encoder or data.encoder.fingerprint() == encoder.fingerprint():
        return data
    return encode_text(data.map(_raw), encoder)


def _raw(split: Split) -> Split:
    if split.texts is None:
        raise InputError(
            "the texts were encoded by another tokenizer than the network's, and are not there themselves."
        )
    return replace(split, x=split.texts, texts=None)


def build_encoder(data: DataSet, options: Mapping[str, Any]) -> Encoder:
    """An encoder by options: `tokenizer`, a file, folder or package that has one, or `words`, the size of a word list.

    `length` is the number of tokens that every text is cut or padded to. A word list is learnt from the training texts.
    """
    known = {"tokenizer", "words", "length"}
    if set(options) - known or ("tokenizer" in options) == ("words" in options):
        raise InputError(
            f"encode takes tokenizer or words, one of them, and length; got {', '.join(sorted(options)) or 'nothing'}."
        )
    length = options.get("length")
    if "tokenizer" in options:
        place = Path(options["tokenizer"])
        return read_encoder(place if place.exists() else pretrained_folder(str(place)), length=length)
    if not isinstance(data.train.x, tuple):
        raise InputError(f"a word list is learnt from raw texts, and {data.name} has none.")
    return WordEncoder.learn(data.train.x, size=options["words"], length=length or 64)


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


CLINC_PARTS = ("train", "val", "test")


def load_clinc150(root: Path, *, file: str = "data_full.json") -> DataSet:
    """CLINC-150 (Larson et al. 2019) in its published JSON: lists of [text, intent] by part.

    The out-of-scope parts are `extra`, without a class. `file` may be one of the smaller variants that were published
    beside it (data_small.json, data_imbalanced.json, data_oos_plus.json).
    """
    path = next(
        (place / file for place in (root, root / "clinc150", root / "data") if (place / file).is_file()), root / file
    )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a JSON file ({error}).") from error
    if not isinstance(found, dict) or not set(CLINC_PARTS) <= set(found):
        raise InputError(f"{path} must hold the parts {', '.join(CLINC_PARTS)}, each a list of [text, intent].")
    rows = {part: _intents(found[part], part, path) for part in found}
    classes = tuple(sorted({intent for _, intent in rows["train"]}))
    codes = {intent: code for code, intent in enumerate(classes)}
    parts = {}
    for part, pairs in rows.items():
        scoped = part in CLINC_PARTS
        unknown = next((intent for _, intent in pairs if scoped and intent not in codes), None)
        if unknown is not None:
            raise InputError(f"{path}: {part} has the intent {unknown!r}, which no training row has.")
        y = torch.tensor([codes[intent] if scoped else -1 for _, intent in pairs], dtype=torch.int64)
        parts[part] = Split(tuple(text for text, _ in pairs), y, numbered_ids(part, len(pairs)))
    train, validation, test = (parts.pop(part) for part in CLINC_PARTS)
    return DataSet("clinc150", train, test, classes, "text", validation=validation, extra=parts)


def _intents(pairs: Any, part: str, path: Path) -> list[tuple[str, str]]:
    if not isinstance(pairs, list) or not pairs:
        raise InputError(f"{path}: {part} must be a list of [text, intent] with at least one row.")
    for number, pair in enumerate(pairs, start=1):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(value, str) for value in pair):
            raise InputError(f"{path}: row {number} of {part} must be [text, intent], two strings.")
    return [(text, intent) for text, intent in pairs]
