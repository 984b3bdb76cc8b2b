"""The display of a run: what it counts, what it prints, and that data is never markup."""

import io
from typing import Any

import pytest
from rich.console import Console

from flipguard.reports.progress import MOST_LINES, LiveProgress, PlainProgress, Progress
from flipguard.reports.terminal import plain_text

SPEC: dict[str, Any] = {
    "versions": [
        {"name": "old", "run": "x"},
        {
            "name": "new",
            "method": {"name": "elodi", "ensemble": {"members": 3, "train": {"epochs": 10}}},
            "train": {"epochs": 20},
        },
    ]
}


def figures(epoch: int, epochs: int = 20, **further: Any) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "epochs": epochs,
        "terms": {"cross_entropy": 1.5},
        "seconds": 0.5,
        "error_rate_new": 0.25,
        **further,
    }


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def begin(progress: Progress) -> None:
    progress.run_begins("runs/a", SPEC)
    progress.version_ends("old", found=True)
    progress.version_begins("new", "elodi", 20)


def test_the_time_left_counts_members_and_epochs_by_their_own_pace() -> None:
    """3 members of 10 epochs, and 20 epochs that pass through 3 members each: 30 units and 20·2."""
    clock = Clock()
    progress = Progress(clock)
    begin(progress)
    progress.members("new", 0, 3)
    assert progress.seconds_left() is None
    clock.now = 10.0
    progress.members("new", 1, 3)
    assert progress.seconds_left() == pytest.approx(20.0 + 40.0)
    clock.now = 15.0
    assert progress.seconds_left() == pytest.approx(55.0)
    progress.members("new", 3, 3)
    clock.now = 19.0
    progress.epoch("new", figures(0, seconds=4.0))
    assert progress.seconds_left() == pytest.approx(19 * 4.0)


def test_what_is_set_up_once_is_not_counted_for_every_epoch() -> None:
    """A minute before the first epoch, which takes 2 s where every other takes 1."""
    clock = Clock()
    progress = Progress(clock)
    begin(progress)
    clock.now = 62.0
    progress.epoch("new", figures(0, seconds=2.0))
    assert progress.seconds_left() == pytest.approx(19 * 2.0)
    clock.now = 63.0
    progress.epoch("new", figures(1, seconds=0.9))
    assert progress.seconds_left() == pytest.approx(18 * 1.0)


def test_what_was_there_already_does_not_make_the_machine_look_fast() -> None:
    clock = Clock()
    progress = Progress(clock)
    begin(progress)
    progress.members("new", 3, 3)
    assert progress.seconds_left() is None
    clock.now = 3.0
    progress.epoch("new", figures(4, seconds=3.0))
    assert progress.seconds_left() == pytest.approx(15 * 3.0)
    clock.now = 60.0
    assert progress.seconds_left() == 0


def test_the_paragon_has_no_epochs_after_its_members() -> None:
    clock = Clock()
    progress = Progress(clock)
    method = {"name": "paragon", "ensemble": {"members": 2, "train": {"epochs": 10}}}
    progress.run_begins("runs/a", {"versions": [{"name": "new", "method": method, "train": {"epochs": 20}}]})
    progress.version_begins("new", "paragon", 20)
    progress.members("new", 0, 2)
    clock.now = 7.0
    progress.members("new", 1, 2)
    assert progress.seconds_left() == pytest.approx(7.0)


@pytest.mark.parametrize(("epochs", "lines"), [(7, 7), (MOST_LINES, MOST_LINES), (301, 28)])
def test_a_log_gets_no_more_lines_than_a_person_reads(epochs: int, lines: int) -> None:
    said: list[str] = []
    progress = PlainProgress(said.append)
    begin(progress)
    said.clear()
    for epoch in range(epochs):
        progress.epoch("new", figures(epoch, epochs, negative_flip_rate=0.03))
    assert len(said) == lines
    assert said[-1].startswith(f"new: epoch {epochs} of {epochs}  cross_entropy 1.500  error 25.00%  NFR 3.00%  0.5 s")
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in said)


def test_control_characters_and_markup_are_taken_as_text() -> None:
    said: list[str] = []
    plain = PlainProgress(said.append)
    plain.run_begins("runs/\x1b[31m[red]a\n", SPEC)
    plain.note("a\nb\x1b]0;title\x07")
    assert said[0] == "runs/[red]a: 2 versions\n"
    assert said[1] == "note: a b\n"
    live = LiveProgress(Console(file=io.StringIO(), force_terminal=True))
    live.run_begins("runs/[red]a\x1b[31m", SPEC)
    live.close()
    assert "runs/[red]a" in plain_text(live.table())


def test_the_live_table_has_a_row_for_each_version() -> None:
    live = LiveProgress(Console(file=io.StringIO(), force_terminal=True), Clock())
    begin(live)
    live.members("new", 3, 3)
    live.epoch("new", figures(4, negative_flip_rate=0.03))
    live.close()
    lines = [line.split() for line in plain_text(live.table()).splitlines()]
    assert ["old", "given", "–", "found", "–", "–"] in lines
    assert ["new", "elodi", "3/3", "5/20", "cross_entropy", "1.500", "25.00%", "3.00%"] in lines
