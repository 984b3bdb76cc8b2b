"""Pieces of work in processes of this machine, each at the end of a pipe of its own.

Nothing is shared between two workers that one of them could take to its grave: a queue for all has a lock, and a worker
that is told to leave while it holds the lock leaves the others waiting for ever. (Python's own pool is built so.)
"""

import multiprocessing
import os
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from typing import Any

import torch

from flipguard._heap import keep_freed_memory
from flipguard.training import signals
from flipguard.training.errors import TrainingError
from flipguard.training.pool import Event, Hear, Piece, Queue

LOST = (
    "a member's process ended before it was done (out of memory, perhaps): run again with fewer processes; in a "
    "script, call this under `if __name__ == '__main__':`, as each process imports the script."
)


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, each with one thread, so that results do not depend on how many there are.

    What pieces share reaches each process once, through shared memory: torch's own pickling moves tensors there.
    """

    number: int

    def run(self, pieces: Sequence[Piece], hear: Hear) -> None:
        queue, shared = Queue(pieces), list({id(piece.shared): piece.shared for piece in pieces}.values())
        places = {id(value): place for place, value in enumerate(shared)}
        waiting: list[Piece] = []
        workers = [_Worker.started(shared) for _ in range(min(self.number, len(pieces)))]
        try:
            while queue:
                waiting += queue.ready()
                for worker in workers:
                    if waiting and worker.piece is None:
                        worker.begin(waiting.pop(0), places)
                for event in _heard(workers):
                    if event.kind == "done":
                        queue.done(event.key)
                    hear(event)
        except BaseException:
            # A signal reaches this process alone, and pieces take hours: each saves where it is and ends.
            for worker in workers:
                worker.process.terminate()
            raise
        finally:
            _dismiss(workers)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    piece: Piece | None = field(default=None)

    @classmethod
    def started(cls, shared: list[Any]) -> "_Worker":
        context = torch.multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_work, args=(shared, there))
        process.start()
        # Held here too, the far end would never be seen to close.
        there.close()
        return cls(process, here)

    def begin(self, piece: Piece, places: dict[int, int]) -> None:
        self.piece = piece
        try:
            self.pipe.send((piece.call, piece.arguments, places[id(piece.shared)]))
        except ConnectionError as error:
            raise TrainingError(LOST) from error


def _heard(workers: list[_Worker]) -> list[Event]:
    """What workers tell, once there is something; the error of a piece, or of a worker that is gone, is raised."""
    events = []
    ready = wait([worker.pipe for worker in workers])
    for worker in workers:
        if worker.pipe not in ready:
            continue
        try:
            kind, value = worker.pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise TrainingError(LOST) from error
        if kind == "failed":
            raise value
        assert worker.piece is not None
        events.append(Event(worker.piece.key, kind, value))
        if kind == "done":
            worker.piece = None
    return events


def _dismiss(workers: list[_Worker]) -> None:
    """Wait for all to leave: those without work when their pipe closes, others when they have saved. A second signal
    here means that nothing is worth waiting for."""
    try:
        for worker in workers:
            worker.pipe.close()
        for worker in workers:
            worker.process.join()
    except BaseException:
        for worker in workers:
            worker.process.kill()
        raise


def _work(shared: list[Any], pipe: Connection) -> None:
    begin_worker()
    while True:
        try:
            call, arguments, place = pipe.recv()
        except EOFError:
            return
        try:
            told = "done", call(shared[place], *arguments, say=partial(_say, pipe, "said"))
        except BaseException as error:
            told = "failed", _carried(error)
        # Where nobody listens any more, what was done is kept and what was cut off is saved: `recv` ends this process.
        _say(pipe, *told)


def _say(pipe: Connection, kind: str, value: Any) -> None:
    with suppress(ConnectionError):
        try:
            pipe.send((kind, value))
        except (TypeError, AttributeError, PicklingError) as error:
            pipe.send(("failed", TrainingError(f"{type(value).__name__} cannot leave its process: {error}")))


def _carried(error: BaseException) -> BaseException:
    """The error with a note of where it arose, or, where it cannot be built again elsewhere, what it says."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        copy(error)
    except Exception:
        return TrainingError(f"{type(error).__name__}: {error}")
    return error


def begin_worker() -> None:
    """A process that trains for another: one thread, its parent's signals, no life after its parent's; what it frees it
    keeps.

    A worker whose parent was killed would go on, beside the run that is started in its place.
    """
    torch.set_num_threads(1)
    keep_freed_memory()
    signals.heeded_by_worker()
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
