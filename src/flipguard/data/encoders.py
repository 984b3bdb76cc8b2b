"""From texts to tensors of one length: a word list of our own, or a tokenizer file of the tokenizers library."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from flipguard.files import whole_file
from flipguard.types import InputError, MissingExtra

FORMAT = "flipguard words"
PAD, UNKNOWN = 0, 1
_WORD = re.compile(r"\w+|[^\w\s]")


@runtime_checkable
class Encoder(Protocol):
    """What turns texts into a network's inputs. It is part of a release, as the normalisation of images is."""

    @property
    def size(self) -> int:
        """How many tokens there are: a network's embedding has as many rows."""

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]: ...

    def write(self, path: str | Path) -> None: ...

    def fingerprint(self) -> str: ...


def _tensors(rows: Iterable[Sequence[int]], length: int, pad: int) -> dict[str, Tensor]:
    """Token ids and the mask of real tokens, int64 (N, length) both."""
    cut = [list(row[:length]) for row in rows]
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in cut], dtype=torch.int64).reshape(-1, length)
    sizes = torch.tensor([len(row) for row in cut], dtype=torch.int64)
    return {"input_ids": ids, "attention_mask": (torch.arange(length) < sizes[:, None]).long()}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _check_length(length: int) -> None:
    if length < 1:
        raise InputError(f"texts are cut or padded to a length of at least 1 token, not {length}.")


@dataclass(frozen=True)
class WordEncoder:
    """Lower-case words and single punctuation marks, by their place in a list; needs no library.

    Places 0 and 1 stand for padding and for words that are not in the list. A text without a single word is one
    unknown word, so that there is always a token to look at.

    >>> encoder = WordEncoder.learn(["A cat, a dog.", "a cow"], size=5, length=4)
    >>> encoder.words
    ('a', ',', '.')
    >>> encoder(["A bird."])["input_ids"].tolist(), encoder(["A bird."])["attention_mask"].tolist()
    ([[2, 1, 4, 0]], [[1, 1, 1, 0]])
    """

    words: tuple[str, ...]
    length: int = 64

    def __post_init__(self) -> None:
        _check_length(self.length)

    @classmethod
    def learn(cls, texts: Iterable[str], *, size: int = 20_000, length: int = 64) -> "WordEncoder":
        """The words that occur most often, equally frequent ones in the order of the alphabet; `size` tokens in all."""
        if size < 3:
            raise InputError(
                f"a word list has padding, the unknown word and at least one word: size {size} is too few."
            )
        counts = Counter(word for text in texts for word in _split(text))
        chosen = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
        return cls(tuple(chosen), length)

    @property
    def size(self) -> int:
        return len(self.words) + 2

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words, start=2)}

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        rows = ([self._places.get(word, UNKNOWN) for word in _split(text)] or [UNKNOWN] for text in texts)
        return _tensors(rows, self.length, PAD)

    def write(self, path: str | Path) -> None:
        """As JSON, written beside and renamed."""
        with whole_file(Path(path)) as beside:
            beside.write_text(self._text(), encoding="utf-8")

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with anything that decides the tensors."""
        return _digest(self._text())

    def _text(self) -> str:
        return json.dumps({"format": FORMAT, "length": self.length, "words": self.words}, ensure_ascii=False)


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class FileEncoder:
    """A tokenizer.json as the tokenizers library writes it and pretrained networks bring it; JSON, never code.

    `content` is the file's text, so that the encoder can travel to another process and into a release.
    """

    content: str
    length: int = 64

    def __post_init__(self) -> None:
        _check_length(self.length)
        # A file that cannot be read is refused here, not at the first text.
        assert self._tokenizer is not None

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            library = import_module("tokenizers")
        except ModuleNotFoundError as error:
            raise MissingExtra("a tokenizer.json needs tokenizers: pip install 'flipguard[text]'") from error
        try:
            tokenizer = library.Tokenizer.from_str(self.content)
        except Exception as error:
            raise InputError(f"the tokenizer cannot be read ({' '.join(str(error).split())}).") from error
        tokenizer.enable_truncation(self.length)
        tokenizer.no_padding()
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {"content": self.content, "length": self.length}

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def _pad(self) -> int:
        """The id of the padding token by its usual names; what stands there is masked, so any other would do."""
        found = [self._tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>", "<|endoftext|>")]
        return next((int(token) for token in found if token is not None), 0)

    def __call__(self, texts: Sequence[str]) -> dict[str, Tensor]:
        rows = (encoded.ids for encoded in self._tokenizer.encode_batch(list(texts)))
        return _tensors(rows, self.length, self._pad())

    def write(self, path: str | Path) -> None:
        """The tokenizer's own file with the length as its truncation, so that it reads back as it is."""
        with whole_file(Path(path)) as beside:
            beside.write_text(self._tokenizer.to_str(), encoding="utf-8")

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with anything that decides the tensors."""
        return _digest(f"{self.length} {self._tokenizer.to_str()}")


def read_encoder(path: str | Path, *, length: int | None = None) -> "WordEncoder | FileEncoder":
    """The encoder in a tokenizer.json, or in a folder that has one; `length` replaces the one it was written with."""
    path = Path(path)
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        content = path.read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is no readable tokenizer file ({error}).") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} is no tokenizer file: it must hold one JSON object.")
    if found.get("format") == FORMAT:
        try:
            words, kept = tuple(found["words"]), int(found["length"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is no readable tokenizer file: {error} is missing or of another kind.") from error
        return WordEncoder(words, length or kept)
    truncation: Mapping[str, Any] = found.get("truncation") or {}
    return FileEncoder(content, length or int(truncation.get("max_length", 64)))
