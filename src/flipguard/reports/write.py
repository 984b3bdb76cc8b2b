"""Output files: proved writable before the work, written beside and renamed after it."""

import os
from pathlib import Path

from flipguard.files import beside_of, is_special, whole_file
from flipguard.types import InputError


def check_writable(path: Path, option: str) -> None:
    """An error now rather than after a long comparison, if `path` cannot be written. Nothing is changed."""
    if path.is_dir():
        raise InputError(f"{option} {path} is a folder: a file's name is needed.")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{option} {path} cannot be written: there is no folder {folder}.")
    if is_special(path):
        # A pipe is not opened to see whether it can be: its reader would take the closing for the end.
        if not os.access(path, os.W_OK):
            raise InputError(f"{option} {path} cannot be written.")
        return
    try:
        beside = beside_of(path)
        beside.open("xb").close()
        beside.unlink()
    except OSError as error:
        raise InputError(f"{option} {path} cannot be written: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Whole or not at all. Pipes and devices are written to as they are."""
    with whole_file(path) as beside, beside.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
