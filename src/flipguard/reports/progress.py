"""How a training run is watched: one live display for the whole job, or plain lines for a log."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from flipguard.releases.listener import Listener
from flipguard.reports.wording import NONE, clean, percent

MOST_LINES = 30
"""Epochs that are printed of one version; of more, every so many, and the last."""


@dataclass
class _Version:
    """What is known of a version while it is made. `units` count epochs of a single network's training."""

    name: str
    method: str
    epochs: int = 0
    members: int = 0
    member_epochs: int = 0
    members_done: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict)
    state: str = "waiting"

    @property
    def epoch_units(self) -> float:
        # A step of the student passes the batch through each member, and a forward pass is a third of a step.
        return 1 + self.members / 3

    @property
    def member_units_left(self) -> float:
        # Epochs begin when all members are there.
        return 0.0 if self._ended or self.figures else (self.members - self.members_done) * self.member_epochs

    @property
    def epoch_units_left(self) -> float:
        trained = self.figures["epoch"] + 1 if self.figures else 0
        return 0.0 if self._ended else (self.epochs - trained) * self.epoch_units

    @property
    def _ended(self) -> bool:
        return self.state in ("done", "found")


@dataclass
class _Pace:
    """Seconds per unit over the stretches that were measured; None before the first."""

    seconds: float = 0.0
    units: float = 0.0

    def add(self, seconds: float, units: float) -> None:
        self.seconds, self.units = self.seconds + seconds, self.units + units

    @property
    def known(self) -> float | None:
        return self.seconds / self.units if self.units > 0 else None


class Progress(Listener):
    """Keeps count of the whole job: which versions, how far, how much longer."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.folder, self.versions = "", {}  # type: str, dict[str, _Version]
        self._start()

    def _start(self) -> None:
        self._began = self._heard = self._clock()
        # Members may train side by side, so that theirs is another pace than an epoch's of the version itself. What a
        # first epoch took counts only until there is a second one: it also waits for what is set up once.
        self._members_pace, self._first, self._steady = _Pace(), _Pace(), _Pace()

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        self.folder = folder
        self.versions = {version["name"]: _planned(version) for version in spec["versions"]}
        self._start()

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        self.versions[version].state = "training"

    def members(self, version: str, done: int, total: int) -> None:
        known = self.versions[version]
        spent = self._passed()
        if known.state == "members":
            self._members_pace.add(spent, (done - known.members_done) * known.member_epochs)
        # Members that were there already, as the first call tells, say nothing about how fast this machine is.
        known.state = "members"
        known.members_done, known.members = done, total

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        known = self.versions[version]
        spent = self._passed()
        if known.state == "epochs":
            self._steady.add(spent, known.epoch_units)
        else:
            self._first.add(min(spent, figures["seconds"]), known.epoch_units)
        known.state, known.figures = "epochs", figures

    def version_ends(self, version: str, *, found: bool) -> None:
        self._passed()
        self.versions[version].state = "found" if found else "done"

    def _passed(self) -> float:
        """Seconds since this was last asked."""
        before, self._heard = self._heard, self._clock()
        return self._heard - before

    def seconds_left(self) -> float | None:
        """By what this call has done so far; None before anything is. It runs down until the next thing is done."""
        steady = self._steady.known
        own = self._first.known if steady is None else steady
        beside = self._members_pace.known
        # The one stands in for the other as long as that is all there is.
        own, beside = (beside if own is None else own), (own if beside is None else beside)
        if own is None or beside is None:
            return None
        left = sum(
            beside * version.member_units_left + own * version.epoch_units_left for version in self.versions.values()
        )
        return max(0.0, left - (self._clock() - self._heard))


def _planned(version: Mapping[str, Any]) -> _Version:
    method = version.get("method", {})
    ensemble = method.get("ensemble") or {}
    # The paragon is its members, with nothing to train after them.
    trains = method and method.get("name") != "paragon"
    return _Version(
        version["name"],
        method.get("name", "given"),
        version.get("train", {}).get("epochs", 0) if trains else 0,
        ensemble.get("members", 0),
        ensemble.get("train", {}).get("epochs", 0),
    )


class PlainProgress(Progress):
    """A line for each step of the work, for a log."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self._say = say

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        super().run_begins(folder, spec)
        number = len(self.versions)
        self._say(f"{clean(folder, 200)}: {number} version{'' if number == 1 else 's'}\n")

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        super().version_begins(version, method, epochs)
        self._say(f"{clean(version)}: {clean(method)}\n")

    def members(self, version: str, done: int, total: int) -> None:
        super().members(version, done, total)
        self._say(f"{clean(version)}: {done} of {total} members{self._left()}\n")

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        super().epoch(version, figures)
        number, epochs = figures["epoch"] + 1, figures["epochs"]
        if number == epochs or number % math.ceil(epochs / MOST_LINES) == 0:
            flips = figures.get("negative_flip_rate")
            parts = [
                f"{clean(version)}: epoch {number} of {epochs}",
                terms(figures),
                f"error {percent(figures['error_rate_new'])}",
                *([] if flips is None else [f"NFR {percent(flips)}"]),
                f"{figures['seconds']:.1f} s",
            ]
            self._say(f"{'  '.join(parts)}{self._left()}\n")

    def version_ends(self, version: str, *, found: bool) -> None:
        super().version_ends(version, found=found)
        self._say(f"{clean(version)}: {'was there already' if found else 'done'}\n")

    def note(self, text: str) -> None:
        self._say(f"note: {clean(text, 600)}\n")

    def _left(self) -> str:
        left = self.seconds_left()
        return "" if left is None else f"  {duration(left)} left"


