"""Which engine trains several networks on one device: a few steps of each, on copies, and the fastest is taken.

What is fastest depends on the network, its batches and the card: at small batches the number of kernels counts, at
large ones how well each of them fills the device. A candidate is tried only if its set-up can be earned back.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from flipguard.checkpoints import load_facts
from flipguard.training.capture import CannotCapture
from flipguard.training.engines import JOINT, Engine
from flipguard.training.errors import OutOfMemory
from flipguard.training.loop import Run
from flipguard.training.together import Together, group_size
from flipguard.training.waves import free_memory
from flipguard.types import InputError

LOG = logging.getLogger("flipguard.training")
Task = TypeVar("Task")
CANDIDATES: tuple[Engine, ...] = ("captured", "paired", "grouped", "stacked", "compiled")
SET_UP_SECONDS: Mapping[str, float] = {"paired": 3.0, "grouped": 10.0, "stacked": 17.0, "compiled": 20.0}
"""What trying a candidate costs, near what ResNet-18 took on an H200 (results/members.json, results/update.json); the
first one's set-up is needed in any case."""
LIKE: Mapping[str, Engine] = {"stacked": "grouped"}
"""torch.func runs the same grouped convolutions, and copies more around them."""
MEASURED_SECONDS, TURNS, WARM_TURNS, MEMBERS = 5.0, 20, 2, 4
GAIN = 0.3
"""The share of a step's time that another engine can be hoped to save."""
MARGIN = 0.97
"""A later candidate must need less than this share of an earlier one's time: the rest is noise."""
WORTH = 2_000
"""With fewer updates than this in all, training takes seconds, and so would measuring."""


@dataclass(frozen=True)
class Candidate:
    """`begin` starts a trial of which each `next` is an update of all its `members`."""

    engine: Engine
    begin: Callable[[], Iterator[None]]
    members: int
    set_up_seconds: float = 0.0
    like: Engine | None = None
    """One that does the same work with less traffic: where that is not the fastest, this cannot be."""


@dataclass(frozen=True)
class Choice:
    """The engine, the milliseconds per member-step of each that was measured, and why others were not."""

    engine: Engine
    milliseconds: Mapping[Engine, float]
    passed_over: Mapping[Engine, str]
    seconds: float

    def __str__(self) -> str:
        measured = [f"{engine} {ms:.3g}" for engine, ms in self.milliseconds.items()]
        others = [f"; {engine} not: {reason}" for engine, reason in self.passed_over.items()]
        what = f"ms per member-step: {', '.join(measured)}" if measured else "nothing measured"
        return f"{self.engine} ({what}{''.join(others)}; chosen in {self.seconds:.1f} s)"


def choose(
    candidates: Sequence[Candidate],
    *,
    remaining: int,
    device: str,
    seconds: float = MEASURED_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """The candidate that needs the least time per member-step, the first of those that are equal up to noise.

    `remaining` member-steps are to be done: a candidate is passed over when its set-up costs more than it can save in
    them. At most `seconds` are spent on steps that are timed.
    """
    began, spent = clock(), 0.0
    found: dict[Engine, float] = {}
    passed_over: dict[Engine, str] = {}
    for candidate in candidates:
        best = min(found.values(), default=float("inf"))
        can_save = GAIN * remaining * best / 1e3
        if candidate.set_up_seconds > can_save:
            passed_over[candidate.engine] = (
                f"its set-up of {candidate.set_up_seconds:.3g} s would cost more than the {can_save:.2g} s that it can "
                "save"
            )
        elif candidate.like in found and found[candidate.like] > best:
            passed_over[candidate.engine] = f"{candidate.like}, which does the same with less, is not the fastest"
        elif spent >= seconds:
            passed_over[candidate.engine] = f"the {seconds:.3g} s for measuring are over"
        else:
            try:
                took, turns = _timed(candidate, device, seconds / len(candidates), clock)
                spent += took
                found[candidate.engine] = 1e3 * took / (turns * candidate.members)
            except (CannotCapture, OutOfMemory) as reason:
                passed_over[candidate.engine] = str(reason)
            free_memory(device)
    engine = candidates[0].engine
    for other, ms in found.items():
        if ms < MARGIN * found.get(engine, float("inf")):
            engine = other
    return Choice(engine, found, passed_over, clock() - began)


def _timed(candidate: Candidate, device: str, seconds: float, clock: Callable[[], float]) -> tuple[float, int]:
    """The seconds of so many turns after set-up; a turn or two are always timed, the rest only while there is time."""
    trial = candidate.begin()
    try:
        for _ in range(1 + WARM_TURNS):
            next(trial, None)
        _synchronise(device)
        began, turns = clock(), 0
        while turns < TURNS and (turns == 0 or clock() - began < seconds):
            for _ in range(2):
                next(trial, None)
            turns += 2
            _synchronise(device)
        return clock() - began, turns
    finally:
        close = getattr(trial, "close", None)
        if close is not None:
            close()


def _synchronise(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def trial(runs: Callable[[], Sequence[Run]], engine: Engine) -> Iterator[None]:
    """Updates of several runs side by side by an engine; CannotCapture where it is another that they fall back to."""
    begun = runs()
    size = group_size(engine, len(begun)) if engine in JOINT else 1
    groups = [begun[start : start + size] for start in range(0, len(begun), size)]
    moving = [(Together(group, engine) if engine in JOINT else group[0]).updates() for group in groups]
    while True:
        for group, updates in zip(groups, moving, strict=True):
            if next(updates, moving) is moving:
                return
            if group[0].engine != engine:
                raise CannotCapture(f"it falls back to {group[0].engine}")
        yield


def measured_engine(
    tasks: Sequence[Task],
    begin: Callable[[Task, Engine], Run],
    device: str,
    *,
    candidates: Sequence[Engine] = CANDIDATES,
    set_up_seconds: Mapping[str, float] = SET_UP_SECONDS,
    worth: int = WORTH,
) -> Choice:
    """The engine for networks of one kind, by a trial of each candidate. `begin` makes a run that saves nothing.

    With fewer than `worth` updates to come nothing is measured, and the first candidate is taken.
    """
    job = begin(tasks[0], candidates[0]).job
    remaining = len(tasks) * job.recipe.epochs * job.steps_per_epoch
    tried = tasks[:MEMBERS]

    def candidate(engine: Engine) -> Candidate:
        def started() -> Iterator[None]:
            return trial(lambda: [begin(task, engine) for task in tried], engine)

        return Candidate(engine, started, len(tried), set_up_seconds.get(engine, 0.0), LIKE.get(engine))

    if remaining < worth:
        few = f"{remaining:,} updates are too few to measure for"
        choice = Choice(candidates[0], {}, dict.fromkeys(candidates[1:], few), 0.0)
    else:
        choice = choose([candidate(engine) for engine in candidates], remaining=remaining, device=device)
    LOG.info("engine for %d networks with batches of %d: %s", len(tasks), job.recipe.batch_size, choice)
    return choice


def stored_engine(files: Iterable[Path]) -> str | None:
    """What the first of these states or members that says so was trained by; one that cannot be read says nothing."""
    for path in files:
        try:
            found = load_facts(path).get("engine") if path.exists() else None
        except InputError:
            continue
        if isinstance(found, str):
            return found
    return None
