"""Two real processes on two networks of their own, joined by one cable, train what one process trains."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.releases import train
from flipguard.releases.yaml_text import as_yaml
from flipguard.spec import parse_training_spec

pytestmark = pytest.mark.slow
SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "per_class": 13},
    "old": {"model": {"name": "mlp", "hidden": [5]}},
    "new": {"model": {"name": "mlp", "hidden": [7]}},
    "method": {"name": "elodi", "mix": 0.7, "ensemble": {"members": 2, "spread": True}},
    "train": {"epochs": 2, "batch_size": 32, "accumulate": 2, "learning_rate": 0.05, "device": "cpu", "processes": 1},
}
ADDRESS = "10.177.{}.{}"


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@pytest.fixture
def namespaces() -> Iterator[list[tuple[str, str, str]]]:
    """Of each of two network namespaces its name, its end of the cable, and its address."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need the command ip and root")
    number = os.getpid() % 250
    made = [(f"flip{number}{side}", f"fl{number}{side}", ADDRESS.format(number, i)) for i, side in enumerate("ab", 1)]
    try:
        try:
            for name, _, _ in made:
                ip("netns", "add", name)
            ip("link", "add", made[0][1], "type", "veth", "peer", "name", made[1][1])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.strip()}")
        for name, cable, address in made:
            ip("link", "set", cable, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            ip("-n", name, "link", "set", cable, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield made
    finally:
        for name, _, _ in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.mark.parametrize(
    "sharded", [pytest.param(False, id="whole"), pytest.param(True, id="sharded", marks=pytest.mark.long)]
)
def test_two_processes_in_two_network_namespaces(
    namespaces: list[tuple[str, str, str]], sharded: bool, tmp_path: Path
) -> None:
    spec = {**SPEC, "train": {**SPEC["train"], "sharded": sharded}}
    (tmp_path / "spec.yaml").write_text(as_yaml(spec))
    processes = []
    for rank, (name, cable, _) in enumerate(namespaces):
        launcher = ["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1", "--master-port=29517"]
        launcher += [f"--master-addr={namespaces[0][2]}", "-m", "flipguard", "train", "spec.yaml", "--out", "two"]
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", *launcher]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cable}
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True))
    # Nothing but the cable joins them.
    seen = subprocess.run(["ip", "-n", namespaces[0][0], "-br", "link"], capture_output=True, text=True, check=True)
    assert {line.split("@")[0].split()[0] for line in seen.stdout.splitlines()} == {"lo", namespaces[0][1]}
    try:
        ends = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [process.returncode for process in processes] == [0, 0], ends
    assert ends[0][0].count("done: two\n") == 1
    assert ends[1][0] == ""
    train(parse_training_spec(SPEC), tmp_path / "one")
    for version in ("old", "new"):
        one, two = (
            load_checkpoint(tmp_path / out / f"versions/{version}/model.safetensors")[0] for out in ("one", "two")
        )
        for name, value in one.items():
            torch.testing.assert_close(two[name], value, rtol=0, atol=1e-5, msg=name)
