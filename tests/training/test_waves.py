"""Waves of runs on one device: how many go together, what happens when memory ends."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from flipguard.training import Recipe, waves
from flipguard.training.errors import OutOfMemory
from flipguard.training.waves import in_waves


class Card:
    """A device with so much memory; what begins takes its share until it is let go."""

    def __init__(self, room: int, scales: tuple[float, ...] = ()) -> None:
        self.room, self.log, self.scales = room, [], scales  # type: int, list[str], tuple[float, ...]
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
        self.job = SimpleNamespace(recipe=Recipe(epochs=2, scales=card.scales))
        self.captured = object() if captured else None
        self.engine = "captured" if captured else "plain"
        card.held[name] = size

    def resume(self) -> tuple[int, int]:
        return 0, 0

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


def test_no_more_than_fill_a_card_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card(1000)
    found = trained(card, [(f"{number}.", 1, True) for number in range(19)], monkeypatch)
    assert [len(wave) for wave in found] == [8, 8, 3]


def test_who_begins_with_small_images_has_room_for_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 6 now and 24 in the end: three of them fit, with something to spare, as three of 24 would."""
    card = Card(100, scales=(0.5, 1.0))
    assert trained(card, [(name, 6, True) for name in "abcde"], monkeypatch) == [["a", "b", "c"], ["d", "e"]]


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
