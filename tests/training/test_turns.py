"""Commands that share a device: one trains, whoever waits has only prepared, and a holder that dies lets go."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flipguard.training import Recipe, signals
from flipguard.training.errors import OutOfMemory
from flipguard.training.turns import Turns
from flipguard.training.waves import in_waves
from flipguard.types import InputError

PAUSE = 0.03


class Slow:
    """A run whose first update is its set-up."""

    captured, engine = object(), "captured"
    job = SimpleNamespace(recipe=Recipe(epochs=2))

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def resume(self) -> tuple[int, int]:
        return 0, 0

    def updates(self) -> Iterator[None]:
        for step in range(20):
            self.log.append(f"{self.name}{'+' if step else ''}")
            yield
            time.sleep(PAUSE)


def test_one_trains_at_a_time_and_waiting_is_not_counted(tmp_path: Path) -> None:
    log: list[str] = []
    turns = {name: Turns(tmp_path / "turns") for name in "ab"}
    counted: dict[str, float] = {}
    passed: dict[str, float] = {}
    at_once = threading.Barrier(2)

    def command(name: str) -> None:
        begin: Any = lambda task: Slow(task, log)  # noqa: E731
        at_once.wait()
        began = time.perf_counter()
        for _, seconds in in_waves([name], begin, "cpu", turns[name]):
            counted[name], passed[name] = seconds, time.perf_counter() - began

    both = [threading.Thread(target=command, args=(name,)) for name in "ab"]
    for each in both:
        each.start()
    for each in both:
        each.join()
    # Whoever waits was set up meanwhile; then each has its nineteen updates without the other's.
    assert {"a", "b"} <= {*log[:21]}
    trained = [each[0] for each in log if each.endswith("+")]
    assert trained in ([*"a" * 19, *"b" * 19], [*"b" * 19, *"a" * 19])
    # Whoever was second has waited for nearly all of the other's nineteen pauses.
    assert max(each.waited for each in turns.values()) > 10 * PAUSE
    for name, each in turns.items():
        assert counted[name] <= passed[name] - each.waited


def test_a_holder_that_is_killed_lets_go(tmp_path: Path) -> None:
    file = tmp_path / "turns"
    holding = (
        "import sys, time; from pathlib import Path; from flipguard.training.turns import Turns\n"
        "with Turns(Path(sys.argv[1])).mine(): print('mine', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", holding, str(file)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        turns, reached = Turns(file), threading.Event()

        def wait() -> None:
            with turns.mine():
                reached.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not reached.wait(0.3)
        other.kill()
        assert reached.wait(10)
        waiting.join()
    assert turns.waited >= 0.3


def test_who_is_told_to_stop_while_it_waits_does_not_wait_on(tmp_path: Path) -> None:
    file = tmp_path / "turns"
    with file.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        told = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
        # Whoever waits on in spite of it comes to an end, too.
        ends = threading.Timer(10, fcntl.flock, (other, fcntl.LOCK_UN))
        turns = Turns(file)

        def wait() -> None:
            with signals.heeded(), signals.at_work():
                # Not before it is heeded: it would end the tests.
                told.start()
                ends.start()
                with turns.mine():
                    assert signals.asked()

        with pytest.raises(signals.Stopped):
            wait()
        told.join()
        ends.cancel()
    assert turns.waited < 9


def test_without_a_file_it_is_always_ones_turn() -> None:
    turns = Turns()
    with turns.mine(), turns.mine():
        assert turns.waited == 0


def test_a_file_that_cannot_be_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="by which commands take turns, cannot be written: No such file"),
        Turns(tmp_path / "no" / "turns").mine(),
    ):
        pass


def test_who_finds_the_device_full_tries_again_in_its_turn(tmp_path: Path) -> None:
    """The other command's networks may be what fills it; in one's own turn it is an error."""
    turns, tried = Turns(tmp_path / "turns"), list[bool]()

    def begin(task: str) -> Any:
        tried.append(turns.held)
        if len(tried) == 1 or task == "large":
            raise OutOfMemory("full")
        return Slow(task, [])

    assert [[task for task, _ in wave] for wave, _ in in_waves(["small"], begin, "cpu", turns)] == [["small"]]
    assert tried == [False, True]
    assert not turns.held
    with pytest.raises(OutOfMemory, match="full"):
        list(in_waves(["large"], begin, "cpu", turns))
    assert tried == [False, True, False, True]
    assert not turns.held
