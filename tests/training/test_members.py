"""Members: one per seed, the same wherever they are trained, kept and resumed."""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from flipguard.checkpoints import load_checkpoint
from flipguard.data import DataSet
from flipguard.methods import Dropout, NoTreatment, Paragon
from flipguard.training import ModelSpec, Recipe, Seeds, TrainingError, fit_members, predict_logits, train_network
from flipguard.training.members import MEMBER, STATE
from flipguard.types import DamagedFile, InputError

MLP = ModelSpec("mlp", {"input_size": 11, "hidden": (13,), "dropout": 0.2})
RECIPE = Recipe(epochs=3, batch_size=16, learning_rate=0.05)


def same(one: nn.Module, other: nn.Module) -> bool:
    found = other.state_dict()
    return all(torch.equal(value, found[name]) for name, value in one.state_dict().items())


def test_side_by_side_or_one_after_another(data: DataSet, tmp_path: Path) -> None:
    """Two processes for three members, against one process, against `train_network`, all to the bit."""
    told: list[tuple[int, int]] = []
    members = fit_members(
        MLP, data, RECIPE, [1, 2, 3], folder=tmp_path, processes=2, on_member=lambda *done: told.append(done)
    )
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]
    torch.manual_seed(77)
    drawn = torch.get_rng_state()
    again = fit_members(MLP, data, RECIPE, [Seeds.of(1), 2, 3], processes=1)
    assert torch.equal(torch.get_rng_state(), drawn)
    for seed, (one, other) in enumerate(zip(members, again, strict=True), 1):
        assert same(one, other)
        assert not one.training
        assert same(one, train_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(seed)))
    assert not same(members[0], members[1])
    error = [(predict_logits(m, data).argmax(-1) != data.test.y.numpy()).mean() for m in (*members, Paragon()(members))]
    assert error[-1] <= max(error[:-1])


def test_a_member_that_exists_is_not_trained_again(data: DataSet, tmp_path: Path) -> None:
    first = fit_members(MLP, data, RECIPE, [1, 2], folder=tmp_path, processes=1)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert sorted(path.name for path in files) == [MEMBER, MEMBER]
    time.sleep(0.02)
    told: list[tuple[int, int]] = []
    more = fit_members(
        MLP, data, RECIPE, [2, 1, 3], folder=tmp_path, processes=1, on_member=lambda *done: told.append(done)
    )
    assert told == [(2, 3), (3, 3)]
    assert same(more[0], first[1])
    assert same(more[1], first[0])
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert len(list(tmp_path.iterdir())) == 3


def test_a_state_that_was_left_beside_its_member_goes(data: DataSet, tmp_path: Path) -> None:
    """A process that is stopped between the two leaves both."""
    first = fit_members(MLP, data, RECIPE, [1], folder=tmp_path, processes=1)
    (home,) = tmp_path.iterdir()
    shutil.copy(home / MEMBER, home / STATE)
    again = fit_members(MLP, data, RECIPE, [1], folder=tmp_path, processes=1)
    assert same(first[0], again[0])
    assert [path.name for path in home.iterdir()] == [MEMBER]


def test_a_member_that_another_run_is_at_is_waited_for(data: DataSet, tmp_path: Path) -> None:
    """Two runs that share a folder: the second neither trains the member too nor writes into the first one's files."""
    (done,) = fit_members(MLP, data, RECIPE, [1], folder=tmp_path / "done", processes=1)
    (member,) = (tmp_path / "done").rglob(MEMBER)
    home = tmp_path / "shared" / member.parent.name
    home.mkdir(parents=True)
    other = os.open(home, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as second:
        found = second.submit(fit_members, MLP, data, RECIPE, [1], folder=tmp_path / "shared", processes=1)
        time.sleep(0.3)
        assert not found.done()
        assert not list(home.iterdir())
        written = shutil.copy(member, home)
        before = Path(written).stat().st_mtime_ns
        os.close(other)
        assert same(found.result()[0], done)
    assert Path(written).stat().st_mtime_ns == before


def test_a_damaged_member(data: DataSet, tmp_path: Path) -> None:
    first = fit_members(MLP, data, RECIPE, [1, 2], folder=tmp_path, processes=1)
    member = min(tmp_path.rglob(MEMBER))
    content = member.read_bytes()
    member.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedFile, match=f"{member} is damaged"):
        fit_members(MLP, data, RECIPE, [1, 2], folder=tmp_path, processes=1)
    told: list[tuple[int, int]] = []
    again = fit_members(
        MLP, data, RECIPE, [1, 2], folder=tmp_path, processes=1, repair=True, on_member=lambda *done: told.append(done)
    )
    assert told == [(1, 2), (2, 2)]
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    assert member.read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": replace(RECIPE, epochs=2)},
        {"model": ModelSpec("mlp", {"input_size": 11, "hidden": (17,)})},
        {"method": NoTreatment(label_smoothing=0.1)},
        {"seeds": [Seeds(1, 2, 1)]},
        "labels",
        "inputs",
    ],
    ids=str,
)
def test_anything_that_matters_makes_another_member(data: DataSet, tmp_path: Path, change: Any) -> None:
    arguments: dict[str, Any] = {"model": MLP, "data": data, "recipe": RECIPE, "seeds": [1]}
    fit_members(folder=tmp_path, **arguments)
    if change == "labels":
        change = {"data": replace(data, train=replace(data.train, y=data.train.y.flip(0)))}
    elif change == "inputs":
        change = {"data": replace(data, train=replace(data.train, x=data.train.x + 1))}  # type: ignore[operator]
    fit_members(folder=tmp_path, **{**arguments, **change})
    assert len(list(tmp_path.iterdir())) == 2


def test_a_half_trained_member_goes_on(data: DataSet, tmp_path: Path) -> None:
    """It stops in the second epoch; the next call starts from its last state, and ends where a whole run does."""
    steps: list[int] = []

    class Stop(Exception):
        pass

    def stopping(student: Any, references: Any, batch: Any) -> Any:
        steps.append(int(batch.step))
        if len(steps) == 9:
            raise Stop
        return NoTreatment()(student, references, batch)

    arguments: dict[str, Any] = {"folder": tmp_path, "method": stopping, "checkpoint_every": 2}
    with pytest.raises(Stop):
        fit_members(MLP, data, RECIPE, [1], **arguments)
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == [STATE]
    (member,) = fit_members(MLP, data, RECIPE, [1], **arguments)
    assert steps[:9] == list(range(9))
    assert steps[9:] == list(range(7, 15))
    assert same(member, train_network(MLP, data, NoTreatment(), RECIPE, seeds=Seeds.of(1)))
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == [MEMBER]


def test_a_member_says_what_it_is(data: DataSet, tmp_path: Path) -> None:
    fit_members(MLP, data, RECIPE, [4], folder=tmp_path)
    _, facts = load_checkpoint(next(tmp_path.rglob(MEMBER)))
    assert facts["recipe"]["epochs"] == 3
    assert facts["seeds"] == {"initialisation": 4, "order": 4, "augment": 4}
    assert facts["data"]["train"] == data.fingerprint("train")
    assert facts["versions"]["torch"] == torch.__version__


def test_members_of_a_method_that_changes_the_network(data: DataSet) -> None:
    plain = ModelSpec("mlp", {"input_size": 11, "hidden": (13,)})
    (member,) = fit_members(plain, data, RECIPE, [1], method=Dropout(0.2))
    assert same(member, fit_members(MLP, data, RECIPE, [1])[0])
    assert not same(member, fit_members(plain, data, RECIPE, [1])[0])


def test_bad_seeds(data: DataSet) -> None:
    for seeds in ([], [1, 2, 1]):
        with pytest.raises(InputError, match="needs a seed of its own"):
            fit_members(MLP, data, RECIPE, seeds)
    with pytest.raises(InputError, match="processes must be at least 1"):
        fit_members(MLP, data, RECIPE, [1], processes=0)


def test_a_process_that_dies(data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dying.py").write_text(
        "import os, signal\ndef network(**options):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TrainingError, match="a member's process ended before it was done"):
        fit_members(ModelSpec("dying:network"), data, RECIPE, [1, 2], processes=2)


SCRIPT = """
import sys
from flipguard.data import load_data
from flipguard.training import ModelSpec, Recipe, fit_members
if __name__ == "__main__":
    recipe = Recipe(epochs=100_000, batch_size=64)
    data, folder = load_data("digits"), sys.argv[1]
    fit_members(ModelSpec("mlp"), data, recipe, [1, 2], folder=folder, processes=2, checkpoint_every=1)
"""


def test_a_killed_run_takes_its_processes_along(tmp_path: Path) -> None:
    script, folder = tmp_path / "endless.py", tmp_path / "members"
    script.write_text(SCRIPT)
    parent = subprocess.Popen([sys.executable, str(script), str(folder)])
    try:
        deadline = time.monotonic() + 300
        while len(list(folder.rglob(STATE))) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        children = psutil.Process(parent.pid).children(recursive=True)
    finally:
        parent.kill()
        parent.wait()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
    states = list(folder.rglob(STATE))
    assert len(states) == 2
    for state in states:
        assert load_checkpoint(state)[1]["run"]["recipe"]["epochs"] == 100_000
