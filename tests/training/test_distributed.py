"""Two real processes get what one gets."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flipguard.training import Recipe, distributed
from flipguard.training.distributed import Team, place
from flipguard.training.errors import Diverged, OutOfMemory
from flipguard.types import InputError

SCRIPT = """
import atexit, json, sys
from dataclasses import replace
from pathlib import Path
import torch
torch.set_num_threads(1)
from flipguard.data import load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, TrainingError, train_network
from flipguard.training.distributed import place

out, (rank, world) = Path(sys.argv[1]), place()

def threads(when):
    names = [task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")]
    (out / f"{rank}-threads-{when}.json").write_text(json.dumps(names))

if world > 1:
    # The first to be registered is the last to be called.
    atexit.register(threads, "at the end")
data, spec = load_data("digits"), ModelSpec("mlp", {"hidden": (32,)})
recipe = Recipe(epochs=2, batch_size=128, accumulate=2, clip_norm=1.0)
old = {"old": NetworkReference("old", [spec.build(10, 5)])}
records = []

def note(record, network):
    records.append({"terms": record.terms, "error": record.train_error})

arguments = dict(
    seeds=Seeds.of(3), references=old, on_epoch=note, checkpoint=out / "state.safetensors", checkpoint_every=3
)
class Stop(Exception):
    pass

class Broken:
    def __call__(self, student, references, batch):
        if broken and int(batch.step) == 5:
            raise Stop
        return build_method("kd")(student, references, batch)

# Two processes stop in the midst of an epoch, after a save at step 3, and go on from there.
broken = world > 1
if broken:
    try:
        train_network(spec, data, Broken(), recipe, **arguments)
    except Stop:
        broken = False
network = train_network(spec, data, Broken(), recipe, **arguments)
torch.save(network.state_dict(), out / f"{rank}-of-{world}.pt")
poisoned = data.train.x.float()
poisoned[13] = float("nan")
try:
    train_network(
        spec, replace(data, train=replace(data.train, x=poisoned)), build_method("none"), recipe, seeds=Seeds.of(3)
    )
except TrainingError as error:
    failure = str(error).split(" (")[0]
if world > 1:
    threads("in between")
(out / f"{rank}-of-{world}.json").write_text(json.dumps({"records": records, "failure": failure}))
"""


def run(folder: Path, world: int, *arguments: str, script: str = SCRIPT) -> list[tuple[str, int]]:
    """What each process of a team says of errors, and its exit status."""
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(world):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # What torchrun sets.
        environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", script, str(folder), *arguments]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        return [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_two_processes_get_the_losses_of_one(tmp_path: Path, alone: Callable[[str, Path], None]) -> None:
    alone(SCRIPT, tmp_path / "one")
    ends = run(tmp_path / "two", 2)
    assert [code for _, code in ends] == [0, 0], "\n".join(errors for errors, _ in ends)
    alone = json.loads((tmp_path / "one" / "0-of-1.json").read_text())
    first, second = (json.loads((tmp_path / "two" / f"{rank}-of-2.json").read_text()) for rank in (0, 1))
    assert len(alone["records"]) == 2
    for one, two in zip(alone["records"], first["records"], strict=True):
        assert two["terms"] == pytest.approx(one["terms"], abs=1e-5)
        assert two["error"] == pytest.approx(one["error"], abs=1e-9)
    assert alone["records"][0]["terms"] != alone["records"][1]["terms"]
    # The other process reports nothing, and has the same weights to the bit.
    assert second["records"] == []
    weights = [torch.load(tmp_path / "two" / f"{rank}-of-2.pt", weights_only=True) for rank in (0, 1)]
    single = torch.load(tmp_path / "one" / "0-of-1.pt", weights_only=True)
    for name, value in single.items():
        assert torch.equal(weights[0][name], weights[1][name])
        assert torch.allclose(weights[0][name], value, atol=1e-5)
    # A loss that breaks in one process stops both, at the same step.
    assert alone["failure"].startswith("the loss is not finite at epoch ")
    assert first["failure"] == second["failure"] == alone["failure"]
    # Gloo's threads are gone before Python is: one that is not can abort a process that is done.
    for rank in (0, 1):
        before, end = (
            json.loads((tmp_path / "two" / f"{rank}-threads-{when}.json").read_text())
            for when in ("in between", "at the end")
        )
        assert any("gloo" in thread for thread in before)
        assert end
        assert not any("gloo" in thread for thread in end)


LEAVING = """
import atexit, sys
from pathlib import Path
import torch
from torch import distributed
torch.set_num_threads(1)
from flipguard.data import load_data
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.training.distributed import place

out, how, (rank, _) = Path(sys.argv[1]), sys.argv[2], place()

# The first to be registered is the last to be called.
atexit.register(lambda: (out / str(rank)).write_text("in it" if distributed.is_initialized() else "left"))

class Failing:
    def __call__(self, student, references, batch):
        if how == "one fails" and rank == 0 and int(batch.step) == 3:
            raise KeyError
        return build_method("none")(student, references, batch)

if how == "their own group":
    distributed.init_process_group("gloo")
train_network(
    ModelSpec("mlp", {"hidden": (16,)}), load_data("digits"), Failing(), Recipe(epochs=1, batch_size=128),
    seeds=Seeds.of(3),
)
"""


@pytest.mark.parametrize(
    ("how", "where"),
    [("all is well", ["left", "left"]), ("one fails", ["in it", "in it"]), ("their own group", ["in it", "in it"])],
)
def test_who_leaves_a_team(how: str, where: list[str], tmp_path: Path) -> None:
    """A process whose team is broken ends without it: it could wait for the others, and they for its end."""
    ends = run(tmp_path / "two", 2, how, script=LEAVING)
    assert [(tmp_path / "two" / rank).read_text() for rank in "01"] == where, ends
    if how == "all is well":
        assert [code for _, code in ends] == [0, 0]
    if how == "one fails":
        assert all(code for _, code in ends)
        assert "KeyError" in ends[0][0]


def test_a_team_is_whole_again_when_it_has_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a real group of one; what a process does alone says nothing of its team."""
    monkeypatch.setattr(distributed, "_broken", False)
    for error, world, leaves in (
        (Diverged, 2, True),
        (OutOfMemory, 2, False),
        (Diverged, 2, False),
        (None, 1, False),
        (None, 2, True),
        (KeyError, 1, True),
        (KeyError, 2, False),
    ):
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        with nullcontext() if error is None else pytest.raises(error), Team(0, world).at_work(Diverged):
            if error is not None:
                raise error
        distributed.leave()
        assert torch.distributed.is_initialized() is not leaves, (error, world)
    torch.distributed.destroy_process_group()


def test_one_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert place() == (0, 1)
    team, student = Team.gather("cpu"), nn.Linear(3, 5)
    optimiser: Any = torch.optim.SGD(student.parameters(), lr=0.1)
    assert team.prepare(student, optimiser) == (student, optimiser)
    value = torch.tensor(2.5)
    assert team.total(value) is value
    assert team.least(value) is value
    assert team.device("cuda:1") == "cuda:1"


def test_batches_that_do_not_divide() -> None:
    recipe = Recipe(batch_size=12, accumulate=2)
    Team(0, 3).check_batch(recipe.batch_size, recipe.accumulate)
    with pytest.raises(InputError, match="batch_size 12 does not divide into 4 processes × 2 equal parts"):
        Team(0, 4).check_batch(recipe.batch_size, recipe.accumulate)
