"""Commands that share a GPU train by turns: while one trains, the others prepare, save and compare.

Side by side they would take from each other what makes a card fast, its cache above all; one after another they would
leave it idle while the host captures steps, writes networks and compares them.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from flipguard.training import signals
from flipguard.types import InputError

EVERY = 0.05
"""Seconds after which a command that waits looks again."""


class Turns:
    """All commands name one `file`, and whoever has its lock trains; without a file it is always one's turn.

    The lock goes with its holder, however that ends. `waited` are the seconds that were spent waiting, in all.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file, self.waited, self.held = file, 0.0, file is None

    @contextmanager
    def mine(self) -> Iterator[None]:
        """Within, nobody else trains. Who is told to stop goes in at once: it has only to save where it is."""
        if self.file is None or self.held:
            yield
            return
        with _opened(self.file) as lock:
            began = time.perf_counter()
            while not _taken(lock) and not signals.asked():
                time.sleep(EVERY)
            self.waited += time.perf_counter() - began
            self.held = True
            try:
                yield
            finally:
                self.held = False

    def check(self) -> None:
        """Refuses a file that cannot be written, before anything is trained."""
        if self.file is not None:
            _opened(self.file).close()


def _opened(file: Path) -> TextIO:
    try:
        return file.open("a", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{file}, by which commands take turns, cannot be written: {error.strerror}.") from error


def _taken(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f"{lock.name} cannot be locked there ({error.strerror}): take turns by another file."
        ) from error
    return True
