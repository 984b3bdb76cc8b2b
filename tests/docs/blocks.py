"""The fenced blocks of a Markdown page, and how each kind is run.

`sh` blocks are run by bash, `console` blocks command by command with what they print compared to what is shown (`…` on
a line of its own stands for any lines), `python` blocks in one namespace per page. A block with `title="FILE"` is
written to that file, whatever its language. A comment on the line above a fence changes that:

    <!-- not run: REASON -->      for what needs a server, say; the site shows the reason
    <!-- exits 1 -->              the commands end with this status
    <!-- output differs -->       between machines: run, not compared; also as "exits 1, output differs"
"""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)$")
TITLE = re.compile(r'title="([^"]+)"')
NOT_RUN = re.compile(r"<!-- not run: .+ -->")
EXITS = re.compile(r"<!-- exits (\d+)\b")
DIFFERS = "output differs"
RUN = ("sh", "console", "python")
SHOWN = ("yaml", "toml", "text", "json")


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    title: str | None = None
    mark: str = ""

    @property
    def is_run(self) -> bool:
        return self.title is None and self.language in RUN and not NOT_RUN.fullmatch(self.mark)

    @property
    def status(self) -> int:
        found = EXITS.match(self.mark)
        return int(found[1]) if found else 0


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block of a page, in order."""
    lines, place = text.splitlines(), 0
    while place < len(lines):
        opened = FENCE.match(lines[place])
        if opened is None:
            place += 1
            continue
        end = place + 1
        while end < len(lines) and lines[end].strip() != opened["ticks"]:
            end += 1
        indent = len(opened["indent"])
        inner = "\n".join(line[indent:] for line in lines[place + 1 : end]) + "\n"
        words = opened["info"].split()
        title = TITLE.search(opened["info"])
        mark = lines[place - 1].strip() if place and lines[place - 1].strip().startswith("<!--") else ""
        yield Block(words[0] if words else "", inner, place + 1, title[1] if title else None, mark)
        place = end + 1


def run(block: Block, folder: Path, environment: dict[str, str], names: dict[str, Any], page: str) -> None:
    """Run a block, or write it to its file; an AssertionError says what went wrong."""
    if block.title is not None:
        (folder / block.title).write_text(block.text, encoding="utf-8")
    elif not block.is_run:
        return
    elif block.language == "python":
        exec(compile("\n" * block.line + block.text, page, "exec"), names)
    elif block.language == "sh":
        _shell(block.text, block.status, folder, environment)
    else:
        for command, shown in session(block.text):
            said = _shell(command, block.status, folder, environment)
            if DIFFERS not in block.mark:
                assert agrees(shown, said), f"$ {command}\nprints\n{said}\nwhere {page} shows\n{shown}"


def session(text: str) -> list[tuple[str, str]]:
    """The commands of a console block, each with what it is shown to print.

    >>> session("$ a \\\\\\n    b\\n1\\n$ c\\n")
    [('a \\\\\\n    b', '1'), ('c', '')]
    """
    found: list[tuple[list[str], list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif found[-1][0][-1].endswith("\\") and not found[-1][1]:
            found[-1][0].append(line)
        else:
            found[-1][1].append(line)
    return [("\n".join(command), "\n".join(shown)) for command, shown in found]


def agrees(shown: str, said: str) -> bool:
    """Whether the lines are the same, but for what `…` leaves out.

    >>> agrees("a\\n…\\nd", "a\\nb\\nc\\nd"), agrees("a\\nd", "a\\nb\\nd")
    (True, False)
    """
    wanted = [line.rstrip() for line in shown.strip().splitlines()]
    there = "\n".join(line.rstrip() for line in said.strip().splitlines())
    pattern = "\n".join("(?:.*\n)*.*" if line == "…" else re.escape(line) for line in wanted)
    return re.fullmatch(pattern, there) is not None


def _shell(script: str, status: int, folder: Path, environment: dict[str, str]) -> str:
    command = ["bash", "-c", f"set -eo pipefail\n{script}"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == status, f"exit {done.returncode}\n{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout
