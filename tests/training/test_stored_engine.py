"""Members go on by the engine that they were begun with; one that is not there is said in a line."""

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import load_facts
from flipguard.data import DataSet
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, fit_members, signals, train_network
from flipguard.training.engines import Engine
from flipguard.training.members import MEMBER, STATE

SEEDS = (1, 2, 3)
RECIPE = Recipe(epochs=2, batch_size=16, learning_rate=0.05, clip_norm=5.0)
BOTH = pytest.mark.parametrize("engine", ["stacked", "grouped"])
MLP = ModelSpec("mlp", {"input_size": 11, "hidden": (13,)})


class Stop(Exception):
    pass


class Breaking:
    """No treatment, up to a call; it has a name in the facts of a run and nothing else."""

    __name__ = "breaking"

    def __init__(self, calls: int, how: Any) -> None:
        self.calls, self.how = calls, how

    def __call__(self, student: Any, references: Any, batch: Any) -> Any:
        self.calls -= 1
        if self.calls == 0:
            self.how()
        return NoTreatment()(student, references, batch)


def never() -> Breaking:
    return Breaking(-1, None)


def raised() -> None:
    raise Stop


def members(folder: Path, data: DataSet, engine: Engine, seeds: Sequence[int] = SEEDS, **options: Any) -> list[Any]:
    options = {"method": never(), "checkpoint_every": 1, **options}
    found = fit_members(MLP, data, RECIPE, seeds, folder=folder, processes=1, engine=engine, **options)
    return [network.state_dict() for network in found]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@BOTH
def test_members_go_on_by_the_engine_they_were_begun_with(
    engine: Engine, data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut off in the second epoch; "auto" takes the stored choice up, and ends with the bits of an unbroken run."""
    caplog.set_level(logging.INFO)
    whole = members(tmp_path / "whole", data, engine)
    with pytest.raises(Stop):
        # One warm-up and seven updates of three members; the eighth breaks.
        members(tmp_path / "cut", data, engine, method=Breaking(3 * 8 + 2, raised))
    states = sorted((tmp_path / "cut").rglob(STATE))
    assert [(f["epoch"], f["step"], f["engine"]) for f in map(load_facts, states)] == [(1, 2, engine)] * 3
    caplog.clear()
    rest = members(tmp_path / "cut", data, "auto")
    assert caplog.messages == [
        f"engine: {engine}, by which these members were begun",
        f"3 networks in one step ({engine})",
    ]
    assert all(same(one, other) for one, other in zip(rest, whole, strict=True))
    assert {load_facts(path)["engine"] for path in (tmp_path / "cut").rglob(MEMBER)} == {engine}
    assert not list((tmp_path / "cut").rglob(STATE))


def test_members_at_different_places_go_on_in_groups(
    data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    whole = members(tmp_path / "whole", data, "stacked")
    with pytest.raises(Stop):
        members(tmp_path / "cut", data, "stacked", method=Breaking(3 * 8 + 2, raised))
    sorted((tmp_path / "cut").rglob(STATE))[1].unlink()
    caplog.clear()
    rest = members(tmp_path / "cut", data, "auto")
    assert sorted(record.args[0] for record in caplog.records if "in one step" in record.msg) == [1, 2]  # type: ignore[index]
    for one, other in zip(rest, whole, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=1e-4, atol=1e-6)


def test_a_signal_saves_all_at_one_place(data: DataSet, tmp_path: Path) -> None:
    def asked() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with signals.heeded(), pytest.raises(signals.Stopped):
        members(tmp_path / "cut", data, "grouped", method=Breaking(3 * 3 + 2, asked), checkpoint_every=1000)
    assert [(f["epoch"], f["step"]) for f in map(load_facts, (tmp_path / "cut").rglob(STATE))] == [(0, 3)] * 3
    whole = members(tmp_path / "whole", data, "grouped")
    assert all(same(*pair) for pair in zip(members(tmp_path / "cut", data, "auto"), whole, strict=True))


def test_another_engine_is_taken_when_asked_for(
    data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(Stop):
        members(tmp_path, data, "stacked", method=Breaking(3 * 8 + 2, raised))
    members(tmp_path, data, "grouped")
    assert "begun by the engine stacked, this goes on by grouped, as asked." in caplog.text
    assert "3 networks in one step (grouped)" in caplog.text


def test_finished_members_bind_nobody_on_the_cpu(data: DataSet, tmp_path: Path) -> None:
    """Its default stays a process for each, whose bits depend on nothing else."""
    members(tmp_path, data, "stacked", seeds=[1])
    new = members(tmp_path, data, "auto", seeds=[1, 2])[1]
    assert same(new, train_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(2)).state_dict())


def test_an_engine_that_needs_a_gpu_says_so(data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plain = members(tmp_path / "plain", data, "auto")
    assert not caplog.records
    assert same(members(tmp_path / "captured", data, "captured")[2], plain[2])
    assert caplog.messages == ["each member in a process of its own: the engine captured needs a GPU."]
    caplog.clear()
    for engine, reason in (("captured", "a GPU"), ("stacked", "other networks")):
        network = train_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(1), engine=engine)
        assert caplog.messages == [f"plain loop: the engine {engine} needs {reason}."]
        caplog.clear()
        wanted = train_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(1))
        assert same(network.state_dict(), wanted.state_dict())
