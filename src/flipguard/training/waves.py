"""Several runs on one device: as many at a time as its memory holds, an update of each in turn."""

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from flipguard.training.engines import Engine
from flipguard.training.errors import OutOfMemory
from flipguard.training.loop import Run, in_turn
from flipguard.training.together import Together

LOG = logging.getLogger("flipguard.training")
Task = TypeVar("Task")


def in_waves(
    tasks: Sequence[Task], begin: Callable[[Task], Run], device: str
) -> Iterator[tuple[list[tuple[Task, Run]], float]]:
    """Train what each task begins; yields the runs of a wave that are done, and the seconds that the wave took.

    Each run's captured step is replayed on a stream of its own, so that what one leaves idle another uses. What does
    not overlap (a step that cannot be captured) goes alone: taking turns would only hold more memory.
    """
    waiting = list(tasks)
    while waiting:
        began = time.perf_counter()
        wave: list[tuple[Task, Run]] = []
        updates: list[Iterator[None]] = []
        need = 0
        while waiting and (not wave or _has_room(device, need)):
            before = _free(device)
            try:
                run = begin(waiting[0])
                steps = run.updates()
                next(steps, None)
            except OutOfMemory:
                if not wave:
                    raise
                # Alone, or beside fewer, it may fit: it goes with the next ones.
                break
            wave.append((waiting.pop(0), run))
            updates.append(steps)
            need = max(need, before - _free(device))
            if run.captured is None:
                break
        LOG.info("%d networks side by side (%s)", len(wave), run.engine)
        in_turn(updates)
        yield wave, time.perf_counter() - began
        updates.clear()
        wave.clear()
        del run, steps
        free_memory(device)


def in_groups(
    tasks: Sequence[Task], begin: Callable[[Task], Run], engine: Engine, device: str
) -> Iterator[tuple[list[tuple[Task, Run]], float]]:
    """Train what the tasks begin, networks of one kind, many in one step; yields as `in_waves` does.

    A group whose step does not fit into memory is halved. Runs that were cut off at different places go on in groups
    by place. Raises CannotCapture where the networks cannot go together.
    """
    waiting, size = list(tasks), len(tasks)
    while waiting:
        began = time.perf_counter()
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
            in_turn([updates])
            waiting = [task for task in waiting if all(task is not done for done, _ in group)]
            yield group, time.perf_counter() - began
        else:
            size = (len(group) + 1) // 2
            LOG.info("%d networks do not fit into memory together: %d at a time", len(group), size)
        group.clear()
        del updates
        free_memory(device)


def _same_place(runs: list[tuple[Task, Run]]) -> list[tuple[Task, Run]]:
    place = runs[0][1].resume()
    return [(task, run) for task, run in runs if run.resume() == place]


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
