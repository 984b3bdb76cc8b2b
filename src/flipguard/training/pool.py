"""Where independent work is done: in this process, in several on this machine, or wherever else a pool reaches.

A pool takes pieces that do not depend on what others have in memory, does them somewhere, and tells what happens. It
knows nothing of networks: members, whole runs and the cells of a study are all pieces.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import Any, Literal, Protocol

import torch

from flipguard.training import signals
from flipguard.training.errors import TrainingError

HEAR_SECONDS = 0.2


@dataclass(frozen=True)
class Resources:
    """What a piece needs while it runs. A pool on one machine gives every piece one thread, whatever this says."""

    cpus: float = 1.0
    gpus: float = 0.0


@dataclass(frozen=True)
class Piece:
    """Work that can be done anywhere: `call(shared, *arguments, say=say)`.

    `call` is a function that can be imported there. `shared` is what several pieces have in common (a data set): it
    travels once. With `say` the call tells how it goes. Whatever it makes it must keep by itself, so that a piece that
    is begun a second time goes on where the first was cut off; its return value should be small.
    """

    key: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    shared: Any = None
    resources: Resources = field(default_factory=Resources)
    after: frozenset[str] = frozenset()
    """Keys of pieces that must be done before this one begins."""


@dataclass(frozen=True)
class Event:
    """What became known of a piece: it was `done` (its value is what the call returned), it `said` something, its
    worker was `lost` and it is begun again, or it `waits` for a machine that can do it (the value is a text)."""

    key: str
    kind: Literal["said", "lost", "waits", "done"]
    value: Any = None


Hear = Callable[[Event], None]


class Pool(Protocol):
    """Does pieces somewhere. The first error of a piece ends the others, in a state to go on from, and is raised."""

    def run(self, pieces: Sequence[Piece], hear: Hear) -> None: ...


class Queue:
    """Pieces that are still to be done, handed out once those that they wait for are done.

    >>> queue = Queue([Piece("b", print, after=frozenset({"a"})), Piece("a", print)])
    >>> [piece.key for piece in queue.ready()]
    ['a']
    >>> queue.ready()
    []
    >>> queue.done("a")
    >>> [piece.key for piece in queue.ready()]
    ['b']
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._waiting = list(pieces)
        self._open = {piece.key for piece in pieces}
        if len(self._open) != len(pieces):
            raise ValueError("two pieces of work have the same key.")
        for piece in pieces:
            if not piece.after <= self._open:
                raise ValueError(f"{piece.key} waits for what nobody does: {sorted(piece.after - self._open)}.")

    def __bool__(self) -> bool:
        return bool(self._open)

    def ready(self) -> list[Piece]:
        """Those that can begin now; each is handed out once."""
        found = [piece for piece in self._waiting if not piece.after & self._open]
        self._waiting = [piece for piece in self._waiting if piece.after & self._open]
        if not found and self._waiting and {piece.key for piece in self._waiting} == self._open:
            raise ValueError(f"{self._waiting[0].key} waits for itself.")
        return found

    def done(self, key: str) -> None:
        self._open.remove(key)


class Here:
    """One piece after another in this process."""

    def run(self, pieces: Sequence[Piece], hear: Hear) -> None:
        queue = Queue(pieces)
        while queue:
            for piece in queue.ready():

                def say(value: Any, key: str = piece.key) -> None:
                    hear(Event(key, "said", value))

                value = piece.call(piece.shared, *piece.arguments, say=say)
                queue.done(piece.key)
                hear(Event(piece.key, "done", value))


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, each with one thread, so that results do not depend on how many there are.

    What pieces share reaches each process once, through shared memory: torch's own pickling moves tensors there.
    """

    number: int

    def run(self, pieces: Sequence[Piece], hear: Hear) -> None:
        queue, shared = Queue(pieces), list({id(piece.shared): piece.shared for piece in pieces}.values())
        places = {id(value): place for place, value in enumerate(shared)}
        context: BaseContext = torch.multiprocessing.get_context("spawn")
        said = context.SimpleQueue()
        before = set(multiprocessing.active_children())
        running: dict[Future[Any], str] = {}
        with ProcessPoolExecutor(self.number, context, initializer=_enter, initargs=(shared, said)) as pool:
            try:
                while queue:
                    for piece in queue.ready():
                        work = (piece.key, piece.call, piece.arguments, places[id(piece.shared)])
                        running[pool.submit(_do, *work)] = piece.key
                    finished, _ = wait(running, HEAR_SECONDS, FIRST_COMPLETED)
                    while not said.empty():
                        hear(Event(*said.get()))
                    for future in finished:
                        key, value = running.pop(future), future.result()
                        queue.done(key)
                        hear(Event(key, "done", value))
            except BrokenProcessPool as error:
                raise TrainingError(
                    "a member's process ended before it was done (out of memory, perhaps): run again with fewer "
                    "processes; in a script, call this under `if __name__ == '__main__':`, as each process imports the "
                    "script."
                ) from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                # A signal reaches this process alone, and leaving the pool waits for pieces that take hours: each saves
                # where it is and ends.
                for worker in set(multiprocessing.active_children()) - before:
                    worker.terminate()
                raise


_shared: list[Any] = []
_said: Any = None


def _enter(shared: list[Any], said: Any) -> None:
    global _shared, _said
    begin_worker()
    _shared, _said = shared, said


def begin_worker() -> None:
    """A process that trains for another: one thread, its parent's signals, and no life after its parent's.

    A worker whose parent was killed would go on, beside the run that is started in its place.
    """
    torch.set_num_threads(1)
    signals.heeded_by_worker()
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _do(key: str, call: Callable[..., Any], arguments: tuple[Any, ...], place: int) -> Any:
    return call(_shared[place], *arguments, say=lambda value: _said.put((key, "said", value)))
