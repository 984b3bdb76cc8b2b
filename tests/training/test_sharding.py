"""A student in pieces is trained to what it would be whole, and leaves nothing but whole files."""

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.checkpoints import load_checkpoint
from flipguard.ensembles import SingleStudent
from flipguard.training import ModelSpec
from flipguard.training.distributed import Team, is_sharded
from flipguard.training.sharding import UNIT_SHARE, called, units
from flipguard.training.simple import fit
from flipguard.types import InputError

pytestmark = [pytest.mark.slow, pytest.mark.long]
SCRIPT = Path(__file__).with_name("sharded_team.py")


def start(folder: Path, world: int, *commands: str) -> None:
    """The script in so many processes, with what torchrun sets."""
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    team = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(world):
        environment = {**os.environ, **team, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        line = [sys.executable, str(SCRIPT), str(folder), *commands]
        processes.append(subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        ends = [(process.communicate(timeout=120)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [code for _, code in ends] == [0] * world, "\n".join(errors for errors, _ in ends)
    assert not any("Warning" in errors for errors, _ in ends), ends


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One process and two in pieces, both stopped and gone on; and one and three that go on where the two stopped."""
    folder, here = tmp_path_factory.mktemp("sharded"), runpy.run_path(str(SCRIPT))
    start(folder / "two", 2, "train", "compare")
    for name in ("one", "one_after_two", "three_after_two"):
        (folder / name).mkdir()
        if name != "one":
            shutil.copy(folder / "two/stopped.safetensors", folder / name / "state.safetensors")
    here["train"](folder / "one")
    here["train"](folder / "one_after_two")
    start(folder / "three_after_two", 3, "train")
    return folder


@pytest.mark.parametrize(
    ("team", "world"), [("two", 2), ("one_after_two", 1), ("three_after_two", 3)], ids=["two", "one", "three"]
)
def test_pieces_are_trained_to_what_one_process_trains(team: str, world: int, trained: Path) -> None:
    alone, records = (json.loads((trained / name / "0.json").read_text()) for name in ("one", team))
    assert len(alone) == len(records) == 2
    for mine, theirs in zip(alone, records, strict=True):
        assert theirs == pytest.approx(mine, abs=1e-5)
    wanted = torch.load(trained / "one/0.pt", weights_only=True)
    for rank in range(world):
        found = torch.load(trained / team / f"{rank}.pt", weights_only=True)
        assert list(found) == list(wanted)
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=1e-5, msg=name)
        # Only the first process reports.
        assert rank == 0 or json.loads((trained / team / f"{rank}.json").read_text()) == []


@pytest.mark.parametrize(
    ("team", "file"),
    [("two", "stopped.safetensors"), ("two", "state.safetensors"), ("three_after_two", "state.safetensors")],
)
def test_the_checkpoint_is_the_one_of_one_process(team: str, file: str, trained: Path) -> None:
    (mine, facts), (theirs, told) = (load_checkpoint(trained / name / file) for name in ("one", team))
    assert {name: (value.shape, value.dtype) for name, value in mine.items()} == {
        name: (value.shape, value.dtype) for name, value in theirs.items()
    }
    for name, value in mine.items():
        if not name.startswith("random."):
            torch.testing.assert_close(theirs[name], value, rtol=0, atol=1e-4, msg=name)
    assert {**facts, "seconds": 0} == {**told, "seconds": 0}
    assert any(name.startswith("optimiser.") for name in mine)


@pytest.fixture
def compared(trained: Path) -> list[Any]:
    return [json.loads((trained / f"two/compared-{rank}.json").read_text()) for rank in (0, 1)]


def test_every_kind_of_student_and_step_is_that_of_data_parallel_training(compared: list[Any]) -> None:
    """Weights and BatchNorm's statistics, in both processes."""
    for told in compared:
        assert len(told["worst"]) == 11
        # Clipping adds up a norm in another order, and a network with BatchNorm makes more of it.
        assert {name: value for name, value in told["worst"].items() if value > 1e-5} == {}


def test_each_process_holds_half_of_everything(compared: list[Any]) -> None:
    whole = compared[0]["held"]["whole"]
    assert whole["weights"] == whole["gradients"] == whole["optimiser"] / 2
    for kind, amount in whole.items():
        shares = [told["held"]["pieces"][kind] for told in compared]
        # All of it is there once, and in equal parts: every layer's rows are even.
        assert sum(shares) == amount
        assert shares[0] == shares[1]


def test_a_single_number_a_mean_of_epochs_and_every_member_are_refused(compared: list[Any]) -> None:
    expected = [
        "network.scale is a single number, which cannot be sharded: leave train.sharded out, or make it a vector.",
        "average has no form for a student in pieces: train it whole, or leave average out.",
        "all_members has no form for a student in pieces: train it whole.",
    ]
    assert [told["refused"] for told in compared] == [expected] * 2


class Odd(nn.Module):
    """A layer that is called, one whose weight alone is read, and one that shares its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(11, 7), nn.Linear(7, 7)
        self.first, self.second = nn.Linear(7, 7), nn.Linear(7, 7)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(self.called(x), self.read.weight, self.read.bias)
        return torch.as_tensor(self.second(self.first(y)))


def test_units_are_called_and_share_nothing() -> None:
    network = Odd()
    student = SingleStudent(network)
    assert called(student, torch.zeros(2, 11)) == {network, network.called, network.first, network.second}
    assert units(student, torch.zeros(2, 11)) == [network.called]
    assert all(module.training for module in student.modules())


def test_units_are_a_networks_blocks() -> None:
    network = ModelSpec("resnet20").build(10, 0)
    found = units(SingleStudent(network), torch.zeros(2, 3, 32, 32))
    assert len(found) > UNIT_SHARE
    most = sum(p.numel() for p in network.parameters()) / UNIT_SHARE
    # None is too large but where a single layer is; together they leave only small change over.
    assert all(sum(p.numel() for p in unit.parameters()) <= most or not list(unit.children()) for unit in found)
    covered = {id(p): p.numel() for unit in found for p in unit.parameters()}
    assert sum(covered.values()) > 0.99 * UNIT_SHARE * most


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("ACCELERATE_USE_DEEPSPEED", "true", r"DeepSpeed is not supported \(ACCELERATE_USE_DEEPSPEED is set\)"),
        ("ACCELERATE_USE_MEGATRON_LM", "true", "Megatron-LM is not supported"),
        ("FSDP_OFFLOAD_PARAMS", "true", "FSDP_OFFLOAD_PARAMS is not supported: leave it out."),
        ("FSDP_ACTIVATION_CHECKPOINTING", "true", "not supported: set train.checkpoint_activations: true."),
        ("FSDP_SHARDING_STRATEGY", "HYBRID_SHARD", "the sharding strategy HYBRID_SHARD is not supported"),
    ],
)
def test_a_configuration_that_asks_for_more_is_refused(
    variable: str, value: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert is_sharded(asked=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=expected):
        is_sharded(asked=False)


def test_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_USE_FSDP", raising=False)
    assert is_sharded(asked=True)
    assert not is_sharded(asked=False)


def test_a_network_that_is_trained_in_place_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match="fit trains the given network in place"):
        fit(nn.Linear(2, 3), [(torch.eye(2), torch.tensor([0, 1]))])


def test_one_process_alone_says_that_nothing_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert Team.gather("cpu", sharded=True) == Team(0, 1)
    assert caplog.messages == ["sharded: nothing is cut into pieces, as one process trains alone."]
    caplog.clear()
    Team.gather("cpu")
    assert caplog.messages == []
