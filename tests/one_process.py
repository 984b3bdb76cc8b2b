"""`flipguard` commands one after another in one process of their own: it starts, and imports, once for all of them."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

_IN_TURN = """
import contextlib, io, json, sys
from flipguard.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["flipguard", *words]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


class Done(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    stdout: str
    stderr: str


def in_turn(folder: Path, *commands: Sequence[object]) -> list[Done]:
    """Each by the real entry point, in the folder; what one has imported the next finds."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", _IN_TURN, words], capture_output=True, text=True, cwd=folder, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [Done(*json.loads(line)) for line in done.stdout.splitlines()]
