"""A folder on a storage that fsspec reaches (s3://, gs://, file://, …), for machines that share no disk.

There each file carries a part of its checksum in its name, and a numbered index says which of them make up the folder.
The index is written last: what a reader finds is the folder as it was at one moment, whatever was killed in between. An
index that is lost follows from the files.
"""

import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from flipguard.checkpoints import facts_in
from flipguard.types import DamagedFile, FlipguardError, InputError, MissingExtra

_INDEX = re.compile(r"index\.(\d{6,})\.json")
_OBJECT = re.compile(r"(?P<stem>.+)\.(?P<checksum>[0-9a-f]{12})(?P<suffix>\.[^./]+)?")
_REPAIR = "The same command with --repair makes it again, and nothing else."
_MARKED = (".safetensors", ".parquet", ".json", ".jsonl")
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
    if not is_address(place):
        return str(Path(place, *names))
    if place.rstrip("/").endswith(":"):
        raise InputError(f"{place} names no folder: write an address such as s3://bucket/folder or file:///folder.")
    return "/".join((place.rstrip("/"), *names))


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
        self._tried: tuple[int, Files] | None = None
        self._passed: set[str] = set()

    def index(self) -> tuple[int, Files]:
        """The files of the newest index that is whole, and the highest number that an index has, whole or not.

        (0, {}) when nothing is kept. When no index is whole, the files are those that fit the checksum in their names.
        """
        with self._explained("read"):
            numbers = sorted(self._numbers(), reverse=True)
            for number in numbers:
                found = _parsed(self._content(self._at(_index_name(number))))
                if found is not None:
                    return numbers[0], found
            return max(numbers, default=0), self._found() if numbers else {}

    def _found(self) -> Files:
        """The files by what lies there: of several states of one the furthest, as the others were about to go.

        How far one has come it says itself. Only between those that say nothing the storage's clock decides.
        """
        files: Files = {}
        furthest: dict[str, tuple[tuple[int, int], str]] = {}
        for there, facts in sorted(self._fs.find(self._root, detail=True).items()):
            match = _OBJECT.fullmatch(there.removeprefix(self._root).strip("/"))
            if match is None:
                continue
            name, content = f"{match['stem']}{match['suffix'] or ''}", self._content(there)
            checksum = hashlib.sha256(content).hexdigest()
            reached = (_progress(name, content), str(self._fs.modified(there)))
            if checksum.startswith(match["checksum"]) and reached >= furthest.get(name, reached):
                furthest[name] = reached
                files[name] = {"sha256": checksum, "bytes": facts["size"]}
        return files

    def _content(self, there: str) -> bytes:
        """What a file holds; nothing when the storage itself finds it damaged."""
        try:
            content: bytes = self._fs.cat_file(there)
        except Exception as error:
            if not _is_damage(error):
                raise
            return b""
        return content

    def fetch(self, folder: Path, *, only: Collection[str] | None = None) -> Files:
        """Bring every file that is not here already, or some `only`, each checked against its checksum."""
        for attempt in range(5):
            number, files = self.index()
            files = files if only is None else {name: facts for name, facts in files.items() if name in only}
            try:
                for name, facts in files.items():
                    self._fetch_one(name, facts, folder)
                return files
            except FileNotFoundError:
                # A newer state took this one's place while it was read.
                if self.index()[0] == number and attempt:
                    there = f"{self.url}/{_object_name(name, facts['sha256'])}"
                    raise DamagedFile(f"{there} is gone, though its index names it. {_REPAIR}", Path(there)) from None
        raise InputError(f"{self.url} changes faster than it can be read.")

    def _fetch_one(self, name: str, facts: Mapping[str, Any], folder: Path) -> None:
        target = folder / _safe(name, self.url)
        if target.is_file() and target.stat().st_size == facts["bytes"] and sha256_of(target) == facts["sha256"]:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            with self._explained("read", FileNotFoundError):
                whole = self._get(_object_name(name, facts["sha256"]), beside)
            if not whole or sha256_of(beside) != facts["sha256"]:
                there = f"{self.url}/{_object_name(name, facts['sha256'])}"
                raise DamagedFile(f"{there} is damaged: its content does not fit its checksum. {_REPAIR}", Path(there))
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)

    def _get(self, name: str, target: Path) -> bool:
        """Bring a file; whether the storage did so without complaint of its own about its content."""
        try:
            self._fs.get_file(self._at(name), str(target))
        except Exception as error:
            if not _is_damage(error):
                raise
            return False
        return True

    def repair(self, instead: Mapping[str, str], *, marked: bool) -> list[str]:
        """Read every file; those that are damaged or gone leave the folder. Returns their addresses.

        In their place comes what `instead` has by name or, when `marked`, something that cannot be read, by which a
        run sees that it has lost the file.
        """
        before = self.index()
        files, lost, changed = dict(before[1]), [], {}  # type: Files, list[str], dict[str, Path]
        with tempfile.TemporaryDirectory(prefix="flipguard-repair-") as scratch:
            for name, facts in before[1].items():
                try:
                    self._fetch_one(name, facts, Path(scratch))
                    (Path(scratch) / name).unlink()
                except (DamagedFile, FileNotFoundError):
                    lost.append(f"{self.url}/{_object_name(name, facts['sha256'])}")
                    del files[name]
                    text = instead.get(name, "damaged" if marked and name.endswith(_MARKED) else None)
                    if text is not None:
                        changed[name] = Path(scratch, f"{len(lost)}")
                        changed[name].write_text(text, encoding="utf-8")
                        files[name] = facts_of(changed[name])
            if lost:
                self.commit(files, changed, before)
        return lost

    def commit(self, files: Files, changed: Mapping[str, Path], before: tuple[int, Files]) -> tuple[int, Files]:
        """Put the changed files and then an index of all; what only the state before had goes away.

        Refused when somebody else has committed since: two that work on one folder would undo each other's work.
        """
        with self._explained("written"):
            number, old = self._reached(before)
            for name, path in changed.items():
                target = self._at(_object_name(name, files[name]["sha256"]))
                self._fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
                self._fs.put_file(str(path), target)
            number, old = self._reached((number, old))
            self._fs.makedirs(self._root, exist_ok=True)
            self._tried = (number + 1, files)
            self._fs.pipe_file(self._at(_index_name(number + 1)), _packed(files))
        kept = {_object_name(name, facts["sha256"]) for name, facts in files.items()}
        self._passed |= {_object_name(name, facts["sha256"]) for name, facts in old.items()} - kept
        self._clear(number, kept)
        return number + 1, files

    def _reached(self, before: tuple[int, Files]) -> tuple[int, Files]:
        """The state to go on from: the one before, or what was put there though the storage's answer was lost."""
        newest = max(self._numbers(), default=0)
        if newest == before[0]:
            return before
        if self._tried is not None and newest == self._tried[0] and self.index() == self._tried:
            return self._tried
        raise TakenOver(f"{self.url} was taken over by another process: this one stops.")

    def _clear(self, number: int, kept: set[str]) -> None:
        """Remove what an earlier state had; what cannot be removed now does no harm, and goes the next time."""
        # A file may have come back to what it was.
        self._passed -= kept
        with suppress(Exception):
            for name in [*sorted(self._passed), *(_index_name(one) for one in self._numbers() if one <= number)]:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._at(name))
                self._passed.discard(name)

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
    """An index's files; None when it is not whole, or says of a file what no index says.

    >>> [_parsed(_packed({"a": {"sha256": each, "bytes": 3}})) is None for each in ("0f", 5)]
    [False, True]
    """
    try:
        found = json.loads(content)
        files: Files = found["files"]
        text = json.dumps(files, sort_keys=True)
        told = [(facts["sha256"], facts["bytes"]) for facts in files.values()]
        fits = found["sha256"] == hashlib.sha256(text.encode()).hexdigest()
        return files if fits and all(isinstance(s, str) and isinstance(b, int) for s, b in told) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _progress(name: str, content: bytes) -> tuple[int, int]:
    """Epoch and step of a training's state, epochs of its figures; (-1, -1) of what says nothing of them.

    >>> _progress("metrics.jsonl", b'{"epoch": 0}\\n{"epoch": 1}\\n'), _progress("spec.yaml", b"a: 1")
    ((2, 0), (-1, -1))
    """
    if name.endswith(".jsonl"):
        return content.count(b"\n"), 0
    try:
        facts = facts_in(io.BytesIO(content), len(content)) if name.endswith(".safetensors") else {}
        return int(facts["epoch"]), int(facts["step"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return -1, -1


def _is_damage(error: Exception) -> bool:
    """Whether a backend found by a checksum of its own that what it sent is not what was stored.

    Each has a class for that, whose name or text says so (botocore's FlexibleChecksumError, gcsfs's ChecksumError).
    """
    return not isinstance(error, FlipguardError) and "checksum" in f"{type(error).__name__} {error}".lower()


def _safe(name: str, url: str) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise InputError(f"{url} names a file outside of its folder: {name}.")
    return Path(path)


def facts_of(path: Path) -> dict[str, Any]:
    """What an index says of a file."""
    return {"sha256": sha256_of(path), "bytes": path.stat().st_size}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _line(error: Exception) -> str:
    return f"{' '.join(f'{error}'.split())[:200].rstrip('.') or type(error).__name__}."
