"""How often runs that take turns save: each seldom, and all of them a tenth of the time."""

import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from flipguard.data import DataSet
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network
from flipguard.training.pace import OF_THIS_PROCESS, SECONDS, SHARE, Pace


@dataclass
class Clock:
    """Time that passes when it is told to."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def save(pace: Pace, clock: Clock, seconds: float) -> float:
    with pace.saving():
        clock.now += seconds
    return clock.now


def test_a_run_alone_saves_every_so_many_seconds() -> None:
    clock = Clock()
    pace = Pace(clock)
    last = clock.now
    assert not pace.allows(last)
    clock.now += SECONDS + 0.1
    assert pace.allows(last)
    last = save(pace, clock, 0.2)
    clock.now += SECONDS - 0.1
    assert not pace.allows(last)
    clock.now += 0.2
    assert pace.allows(last)


def test_states_that_are_saved_together_are_paid_for_together() -> None:
    clock = Clock()
    pace = Pace(clock)
    for _ in range(4):
        last = save(pace, clock, 2.0)
    # Eight seconds are a tenth of eighty.
    clock.now += 72.0 - 0.1
    assert not pace.allows(last - SECONDS)
    clock.now += 0.2
    assert pace.allows(last - SECONDS)


@pytest.mark.parametrize(("runs", "every", "takes"), [(50, 200, 1.0), (8, 200, 0.3), (50, 88, 1.0), (3, 1000, 0.01)])
def test_many_runs_train_nine_tenths_of_the_time_and_each_is_saved(runs: int, every: int, takes: float) -> None:
    """In turns of 5 ms, which all may save at the same ones: by their own clocks fifty would save and do no more."""
    clock = Clock()
    pace = Pace(clock)
    last, saves = [clock.now] * runs, [0] * runs
    began, turns, seconds = clock.now, 0, 100 * runs * takes / SHARE + 1000
    while clock.now - began < seconds:
        turns += 1
        for run in range(runs):
            clock.now += 0.005
            if turns % every == 0 and pace.allows(last[run]):
                last[run] = save(pace, clock, takes)
                saves[run] += 1
    # The last round may not be paid for yet.
    assert sum(saves) * takes / (clock.now - began) <= SHARE * 1.02
    assert min(saves) >= 20
    assert max(saves) - min(saves) <= 1


class Enqueued:
    """A captured step as a run sees it that has enqueued nothing."""

    def first_bad(self) -> None:
        return None


def test_a_captured_run_asks_the_pace_and_tells_it_what_a_save_took(data: DataSet, tmp_path: Path) -> None:
    """Off a GPU nothing is captured: the run is told that it is on one, and never steps."""
    path = tmp_path / "state.safetensors"
    model, recipe = ModelSpec("mlp", {"input_size": 11, "hidden": (3,)}), Recipe(epochs=2, batch_size=16)
    run = begin_network(model, data, NoTreatment(), recipe, seeds=Seeds.of(1), checkpoint=path)
    assert run.wants_saving()
    run.captured, run.device = Enqueued(), torch.device("cuda")  # type: ignore[assignment]
    assert not run.wants_saving()
    run.saved -= SECONDS + 1
    assert run.wants_saving()
    before = OF_THIS_PROCESS.clock()
    run.save(0, 1, time.perf_counter())
    assert path.exists()
    assert OF_THIS_PROCESS._free - before > 10 * (run.saved - before) * 0.5
    assert not run.wants_saving()
