"""Pieces of work: done once each, in the order that they ask for, told of as they go, the first error raised."""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flipguard.training.errors import TrainingError
from flipguard.training.pool import Event, Here, Piece, Pool, Queue
from flipguard.training.processes import Processes
from flipguard.types import InputError

POOLS = [Here(), Processes(2)]
CALLS = '''
import os
import signal
import threading
import time
import torch
from flipguard.training import signals
from flipguard.types import InputError


def add(shared, number, *, say):
    say(f"begin {number}")
    return float(shared.sum()) + number, os.getpid(), torch.get_num_threads()


def fail(shared, number, *, say):
    raise InputError(f"piece {number} cannot be done.")


def fail_beside(shared, number, *, say):
    while not os.path.exists(shared):
        time.sleep(0.01)
    raise InputError(f"piece {number} cannot be done.")


def deaf(shared, number, *, say):
    """A step in which the process does not hear: what it was sent in the meantime reaches it as one signal."""
    with signals.at_work():
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        open(shared, "w").close()
        time.sleep(1.0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if signals.asked():
            open(shared + ".saved", "w").close()


def die(shared, number, *, say):
    os.kill(os.getpid(), signal.SIGKILL)


class Odd(Exception):
    def __init__(self, number, *, reason):
        super().__init__(f"{number} {reason}")


def odd(shared, number, *, say):
    raise Odd(number, reason="is odd")


def far(shared, number, *, say):
    raise ConnectionResetError("the storage hung up")


def lock(shared, number, *, say):
    return threading.Lock()
'''


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that other processes can import."""
    (tmp_path / "pool_calls.py").write_text(CALLS)
    monkeypatch.syspath_prepend(tmp_path)
    return import_module("pool_calls")


def pieces(call: Callable[..., Any]) -> list[Piece]:
    data = torch.arange(7.0)
    return [Piece(f"p{i}", call, (i,), data, after=frozenset({"p2"} if i == 0 else ())) for i in range(3)]


@pytest.mark.parametrize("pool", POOLS, ids=["here", "processes"])
def test_every_piece_is_done_and_told_of(pool: Pool, calls: ModuleType) -> None:
    """And the first error of a piece is raised here."""
    heard: list[Event] = []
    last = Piece("p3", calls.fail, (3,), torch.zeros(2), after=frozenset({"p0", "p1", "p2"}))
    with pytest.raises(InputError) as raised:
        pool.run([*pieces(calls.add), last], heard.append)
    assert str(raised.value) == "piece 3 cannot be done."
    done = [event.key for event in heard if event.kind == "done"]
    assert sorted(done) == ["p0", "p1", "p2"]
    assert done.index("p0") > done.index("p2")
    assert {event.key: event.value[0] for event in heard if event.kind == "done"} == {"p0": 21, "p1": 22, "p2": 23}
    for key in ("p0", "p1", "p2"):
        own = [(event.kind, event.value) for event in heard if event.key == key]
        assert own[0] == ("said", f"begin {key[1]}")
        assert own[1][0] == "done"
    processes = {event.value[1] for event in heard if event.kind == "done"}
    if isinstance(pool, Here):
        assert processes == {os.getpid()}
    else:
        assert os.getpid() not in processes
        assert {event.value[2] for event in heard if event.kind == "done"} == {1}


def test_an_error_beside_a_piece_that_does_not_hear(calls: ModuleType, tmp_path: Path) -> None:
    """It is told to leave once, saves, and nobody waits for ever."""
    marker = str(tmp_path / "deaf")
    with pytest.raises(InputError, match="piece 1"):
        Processes(2).run(
            [Piece("a", calls.deaf, (0,), marker), Piece("b", calls.fail_beside, (1,), marker)], lambda event: None
        )
    assert Path(marker + ".saved").exists()


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        ("die", TrainingError, "ended before it was done"),
        ("odd", TrainingError, "Odd: 5 is odd"),
        ("far", ConnectionResetError, "the storage hung up"),
        ("lock", TrainingError, "lock cannot leave its process"),
    ],
)
def test_errors_that_do_not_travel_by_themselves(
    call: str, kind: type[Exception], said: str, calls: ModuleType, tmp_path: Path
) -> None:
    beside = Piece("b", calls.deaf, (5,), str(tmp_path / "deaf"))
    with pytest.raises(kind, match=said):
        Processes(2).run([Piece("a", getattr(calls, call), (5,)), beside], lambda event: None)


def test_pieces_that_cannot_be_put_in_order() -> None:
    with pytest.raises(ValueError, match="the same key"):
        Queue([Piece("a", print), Piece("a", print)])
    with pytest.raises(ValueError, match=r"a waits for what nobody does: \['b'\]"):
        Queue([Piece("a", print, after=frozenset({"b"}))])
    with pytest.raises(ValueError, match="waits for itself"):
        Queue([Piece("a", print, after=frozenset({"b"})), Piece("b", print, after=frozenset({"a"}))]).ready()
