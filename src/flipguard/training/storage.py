"""A folder on a storage that fsspec reaches (s3://, gs://, file://, …), for machines that share no disk.

There each file carries a part of its checksum in its name, and a numbered index says which of them make up the folder.
The index is written last: what a reader finds is the folder as it was at one moment, whatever was killed in between.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from flipguard.types import DamagedFile, FlipguardError, InputError, MissingExtra

_INDEX = re.compile(r"index\.(\d{6,})\.json")
Files = dict[str, dict[str, Any]]


def is_address(place: str) -> bool:
    """Whether a place is on a storage, and no path of this machine.

    >>> is_address("s3://bucket/runs"), is_address("runs/update")
    (True, False)
    """
    return "://" in place


def joined(place: str, *names: str) -> str:
    """A place within a place, both of which may be addresses.

    >>> joined("s3://bucket/runs/", "members", "a1")
    's3://bucket/runs/members/a1'
    """
    return "/".join((place.rstrip("/"), *names)) if is_address(place) else str(Path(place, *names))


class TakenOver(InputError):
    """Somebody else works on the folder by now."""


class Storage:
    """A folder kept at an address: `fetch` brings it here, `commit` puts a new state of it there."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url.rstrip("/"))
        except ImportError as error:
            raise MissingExtra(f"{url} cannot be reached: {_line(error)}") from error
        except Exception as error:
            raise InputError(f"{url} cannot be reached: {_line(error)}") from error
        # What a listing said a moment ago would hide what another machine has put there since.
        self._fs.use_listings_cache = False

    def index(self) -> tuple[int, Files]:
        """The files of the newest index that is whole, and the highest number that an index has, whole or not.

        (0, {}) when nothing is kept.
        """
        with self._explained("read"):
            numbers = sorted(self._numbers(), reverse=True)
            for number in numbers:
                found = _parsed(self._fs.cat_file(self._at(_index_name(number))))
                if found is not None:
                    return numbers[0], found
        return max(numbers, default=0), {}

    def fetch(self, folder: Path) -> Files:
        """Bring every file that is not here already, each checked against its checksum."""
        for attempt in range(5):
            number, files = self.index()
            try:
                for name, facts in files.items():
                    self._fetch_one(name, facts, folder)
                return files
            except FileNotFoundError:
                # A newer state took this one's place while it was read.
                if self.index()[0] == number and attempt:
                    raise DamagedFile(f"{self.url} lacks a file that its index names.", Path(self.url)) from None
        raise InputError(f"{self.url} changes faster than it can be read.")

    def _fetch_one(self, name: str, facts: Mapping[str, Any], folder: Path) -> None:
        target = folder / _safe(name, self.url)
        if target.is_file() and target.stat().st_size == facts["bytes"] and sha256_of(target) == facts["sha256"]:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with self._explained("read", FileNotFoundError):
                self._fs.get_file(self._at(_object_name(name, facts["sha256"])), str(beside))
            if sha256_of(beside) != facts["sha256"]:
                there = f"{self.url}/{_object_name(name, facts['sha256'])}"
                raise DamagedFile(
                    f"{there} is damaged: its content does not fit its checksum. Remove {self.url} to have it made "
                    "again.",
                    Path(there),
                )
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)

    def commit(self, files: Files, changed: Mapping[str, Path], before: tuple[int, Files]) -> tuple[int, Files]:
        """Put the changed files and then an index of all; what only the state before had goes away.

        Refused when somebody else has committed since: two that work on one folder would undo each other's work.
        """
        number, old = before
        with self._explained("written"):
            self._check_newest(number)
            for name, path in changed.items():
                target = self._at(_object_name(name, files[name]["sha256"]))
                self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
                self._fs.put_file(str(path), target)
            self._check_newest(number)
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(self._at(_index_name(number + 1)), _packed(files))
            kept = {_object_name(name, facts["sha256"]) for name, facts in files.items()}
            gone = [_object_name(name, facts["sha256"]) for name, facts in old.items()]
            passed = [_index_name(one) for one in self._numbers() if one <= number]
            for name in [*(name for name in gone if name not in kept), *passed]:
                self._fs.rm_file(self._at(name))
        return number + 1, files

    def _check_newest(self, number: int) -> None:
        if max(self._numbers(), default=0) != number:
            raise TakenOver(f"{self.url} was taken over by another process: this one stops.")

    def _numbers(self) -> list[int]:
        try:
            listed = self._fs.ls(self._root, detail=False, refresh=True)
        except FileNotFoundError:
            return []
        found = (_INDEX.fullmatch(str(name).rsplit("/", 1)[-1]) for name in listed)
        return [int(match[1]) for match in found if match is not None]

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _explained(self, what: str, *passed: type[Exception]) -> Iterator[None]:
        """Each backend has errors of its own; all of them mean that the storage is not at hand."""
        try:
            yield
        except Exception as error:
            if isinstance(error, (FlipguardError, *passed)):
                raise
            raise InputError(f"{self.url} cannot be {what}: {_line(error)}") from error


def _index_name(number: int) -> str:
    return f"index.{number:06d}.json"


def _object_name(name: str, checksum: str) -> str:
    """
    >>> _object_name("versions/new/model.safetensors", "0123456789abcdef")
    'versions/new/model.0123456789ab.safetensors'
    """
    path = PurePosixPath(name)
    return str(path.with_name(f"{path.stem}.{checksum[:12]}{path.suffix}"))


def _packed(files: Files) -> bytes:
    text = json.dumps(files, sort_keys=True)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "files": files}, indent=1).encode()


def _parsed(content: bytes) -> Files | None:
    """An index's files; None when it is not whole."""
    try:
        found = json.loads(content)
        files: Files = found["files"]
        text = json.dumps(files, sort_keys=True)
        return files if found["sha256"] == hashlib.sha256(text.encode()).hexdigest() else None
    except (ValueError, KeyError, TypeError):
        return None


def _safe(name: str, url: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InputError(f"{url} names a file outside of its folder: {name}.")
    return Path(path)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _line(error: Exception) -> str:
    return f"{' '.join(f'{error}'.split())[:200].rstrip('.') or type(error).__name__}."
