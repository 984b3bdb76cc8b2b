"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flipguard.types import InputError


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
                beside.replace(path.resolve())
        except BaseException:
            if not special:
                with suppress(OSError):
                    beside.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


def is_special(path: Path) -> bool:
    """A pipe, a device, or a folder: anything that is there and no plain file."""
    return path.exists() and not path.is_file()


def beside_of(path: Path) -> Path:
    """A hidden name in the same folder, another one for every process."""
    whole = path.resolve()
    return whole.with_name(f".{whole.name}.{os.getpid()}.part")
