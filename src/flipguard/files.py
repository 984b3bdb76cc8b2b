"""Files that are there whole or not at all, and that tell when they are no longer what was written."""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO

from flipguard.types import InputError

EMPTY_SEAL = f"sha256:{0:064x}:{0:016d}"
"""The place that a file leaves for its seal: the checksum of the file as it is with this text in it, and its length."""

MOST_UNPACKED, MOST_RATIO = 1 << 30, 200
"""A packed file is refused when it unpacks to more than the first, and to more than so many times its own size."""

_FILLED = re.compile(rb"sha256:([0-9a-f]{64}):([0-9]{16})")
_CHUNK = _WINDOW = 1 << 20


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """The path to write to: a file beside the target, which takes its place on leaving, and goes away on any error.

    A link is followed; a pipe or a device is written to as it is. What the system refuses is an InputError.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "x.txt"
    >>> with whole_file(target) as beside:
    ...     _ = beside.write_text("all of it")
    >>> target.read_text()
    'all of it'
    """
    special = is_special(path)
    try:
        beside = path if special else beside_of(path)
        try:
            yield beside
            if not special:
                # First to the disk, then to its name: after a power cut the name holds the old file or the new one.
                to_disk(beside)
                beside.replace(path.resolve())
                to_disk(beside.parent)
        except BaseException:
            if not special:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


def to_disk(path: Path) -> None:
    """Wait until the disk has it. Some network drives refuse that for folders, and are taken as they are."""
    place = os.open(path, os.O_RDONLY)
    try:
        with suppress(OSError) if path.is_dir() else nullcontext():
            os.fsync(place)
    finally:
        os.close(place)


def check_unpacked(path: Path, packed: int, unpacked: int) -> None:
    """Refuse a file that unpacks to far more than it could honestly hold: a few megabytes can fill any memory.

    >>> check_unpacked(Path("zeros.npz"), packed=2_000_000, unpacked=2_000_000_000)
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: zeros.npz has 2,000,000 bytes and unpacks to over 2,000,000,000: it is refused.
    """
    if unpacked > MOST_UNPACKED and unpacked > MOST_RATIO * packed:
        raise InputError(f"{path} has {packed:,} bytes and unpacks to over {unpacked:,}: it is refused.")


def is_special(path: Path) -> bool:
    """A pipe, a device, or a folder: anything that is there and no plain file."""
    return path.exists() and not path.is_file()


def beside_of(path: Path) -> Path:
    """A hidden name in the same folder, another one for every process."""
    whole = path.resolve()
    return whole.with_name(f".{whole.name}.{os.getpid()}.part")


def seal(file: BinaryIO, *, at_end: bool) -> None:
    """Fill the empty seal of a file that is open for reading and writing: the first in it, or the last.

    >>> import io
    >>> file = io.BytesIO(b"weights " + EMPTY_SEAL.encode())
    >>> seal(file, at_end=True)
    >>> seal_holds(file, at_end=True)
    True
    >>> seal_holds(io.BytesIO(file.getvalue().replace(b"weights", b"wdights")), at_end=True)
    False
    """
    found = _find(file, re.compile(EMPTY_SEAL.encode()), at_end=at_end)
    assert found is not None, "the file was written without an empty seal"
    start, _ = found
    filled = f"sha256:{_digest(file, start)}:{_length(file):016d}"
    file.seek(start)
    file.write(filled.encode())


def seal_holds(file: BinaryIO, *, at_end: bool) -> bool:
    """False when a file differs from what was sealed.

    A file without a seal, or one whose seal was carried over by another program that wrote it anew (it then has another
    length), cannot be judged: True.
    """
    found = _find(file, _FILLED, at_end=at_end)
    if found is None or int(found[1][2]) != _length(file):
        return True
    start, match = found
    return _digest(file, start) == match[1].decode()


def _length(file: BinaryIO) -> int:
    return file.seek(0, os.SEEK_END)


def _find(file: BinaryIO, pattern: re.Pattern[bytes], *, at_end: bool) -> tuple[int, re.Match[bytes]] | None:
    """Where a seal stands, within a megabyte of the beginning or the end."""
    start = max(0, _length(file) - _WINDOW) if at_end else 0
    file.seek(start)
    found = list(pattern.finditer(file.read(_WINDOW)))
    if not found:
        return None
    match = found[-1] if at_end else found[0]
    return start + match.start(), match


def _digest(file: BinaryIO, start: int) -> str:
    """The checksum of the file as it is with an empty seal."""
    hashed = hashlib.sha256()
    for piece in (range(start), range(start + len(EMPTY_SEAL), _length(file))):
        file.seek(piece.start)
        for place in range(piece.start, piece.stop, _CHUNK):
            hashed.update(file.read(min(_CHUNK, piece.stop - place)))
        if piece.start == 0:
            hashed.update(EMPTY_SEAL.encode())
    return hashed.hexdigest()
