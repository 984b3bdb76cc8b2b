"""Where independent work is done: in this process, in several of this machine, or wherever else a pool reaches.

A pool takes pieces that do not depend on what others have in memory, does them somewhere, and tells what happens. It
knows nothing of networks: members, whole runs and the cells of a study are all pieces.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


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
