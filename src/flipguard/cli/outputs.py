"""Where a command's results go: files, and stdout for one of them."""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flipguard.reports.write import check_writable, write_text
from flipguard.types import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

STDOUT = "-"


def check_outputs(outputs: Mapping[str, str | None], inputs: Iterable[str]) -> None:
    """Every output must be writable, and none may be an input or another output. `outputs` is option to path."""
    taken: dict[Path, str] = {Path(source).resolve(): source for source in inputs}
    wanted = {option: path for option, path in outputs.items() if path is not None}
    on_stdout = [option for option, path in wanted.items() if path == STDOUT]
    if len(on_stdout) > 1:
        raise InputError(f"only one of {' and '.join(on_stdout)} can go to stdout (-): give the other a file.")
    for option, path in wanted.items():
        if path == STDOUT:
            continue
        place = Path(path).resolve()
        if place in taken:
            raise InputError(f"{option} {path} would overwrite {taken[place]}: choose another name.")
        check_writable(Path(path), option)
        if not place.exists() or place.is_file():
            taken[place] = f"what {option} writes"


def deliver(
    reports: Mapping[str | None, Callable[[], str]], table: "Callable[[], RenderableType]", *, plain: bool
) -> None:
    """Write each report to its file; on stdout the one that asked for it, else the table."""
    texts = {path: render() for path, render in reports.items() if path is not None}
    for path, text in texts.items():
        if path != STDOUT:
            write_text(Path(path), text)
    if isinstance(sys.stdout.encoding, str) and hasattr(sys.stdout, "reconfigure"):
        # An arrow that a terminal's encoding lacks shows as "?"; it is no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    if STDOUT in texts:
        sys.stdout.write(texts[STDOUT])
    else:
        _show(table(), plain=plain or not sys.stdout.isatty())


def _show(table: "RenderableType", *, plain: bool) -> None:
    from rich.console import Console

    from flipguard.reports.terminal import plain_text

    if plain:
        sys.stdout.write(plain_text(table))
    else:
        Console(highlight=False, emoji=False).print(table)
