"""Several runs on one device: as many at a time as keep it busy and its memory holds, an update of each in turn."""

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

import torch

from flipguard.training.engines import Engine
from flipguard.training.errors import OutOfMemory
from flipguard.training.loop import Run, in_turn
from flipguard.training.scales import pixels_at
from flipguard.training.together import Together, group_size
from flipguard.training.turns import Turns

LOG = logging.getLogger("flipguard.training")
Task = TypeVar("Task")
Group = list[tuple[Task, Run]]
MOST = 8
"""No more side by side: eight of ResNet-18 fill an H200 (results/growth.json: sixteen gain at most 3 %), and each holds
memory that another process may want."""


def in_waves(
    tasks: Sequence[Task], begin: Callable[[Task], Run], device: str, turns: Turns | None = None
) -> Iterator[tuple[list[tuple[Task, Run]], float]]:
    """Train what each task begins; yields the runs of a wave that are done, and the seconds that the wave took.

    Each run's captured step is replayed on a stream of its own, so that what one leaves idle another uses. What does
    not overlap (a step that cannot be captured) goes alone: taking turns would only hold more memory.
    A wave that is set up waits for its turn among other commands, which is not counted in its seconds.
    """

    def one(waiting: Sequence[Task], _: int) -> tuple[Group[Task], Iterator[None]]:
        run = begin(waiting[0])
        return [(waiting[0], run)], run.updates()

    return _side_by_side(tasks, one, 1, device, turns or Turns())


def _side_by_side(
    tasks: Sequence[Task],
    begin: Callable[[Sequence[Task], int], tuple[Group[Task], Iterator[None]]],
    size: int,
    device: str,
    turns: Turns,
) -> Iterator[tuple[Group[Task], float]]:
    """Waves of groups: `begin` makes the next one, of at most so many of those that wait, and what updates it."""
    waiting = list(tasks)
    while waiting:
        began, waited = time.perf_counter(), turns.waited
        wave: Group[Task] = []
        updates: list[Iterator[None]] = []
        # What the next one takes, and what those that began with small images will still take.
        need = owed = 0
        with ExitStack() as turn:
            while waiting and (not wave or (len(wave) + size <= MOST and _has_room(device, need + owed))):
                before = _free(device)
                try:
                    group, steps = begin(waiting, size)
                    next(steps, None)
                except OutOfMemory:
                    group, steps = [], iter(())
                    if not wave and not turns.held:
                        # What another command trains may fill the device: once it is done, there is more room.
                        turn.enter_context(turns.mine())
                        free_memory(device)
                        continue
                    if not wave and size == 1:
                        raise
                    # Alone, or beside fewer, it may fit: it goes with the next ones.
                    break
                wave += group
                waiting = _without(waiting, group)
                updates.append(steps)
                taken = before - _free(device)
                whole = round(taken / _pixels_now(group[0][1]))
                need, owed = max(need, whole), owed + whole - taken
                if group[0][1].captured is None:
                    break
            if wave:
                LOG.info("%d networks side by side (%s)", len(wave), wave[0][1].engine)
                turn.enter_context(turns.mine())
                in_turn(updates)
        if wave:
            yield wave, time.perf_counter() - began - (turns.waited - waited)
        else:
            LOG.info("%d networks in one step do not fit into memory: one at a time", size)
            size = 1
        updates.clear()
        wave.clear()
        group, steps = [], iter(())
        free_memory(device)


def _pixels_now(run: Run) -> float:
    return pixels_at(run.job.recipe, run.resume()[0])


def _without(waiting: Sequence[Task], group: Group[Task]) -> list[Task]:
    return [task for task in waiting if all(task is not done for done, _ in group)]


def in_groups(
    tasks: Sequence[Task], begin: Callable[[Task], Run], engine: Engine, device: str, turns: Turns | None = None
) -> Iterator[tuple[list[tuple[Task, Run]], float]]:
    """Train what the tasks begin, networks of one kind, many in one step; yields as `in_waves` does.

    A group whose step does not fit into memory is halved; pairs go side by side, as `in_waves` has it. Runs that
    were cut off at different places go on in groups by place. Raises CannotCapture where the networks cannot go
    together.
    """
    turns = turns or Turns()
    if engine == "paired":

        def some(waiting: Sequence[Task], size: int) -> tuple[Group[Task], Iterator[None]]:
            group = _first_at_one_place(waiting, begin, size)
            return group, Together([run for _, run in group], engine).updates()

        yield from _side_by_side(tasks, some, group_size(engine, len(tasks)), device, turns)
        return
    waiting, size = list(tasks), len(tasks)
    while waiting:
        began, waited = time.perf_counter(), turns.waited
        group = _same_place([(task, begin(task)) for task in waiting[:size]])
        updates = Together([run for _, run in group], engine).updates()
        try:
            next(updates, None)
            fits = True
        except OutOfMemory:
            if len(group) == 1:
                raise
            fits = False
        if fits:
            LOG.info("%d networks in one step (%s)", len(group), engine)
            with turns.mine():
                in_turn([updates])
            waiting = _without(waiting, group)
            yield group, time.perf_counter() - began - (turns.waited - waited)
        else:
            size = (len(group) + 1) // 2
            LOG.info("%d networks do not fit into memory together: %d at a time", len(group), size)
        group.clear()
        del updates
        free_memory(device)


def _same_place(runs: list[tuple[Task, Run]]) -> list[tuple[Task, Run]]:
    place = runs[0][1].resume()
    return [(task, run) for task, run in runs if run.resume() == place]


def _first_at_one_place(waiting: Sequence[Task], begin: Callable[[Task], Run], size: int) -> Group[Task]:
    """The first that waits, and up to `size` of those that are where it is."""
    group = [(waiting[0], begin(waiting[0]))]
    for task in waiting[1:]:
        if len(group) == size:
            break
        run = begin(task)
        if run.resume() == group[0][1].resume():
            group.append((task, run))
    return group


def free_memory(device: str) -> None:
    """What is no longer needed goes back to the device."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


def _free(device: str) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if torch.device(device).type == "cuda" else 0


def _has_room(device: str, need: int) -> bool:
    """Whether another run fits, with a third of its size to spare."""
    return _free(device) > need + need // 3
