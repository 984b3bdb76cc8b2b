"""Members that are trained two at a time: they go on where they were cut off, in whatever pairs there are."""

import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.checkpoints import load_facts
from flipguard.data import DataSet, Split
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Run, Seeds, begin_network, fit_members, signals
from flipguard.training.choice import measured_engine, trial
from flipguard.training.engines import Engine
from flipguard.training.members import MEMBER, STATE

RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.05, clip_norm=5.0)
CNN = ModelSpec("cnn", {"in_channels": 3, "width": 5})


class Stop(Exception):
    pass


def raised() -> None:
    raise Stop


def asked() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class Breaking:
    """No treatment, up to a call; it has a name in the facts of a run and nothing else."""

    __name__ = "breaking"

    def __init__(self, calls: int = -1, how: Callable[[], None] = raised) -> None:
        self.calls, self.how = calls, how

    def __call__(self, student: Any, references: Any, batch: Any) -> Any:
        self.calls -= 1
        if self.calls == 0:
            self.how()
        return NoTreatment()(student, references, batch)


def images(rows: int = 5 * 16 + 3) -> DataSet:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.integers(0, 256, (rows, 3, 5, 5), dtype=np.uint8))
    split = Split(x, torch.from_numpy(generator.integers(0, 7, rows)), np.arange(rows))
    return DataSet("random", split, split, tuple("abcdefg"), "image")


def members(
    folder: Path, number: int, method: Breaking | None = None, engine: Engine = "paired", every: int = 1
) -> list[Any]:
    found = fit_members(
        *(CNN, images(), RECIPE, range(number)),
        folder=folder,
        processes=1,
        engine=engine,
        method=method or Breaking(),
        checkpoint_every=every,
    )
    return [network.state_dict() for network in found]


def same(some: list[Any], others: list[Any]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(value, other[name]) for one, other in pairs for name, value in one.items())


def places(folder: Path) -> list[tuple[int, int]]:
    found = [load_facts(path) for path in folder.rglob(STATE)]
    assert {facts["engine"] for facts in found} == {"paired"}
    return sorted((facts["epoch"], facts["step"]) for facts in found)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU does not say how much room it has, and takes one group at a time; here it has room for all."""
    monkeypatch.setattr("flipguard.training.waves._has_room", lambda device, need: True)


@pytest.mark.parametrize(
    ("calls", "left", "waves"),
    [
        # One warm-up and seven updates of two members; the eighth breaks. The third has not begun.
        (2 * 8 + 2, [(1, 2)] * 2, [2, 1]),
        # Both are done after a warm-up and ten updates; the third's fourth breaks.
        (2 * 11 + 1 + 4, [(0, 3)], [1]),
    ],
)
def test_members_go_on_in_pairs(
    calls: int, left: list[tuple[int, int]], waves: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ "auto" takes the stored choice up, and ends with the bits of an unbroken run."""
    caplog.set_level(logging.INFO)
    whole = members(tmp_path / "whole", 3)
    with pytest.raises(Stop):
        members(tmp_path / "cut", 3, Breaking(calls))
    assert places(tmp_path / "cut") == left
    caplog.clear()
    rest = members(tmp_path / "cut", 3, engine="auto")
    assert caplog.messages == [
        "engine: paired, by which these members were begun",
        *(f"{number} networks side by side (paired)" for number in waves),
    ]
    assert same(rest, whole)
    assert [load_facts(path)["engine"] for path in (tmp_path / "cut").rglob(MEMBER)] == ["paired"] * 3
    assert not list((tmp_path / "cut").rglob(STATE))


@pytest.mark.usefixtures("room")
def test_members_at_different_places_find_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of two pairs that were cut off one member starts anew, and its partner goes on with another."""
    caplog.set_level(logging.INFO)
    whole = members(tmp_path / "whole", 4)
    with pytest.raises(Stop):
        members(tmp_path / "cut", 4, Breaking(4 * 8 + 2))
    assert places(tmp_path / "cut") == [(1, 2)] * 4
    sorted((tmp_path / "cut").rglob(STATE))[1].unlink()
    caplog.clear()
    rest = members(tmp_path / "cut", 4, engine="auto")
    assert "4 networks side by side (paired)" in caplog.messages
    for one, other in zip(rest, whole, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("room")
def test_a_signal_saves_every_pair(tmp_path: Path) -> None:
    whole = members(tmp_path / "whole", 5)
    with signals.heeded(), pytest.raises(signals.Stopped):
        members(tmp_path / "cut", 5, Breaking(5 * 4 + 3, asked), every=1000)
    # The second pair hears of it in its fourth update; the first saves where it is, one further.
    assert places(tmp_path / "cut") == [(0, 4)] * 3 + [(1, 0)] * 2
    assert same(members(tmp_path / "cut", 5, engine="auto"), whole)


def test_a_trial_is_of_pairs() -> None:
    def begin(seed: int, engine: Engine) -> Run:
        run = begin_network(CNN, images(), NoTreatment(), RECIPE, seeds=Seeds.of(seed), engine=engine)
        runs.append(run)
        return run

    runs: list[Run] = []
    updates = trial(lambda: [begin(seed, "paired") for seed in range(5)], "paired")
    next(updates)
    steps = [run.captured.step for run in runs if run.captured is not None]
    assert [steps.index(step) for step in steps] == [0, 0, 2, 2, 4]
    assert sum(1 for _ in updates) == RECIPE.epochs * 5 - 1
    choice = measured_engine([1, 2, 3], begin, "cpu", candidates=("paired", "plain"), set_up_seconds={}, worth=0)
    assert set(choice.milliseconds) == {"paired", "plain"}
