"""Where a command's results go: files, and stdout for one of them."""

from __future__ import annotations

import errno
import glob
import io
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flipguard.reports.write import check_writable, write_text
from flipguard.types import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

STDOUT = "-"
# The second row of control characters, and those that turn the direction of writing.
_OBEYED = (*range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPED = {code: f"\\u{code:04x}" for code in _OBEYED}


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Every output must be writable, and none may be an input or another output. `outputs` is option to path."""
    sources = list(inputs)
    taken: dict[Path, str] = {Path(source).resolve(): source for source in sources}
    taken |= {Path(found).resolve(): source for source in sources for found in glob.glob(source, recursive=True)}
    folders = [Path(source).resolve() for source in sources if Path(source).is_dir()]
    for name in filter(None, (*taken.values(), *outputs.values())):
        if name.encode(errors="replace").decode() != name:
            raise InputError(f"the name {name!a} is not UTF-8: rename the file.")
    wanted = {option: path for option, path in outputs.items() if path is not None}
    on_stdout = [option for option, path in wanted.items() if path == STDOUT]
    if len(on_stdout) > 1:
        raise InputError(f"only one of {' and '.join(on_stdout)} can go to stdout (-): give the other a file.")
    for option, path in wanted.items():
        if path == STDOUT:
            continue
        place = Path(path).resolve()
        if any(place.is_relative_to(folder) for folder in folders):
            raise InputError(f"{option} {path} lies in a folder of predictions: write it somewhere else.")
        if place in taken:
            raise InputError(f"{option} {path} would overwrite {taken[place]}: choose another name.")
        check_writable(Path(path), option)
        if not place.exists() or place.is_file():
            taken[place] = f"what {option} writes"


def deliver(
    reports: Mapping[str | None, Callable[[], str]], table: Callable[[], RenderableType], *, plain: bool
) -> None:
    """Write each report to its file; on stdout the one that asked for it, else the table."""
    texts = {path: render() for path, render in reports.items() if path is not None}
    for path, text in texts.items():
        if path != STDOUT:
            write_text(Path(path), text)
    if STDOUT in texts:
        # JSON may hold these as they are, and some terminals obey them; no other text has them.
        say(texts[STDOUT].translate(_ESCAPED))
    else:
        _show(table(), plain=plain or not sys.stdout.isatty())


def _show(table: RenderableType, *, plain: bool) -> None:
    from rich.console import Console

    from flipguard.reports.terminal import plain_text

    if plain:
        say(plain_text(table))
    else:
        Console(highlight=False, emoji=False).print(table)


def say(text: str) -> None:
    """Print. A reader that has seen enough (`… | head`) and an encoding that lacks an arrow are no reason to fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # A reader that left, or a terminal that was closed; on a full disk the user must know.
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise InputError(f"the output cannot be written: {error.strerror}.") from error
        # Python would complain when it flushes again on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
