"""Waves of runs on one device: how many go together, what happens when memory ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from flipguard.training import waves
from flipguard.training.errors import OutOfMemory
from flipguard.training.waves import in_waves


class Card:
    """A device with so much memory; what begins takes its share until it is let go."""

    def __init__(self, room: int) -> None:
        self.room, self.log = room, []  # type: int, list[str]
        self.held: dict[str, int] = {}

    def free(self, _: str) -> int:
        return self.room - sum(self.held.values())

    def begin(self, task: tuple[str, int, bool]) -> Any:
        name, size, captured = task
        if size > self.free(""):
            raise OutOfMemory(f"{name} does not fit")
        return Step(self, name, size, captured)


class Step:
    def __init__(self, card: Card, name: str, size: int, captured: bool) -> None:
        self.card, self.name = card, name
        self.captured = object() if captured else None
        self.engine = "captured" if captured else "plain"
        card.held[name] = size

    def updates(self) -> Iterator[None]:
        for step in range(3):
            self.card.log.append(f"{self.name}{step}")
            yield


def trained(card: Card, tasks: list[tuple[str, int, bool]], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(waves, "_free", card.free)
    found = []
    for wave, seconds in in_waves(tasks, card.begin, "cpu"):
        assert seconds > 0
        found.append([task[0] for task, _ in wave])
        card.held.clear()
    return found


def test_as_many_as_fit_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(100)
    # After three of 25 another would fit, with nothing to spare.
    assert trained(card, [(name, 25, True) for name in "abcde"], monkeypatch) == [["a", "b", "c"], ["d", "e"]]
    assert card.log[:9] == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_what_cannot_be_captured_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(100)
    tasks = [("a", 10, False), ("b", 10, False), ("c", 10, True), ("d", 10, True)]
    assert trained(card, tasks, monkeypatch) == [["a"], ["b"], ["c", "d"]]


def test_one_that_does_not_fit_beside_others_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(100)
    tasks = [("a", 10, True), ("b", 95, True), ("c", 10, True)]
    assert trained(card, tasks, monkeypatch) == [["a"], ["b"], ["c"]]
    assert [entry for entry in card.log if entry.startswith("b")] == ["b0", "b1", "b2"]


def test_one_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OutOfMemory, match="b does not fit"):
        trained(Card(100), [("a", 10, True), ("b", 101, True)], monkeypatch)
