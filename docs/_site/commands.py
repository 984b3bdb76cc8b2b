"""The command reference, from the application itself."""

import inspect
import re
from typing import Any

from typer.main import get_command

from flipguard.cli.app import app

ESCAPED = str.maketrans({"|": "\\|", "<": "&lt;", "*": "\\*"})


def page() -> str:
    root: Any = get_command(app)
    lines = ["# Commands", "", root.help, ""]
    lines += ["`flipguard --version` prints the version; every command has `--help`.", ""]
    for name, command in root.commands.items():
        lines += _section(name, command)
    return "\n".join(lines) + "\n"


def _section(name: str, command: Any) -> list[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    usage = " ".join(each.metavar or each.name.upper() for each in arguments)
    lines = [f"## flipguard {name}", "", f"    flipguard {name} {usage} [OPTIONS]".replace("  [", " ["), ""]
    lines += [inspect.cleandoc(command.help or ""), ""]
    if arguments:
        rows = [f"| `{each.metavar or each.name.upper()}` | {_text(each.help)} |" for each in arguments]
        lines += ["| argument | |", "|---|---|", *rows, ""]
    for panel in dict.fromkeys(each.rich_help_panel or "Options" for each in options):
        rows = [_row(each) for each in options if (each.rich_help_panel or "Options") == panel]
        lines += [f"| {panel} | |", "|---|---|", *rows, ""]
    examples = [line.strip() for line in (command.epilog or "").splitlines()[1:] if line.strip()]
    if examples:
        lines += ["```sh", *examples, "```", ""]
    return lines


def _row(option: Any) -> str:
    flags = "/".join((*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    shown = option.default if not option.is_flag and option.default not in (None, "", ()) else None
    default = "" if shown is None or callable(shown) else f" Default: {shown}."
    return f"| `{flags}{value}` | {_text(option.help)}{default} |"


def _text(words: str | None) -> str:
    return re.sub(r"\s+", " ", words or "").translate(ESCAPED)
