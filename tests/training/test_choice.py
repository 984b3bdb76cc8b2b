"""The choice of an engine: by measurement, within a budget, and only where it can pay."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import save_checkpoint
from flipguard.data import DataSet
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Run, Seeds, begin_network
from flipguard.training.capture import CannotCapture
from flipguard.training.choice import TURNS, WARM_TURNS, Candidate, choose, measured_engine, stored_engine
from flipguard.training.engines import Engine
from flipguard.training.errors import OutOfMemory

MLP = ModelSpec("mlp", {"input_size": 11, "hidden": (13,)})
RECIPE = Recipe(epochs=30, batch_size=16, learning_rate=0.05)


class Clock:
    """Seconds that pass only when a step says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: dict[str, int] = {}

    def __call__(self) -> float:
        return self.now

    def candidate(self, engine: Engine, ms: float, *, set_up: float = 0.0, real: float = 0.0, members: int = 3) -> Any:
        """A candidate of `ms` per member-step, reckoned to take `set_up` seconds before that, and taking `real`."""

        def begin() -> Iterator[None]:
            self.now += real
            while True:
                self.now += ms * members / 1e3
                self.steps[engine] = self.steps.get(engine, 0) + 1
                yield

        return Candidate(engine, begin, members, set_up)


def failing(engine: Engine, error: Exception) -> Candidate:
    def begin() -> Iterator[None]:
        raise error
        yield

    return Candidate(engine, begin, 3)


def test_the_fastest_is_taken_and_all_are_told() -> None:
    clock = Clock()
    given = [
        clock.candidate("captured", 3.0),
        clock.candidate("grouped", 2.0, real=1.5),
        clock.candidate("stacked", 5.0),
    ]
    choice = choose(given, remaining=10**6, device="cpu", clock=clock)
    assert choice.engine == "grouped"
    assert choice.milliseconds == pytest.approx({"captured": 3.0, "grouped": 2.0, "stacked": 5.0})
    assert clock.steps == dict.fromkeys(("captured", "grouped", "stacked"), 1 + WARM_TURNS + TURNS)
    assert str(choice).startswith("grouped (ms per member-step: captured 3, grouped 2, stacked 5; chosen in ")


def test_what_is_faster_by_noise_alone_is_not_taken() -> None:
    clock = Clock()
    given = [clock.candidate("captured", 3.0), clock.candidate("grouped", 2.95)]
    assert choose(given, remaining=10**6, device="cpu", clock=clock).engine == "captured"


@pytest.mark.parametrize(("remaining", "tried"), [(32_000, False), (34_000, True)])
def test_set_up_must_be_earned_back(remaining: int, tried: bool) -> None:
    """At 2 ms per member-step and at most 30 % of it to save, 20 s are earned back after 33,333 of them."""
    clock = Clock()
    given = [clock.candidate("captured", 2.0), clock.candidate("compiled", 1.2, set_up=20.0)]
    choice = choose(given, remaining=remaining, device="cpu", clock=clock)
    assert choice.engine == ("compiled" if tried else "captured")
    assert ("compiled" in clock.steps) == tried
    if not tried:
        assert choice.passed_over == {"compiled": "its set-up of 20 s would cost more than the 19 s that it can save"}


@pytest.mark.parametrize(("grouped", "tried"), [(4.0, False), (2.0, True)])
def test_what_does_the_same_with_more_is_tried_only_after_a_success(grouped: float, tried: bool) -> None:
    clock = Clock()
    last = replace(clock.candidate("stacked", 1.0), like="grouped")
    given = [clock.candidate("captured", 3.0), clock.candidate("grouped", grouped), last]
    choice = choose(given, remaining=10**6, device="cpu", clock=clock)
    assert choice.engine == ("stacked" if tried else "captured")
    told = {} if tried else {"stacked": "grouped, which does the same with less, is not the fastest"}
    assert choice.passed_over == told


