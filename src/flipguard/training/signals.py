"""Ctrl-C, a closed terminal, a polite kill: the step at hand is finished and saved before a run stops.

A handler that raised in the middle of a step would leave weights and optimiser out of step with each other. So while a
run is at work, a signal is only noted, and the loop asks for it between two steps; at any other moment, and when it is
sent a second time, it raises at once.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop; what it had done is saved. `status` is the shell's exit status for it.

    >>> Stopped(signal.SIGHUP).status
    129
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        return 128 + self.number


_working = 0
_noted: int | None = None


@contextmanager
def heeded() -> Iterator[None]:
    """Within, signals stop a run between two steps. What the caller's shell ignores (`nohup`) stays ignored."""
    global _noted
    before = {number: signal.getsignal(number) for number in STOPPING}
    mine = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in mine:
        signal.signal(number, _raise_or_note)
    try:
        yield
    finally:
        _noted = None
        for number in mine:
            signal.signal(number, before[number])


def heeded_by_worker() -> None:
    """In a process that works for another: the terminal's signals are the parent's business, which sends SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave_or_note)


@contextmanager
def at_work() -> Iterator[None]:
    """Within, a signal is noted; on leaving well, one that nobody asked for is raised."""
    global _working
    _working += 1
    try:
        yield
    finally:
        _working -= 1
    if not _working:
        stop_if_asked()


def asked() -> bool:
    """Whether a signal was noted."""
    return _noted is not None


def stop_if_asked() -> None:
    if _noted is not None:
        raise Stopped(_noted)


def _is_noted(number: int) -> bool:
    global _noted
    if not _working or _noted is not None:
        return False
    _noted = number
    return True


def _raise_or_note(number: int, frame: FrameType | None) -> Any:
    if not _is_noted(number):
        raise Stopped(number)


def _leave_or_note(number: int, frame: FrameType | None) -> Any:
    if not _is_noted(number):
        # Raised while it waits for work, it would be a traceback on the parent's terminal.
        os._exit(128 + number)
