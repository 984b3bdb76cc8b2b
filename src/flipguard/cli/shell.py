"""How a command ends: one line for what went wrong, the exit code, and options that take several values."""

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from flipguard.types import FlipguardError

REFUSED, BAD_INPUT, INTERRUPTED = 1, 2, 130


class OneLineErrors(TyperGroup):
    """A group of commands whose errors are one line on stderr and exit 2; a traceback comes only with --debug."""

    def main(self, args: Sequence[str] | None = None, *positional: Any, **options: Any) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        options["standalone_mode"] = False
        try:
            code = super().main(given, *positional, **options) or 0
        except Exception as error:
            if "--debug" in given:
                sys.stderr.write(without_controls(traceback.format_exc()))
            code = INTERRUPTED if _is_interrupt(error) else BAD_INPUT
            complain("interrupted." if code == INTERRUPTED else one_line(error))
        sys.exit(code)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


def _is_interrupt(error: Exception) -> bool:
    return isinstance(error, typer.Abort) or type(error).__name__ == "InterruptException"


def command_line() -> str:
    """The command as it was typed, quoted so that it can be typed again."""
    return shlex.join(["flipguard", *sys.argv[1:]])


def complain(message: str) -> None:
    with suppress(OSError):
        print(f"flipguard: {message}", file=sys.stderr)


def without_terminal() -> None:
    """Where the terminal is gone, nothing more can be said: Python would fail when it flushes on exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def without_controls(text: str) -> str:
    """Lines as they are, but for characters that a terminal would obey: data stands in messages.

    >>> without_controls("a\\x1b[31mb\\x9bc\\n")
    'a[31mbc\\n'
    """
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


def one_line(error: Exception) -> str:
    """What went wrong, on one line. A usage error names the help to read; what nobody foresaw says its type."""
    if isinstance(error, FlipguardError):
        message = str(error)
    elif hasattr(error, "format_message"):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "flipguard"
        said = _in_our_words(error.format_message()).rstrip(".")
        message = f"{said}{'' if said.endswith('?') else '.'} See {path} --help."
    else:
        message = f"{type(error).__name__}: {error} (--debug shows where)"
    return "".join(c for c in " ".join(message.split()) if c.isprintable())


def _in_our_words(message: str) -> str:
    """Without what pydantic, by which values are read, says of itself; of names that are alike the nearest.

    >>> _in_our_words("Invalid value for '--n': Input should be a valid integer, unable to parse string as an integer")
    "Invalid value for '--n': it should be a valid integer"
    >>> _in_our_words("Invalid value for 'kind': Value error, 'trian' is not one of 'matrix', 'train'.")
    "Invalid value for 'kind': 'trian' is not one of 'matrix', 'train'; did you mean 'train'?"
    """
    message = re.sub(r": Input should (be .*?)(, unable to .*)?$", r": it should \1", message)
    message = message.replace(": Value error, ", ": ", 1)
    choice = re.search(r"'([^']*)' is not one of (.*?)\.?$", message)
    close = get_close_matches(choice[1], re.findall(r"'([^']*)'", choice[2]), n=1) if choice is not None else []
    return f"{message.rstrip('.')}; did you mean '{close[0]}'?" if close else message


class SeveralValues(TyperCommand):
    """A command whose repeatable options take several values after one flag: `--noise a b` is `--noise a --noise b`.

    Only once all positional arguments have been seen, so that `--noise a OLD NEW` means what it says; a setting after a
    setting, as in `RUN --data name=table folder=mine`, is none that may be left out.
    """

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, self.repeat_flags(args))

    def repeat_flags(self, args: Sequence[str]) -> list[str]:
        options = {name: p for p in self.params if p.param_type_name == "option" for name in p.opts}
        # An argument that takes any number of words takes those before the first flag.
        arguments = [p for p in self.params if p.param_type_name == "argument" and p.nargs != -1]
        missing, optional = len(arguments), sum(not p.required for p in arguments)
        spread: list[str] = []
        flag, takes_value = None, False
        for place, word in enumerate(args):
            if word == "--":
                return [*spread, *args[place:]]
            if takes_value:
                takes_value = False
            elif word.startswith("-") and word != "-":
                option = options.get(word.partition("=")[0])
                takes_value = "=" not in word and option is not None and not getattr(option, "is_flag", False)
                flag = word.partition("=")[0] if option is not None and option.multiple else None
            elif flag is not None and missing <= (optional if _are_settings(args[place - 1 : place + 1]) else 0):
                spread.append(flag)
            else:
                missing -= 1
            spread.append(word)
        return spread


def _are_settings(words: Sequence[str]) -> bool:
    return all(re.match(r"[A-Za-z_][\w.]*=", word) for word in words)


class ClusterFirst(SeveralValues):
    """`spark://… OLD NEW` means `--spark spark://… OLD NEW`: where the tables are comes first, as in a path."""

    def repeat_flags(self, args: Sequence[str]) -> list[str]:
        named = args and args[0].startswith("spark://")
        return super().repeat_flags(["--spark", *args] if named else args)
