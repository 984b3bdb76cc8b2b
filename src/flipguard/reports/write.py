"""Output files: proved writable before the work, written beside and renamed after it."""

import os
from pathlib import Path

from flipguard.types import InputError


def check_writable(path: Path, option: str) -> None:
    """An error now rather than after a long comparison, if `path` cannot be written. Nothing is changed."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: a file's name is needed.")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{option} {path} cannot be written: there is no folder {folder}.")
    if _is_special(path):
        # A pipe is not opened to see whether it can be: its reader would take the closing for the end.
        if not os.access(path, os.W_OK):
            raise InputError(f"{option} {path} cannot be written.")
        return
    try:
        beside = _beside(path)
        beside.open("xb").close()
        beside.unlink()
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: beside first, then renamed. Pipes and devices are written to as they are."""
    beside = path if _is_special(path) else _beside(path)
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        if beside is not path:
            beside.replace(path.resolve())
    except OSError as error:
        if beside is not path:
            beside.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _beside(path: Path) -> Path:
    whole = path.resolve()
    return whole.with_name(f".{whole.name}.{os.getpid()}.part")