class LiveProgress(Progress):
    """A table that is drawn anew while the job goes on: a row for each version."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(clock)
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=4)

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        super().run_begins(folder, spec)
        self._live.start()

    def note(self, text: str) -> None:
        self._live.console.print(Text(f"note: {clean(text, 600)}"))

    def close(self) -> None:
        # The terminal may be gone.
        with suppress(OSError):
            self._live.stop()

    def table(self) -> Table:
        """The state of the job."""
        left = self.seconds_left()
        spent = duration(self._clock() - self._began)
        about = f"{clean(self.folder, 60)}   {spent}, {NONE if left is None else duration(left)} left"
        table = Table(title=Text(about), title_justify="left", box=None, pad_edge=False)
        for name in ("version", "method", "members", "epoch", "loss", "error", "NFR"):
            table.add_column(name, justify="right" if name in ("members", "epoch", "error", "NFR") else "left")
        for version in self.versions.values():
            table.add_row(*map(Text, _cells(version)))
        return table


def _cells(version: _Version) -> tuple[str, ...]:
    figures = version.figures
    epoch = f"{figures['epoch'] + 1}/{figures['epochs']}" if figures else version.state
    return (
        clean(version.name, 20),
        clean(version.method, 20),
        f"{version.members_done}/{version.members}" if version.members else NONE,
        version.state if version.state in ("done", "found") else epoch,
        terms(figures) if figures else "",
        percent(figures.get("error_rate_new")) if figures else NONE,
        percent(figures.get("negative_flip_rate")) if figures else NONE,
    )


def terms(figures: Mapping[str, Any]) -> str:
    """The loss terms of an epoch, by name.

    >>> terms({"terms": {"cross_entropy": 1.23456, "ldi_old": 0.5}})
    'cross_entropy 1.235, ldi_old 0.500'
    """
    return ", ".join(f"{clean(name, 30)} {value:.3f}" for name, value in figures["terms"].items())


def duration(seconds: float) -> str:
    """A time span as a person says it.

    >>> duration(42.4), duration(125), duration(7384)
    ('42 s', '2 min 05 s', '2 h 03 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