def test_measuring_ends_after_its_time() -> None:
    """Steps of a second: few of them are timed, and what comes after is passed over."""
    clock = Clock()
    given = [clock.candidate(name, 1000.0, members=1) for name in ("captured", "grouped", "stacked")]
    choice = choose(given, remaining=10**6, device="cpu", seconds=3.0, clock=clock)
    assert clock.steps == {"captured": 1 + WARM_TURNS + 2, "grouped": 1 + WARM_TURNS + 2}
    assert choice.passed_over == {"stacked": "the 3 s for measuring are over"}


def test_what_cannot_be_done_is_passed_over() -> None:
    clock = Clock()
    given = [
        failing("captured", CannotCapture("no graph")),
        failing("grouped", OutOfMemory("too large")),
        clock.candidate("stacked", 9.0),
    ]
    choice = choose(given, remaining=10**6, device="cpu", clock=clock)
    assert choice.engine == "stacked"
    assert choice.passed_over == {"captured": "no graph", "grouped": "too large"}
    nothing = choose(given[:2], remaining=10**6, device="cpu", clock=clock)
    assert nothing.engine == "captured"
    assert str(nothing).startswith("captured (nothing measured; captured not: no graph; grouped not: too large")


def test_real_networks_on_this_device(data: DataSet, caplog: pytest.LogCaptureFixture) -> None:
    """The whole way, with real steps: plain, in one step twice, and one that this device does not have."""
    caplog.set_level(logging.INFO, "flipguard.training")
    torch.manual_seed(5)

    def begin(seed: int, engine: Engine) -> Run:
        return begin_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(seed), engine=engine)

    engines: tuple[Engine, ...] = ("plain", "grouped", "stacked", "captured")
    choice = measured_engine([1, 2, 3], begin, "cpu", candidates=engines, set_up_seconds={}, worth=0)
    assert choice.engine in ("plain", "grouped", "stacked")
    assert {"plain", "grouped"} <= set(choice.milliseconds)
    assert all(ms > 0 for ms in choice.milliseconds.values())
    assert choice.passed_over["captured"] == "it falls back to plain"
    assert f"engine for 3 networks with batches of 16: {choice}" in caplog.text
    few = measured_engine([1, 2, 3], begin, "cpu", candidates=engines)
    assert few.engine == "plain"
    assert few.passed_over["stacked"] == "450 updates are too few to measure for"


def test_a_trial_leaves_no_trace(data: DataSet, tmp_path: Path) -> None:
    """Members that are trained after a measurement have the bits of members that were not measured for."""
    seen: list[Any] = []

    def begin(seed: int, engine: Engine) -> Run:
        run = begin_network(
            MLP, data, NoTreatment(), replace(RECIPE, epochs=1), seeds=Seeds.of(seed), engine=engine, checkpoint=None
        )
        seen.append(run)
        return run

    def trained() -> dict[str, torch.Tensor]:
        run = begin_network(
            MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(1), checkpoint=tmp_path / "state.safetensors"
        )
        for _ in run.updates():
            pass
        (tmp_path / "state.safetensors").unlink()
        return dict(run.released().state_dict())

    before = trained()
    measured_engine([1, 2], begin, "cpu", candidates=("stacked", "plain"), set_up_seconds={}, worth=0)
    assert len(seen) == 5
    assert list(tmp_path.iterdir()) == []
    after = trained()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_what_was_stored(tmp_path: Path) -> None:
    for name, facts in (("none", {}), ("old", {"engine": "stacked"}), ("new", {"engine": "grouped"})):
        save_checkpoint(tmp_path / name, {"w": torch.zeros(2)}, facts)
    (tmp_path / "damaged").write_bytes(b"\xff" * 64)
    (tmp_path / "empty").touch()
    assert stored_engine(tmp_path / name for name in ("missing", "none", "damaged", "empty", "old", "new")) == "stacked"
    assert stored_engine([tmp_path / "none"]) is None
