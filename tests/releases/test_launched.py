"""`flipguard train` under a launcher: two real processes make the run folder that one makes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.releases import load_release, train
from flipguard.releases.run import check
from flipguard.releases.yaml_text import as_yaml
from flipguard.spec import parse_training_spec
from flipguard.spec.training import changed
from flipguard.types import InputError

SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "versions": [
        {"model": {"name": "mlp", "hidden": [5]}},
        {"model": {"name": "mlp", "hidden": [5]}, "method": "weight_interpolation"},
        {
            "model": {"name": "mlp", "hidden": [7]},
            "method": {"name": "elodi", "mix": 0.7, "ensemble": {"members": 3, "spread": True}},
            "train": {"choose_epoch": "validation"},
        },
        {"model": {"name": "mlp", "hidden": [3]}, "method": {"name": "paragon", "ensemble": {"members": 2}}},
    ],
    "train": {"epochs": 3, "batch_size": 32, "learning_rate": 0.05, "device": "cpu", "processes": 1},
}
pytestmark = pytest.mark.slow
VERSIONS = ("v0", "v1", "v2", "v3")


TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def launched(
    folder: Path, out: str, *changes: str, launcher: Sequence[str] = TORCHRUN
) -> "subprocess.CompletedProcess[str]":
    """The command itself, in two processes by torchrun."""
    (folder / "spec.yaml").write_text(as_yaml(SPEC))
    start = [sys.executable, *launcher, "-m", "flipguard", "train", "spec.yaml", *changes, "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(start, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launched")
    train(parse_training_spec(SPEC), folder / "one")
    done = launched(folder, "two")
    assert done.returncode == 0, done.stderr
    # The first process alone speaks.
    assert done.stdout.count("done: two\n") == 1
    assert done.stdout.count("v2: epoch 3 of 3") == 1
    assert done.stdout.count("v2: 3 of 3 members") == 1
    return folder


@pytest.mark.parametrize("version", VERSIONS)
def test_two_processes_train_the_networks_of_one(version: str, runs: Path) -> None:
    one, two = (load_checkpoint(runs / out / f"versions/{version}/model.safetensors")[0] for out in ("one", "two"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=0, atol=1e-5, msg=name)


def test_an_accelerate_configuration_shards(runs: Path) -> None:
    """By `accelerate launch --use_fsdp`: the same weights, whole; and the run that one process made is taken for it."""
    launcher = ["-m", "accelerate.commands.launch", "--use_fsdp", "--fsdp_version=2", "--num_processes=2"]
    launcher += ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0"]
    done = launched(runs, "sharded", launcher=launcher)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: sharded\n") == 1
    for version in VERSIONS:
        one, two = (
            load_checkpoint(runs / out / f"versions/{version}/model.safetensors")[0] for out in ("one", "sharded")
        )
        assert one.keys() == two.keys()
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=0, atol=1e-5, msg=name)
    again = changed(SPEC, ["train.sharded=true"])
    assert train(parse_training_spec(again), runs / "sharded").found


def test_members_are_the_same_to_the_bit(runs: Path) -> None:
    one, two = (sorted((runs / out).glob("members/*/*")) for out in ("one", "two"))
    assert [path.relative_to(runs / "one") for path in one] == [path.relative_to(runs / "two") for path in two]
    assert len(one) == 5
    for mine, theirs in zip(one, two, strict=True):
        a, b = load_checkpoint(mine)[0], load_checkpoint(theirs)[0]
        assert all(torch.equal(a[name], b[name]) for name in a)


def test_the_folder_holds_what_one_process_writes(runs: Path) -> None:
    found = [
        {str(path.relative_to(runs / out)) for path in (runs / out).rglob("*") if path.is_file()}
        for out in ("one", "two")
    ]
    # What the command writes for readers, beyond what the library does.
    cards = {f"versions/{version}/card.md" for version in VERSIONS}
    assert found[1] - found[0] == {"comparison.md", "chain.svg", *cards}
    assert not found[0] - found[1]
    for version in VERSIONS[:3]:
        lines = (runs / f"two/versions/{version}/metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    assert json.loads((runs / "two/run.json").read_text())["status"] == "finished"
    assert load_release(runs / "two").members == 2


def test_the_same_command_again_finds_it_finished(runs: Path) -> None:
    before = (runs / "two/versions/v3/model.safetensors").stat().st_mtime_ns
    done = launched(runs, "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished: two\n") == 1
    assert (runs / "two/versions/v3/model.safetensors").stat().st_mtime_ns == before


def test_a_run_of_two_processes_goes_on_in_one(runs: Path) -> None:
    """What one way of working has left, the other takes up: the last version is made again from its members."""
    for file in ("model.json", "model.safetensors"):
        (runs / "two/versions/v3" / file).unlink()
    train(parse_training_spec(SPEC), runs / "two")
    one, two = (load_checkpoint(runs / out / "versions/v3/model.safetensors")[0] for out in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_what_cannot_be_shared_out_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    done = launched(tmp_path, "a", "train.batch_size=31")
    assert done.returncode != 0
    expected = "flipguard: version v0.train: batch_size 31 does not divide into 2 processes × 1 equal parts.\n"
    assert done.stderr.count(expected) == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("changes", "variables", "expected"),
    [
        (["versions.2.method.ensemble.members=1"], {}, "spread: 1 members cannot be spread over 2 processes."),
        (["versions.2.method.perturbation=ods"], {}, "spread: a perturbation needs gradients through every member"),
        ([], {"ACCELERATE_USE_DEEPSPEED": "true"}, r"DeepSpeed is not supported \(ACCELERATE_USE_DEEPSPEED is set\)"),
    ],
)
def test_what_cannot_be_done_together(
    changes: list[str], variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=expected):
        check(parse_training_spec(changed(SPEC, changes)), tmp_path / "a")
    assert not (tmp_path / "a").exists()
