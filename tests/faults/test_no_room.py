"""A disk that fills, a folder that cannot be written, memory that is not there: one line, and nothing done is lost.

The disk is a small tmpfs, and the folder a read-only mount, each in a mount namespace of its own: root, whom no file
mode keeps out, is refused too, and nothing is left to unmount. Where namespaces are not allowed, these two are skipped.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from chain import CHAIN, flipguard, same_run, write_chain

from flipguard.releases.yaml_text import as_yaml

pytestmark = pytest.mark.slow
TRAIN = f"OMP_NUM_THREADS=1 {sys.executable} -m flipguard train chain.yaml --out disk/run"


def in_a_namespace(folder: Path, script: str) -> list[str]:
    """What a shell says that may mount what it likes, for itself alone."""
    alone = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a mount namespace of one's own is not allowed here")
    done = subprocess.run([*alone, "sh", "-c", script], capture_output=True, text=True, cwd=folder, check=False)
    return done.stdout.splitlines()


def test_a_disk_that_fills(whole: Path, tmp_path: Path) -> None:
    """It fills in the middle of the chain; with room again, the same command goes on."""
    write_chain(tmp_path)
    (tmp_path / "disk").mkdir()
    said = in_a_namespace(
        tmp_path,
        f"""mount -t tmpfs -o size=260k tmpfs disk
            {TRAIN} 2>&1 >/dev/null; echo $?
            find disk -name '.*.part' | wc -l
            ls disk/run/versions/a/model.json
            mount -o remount,size=9m disk
            {TRAIN} >/dev/null 2>&1; echo $?
            cp -r disk/run kept""",
    )
    assert len(said) == 5, said
    assert said[0].startswith("flipguard: ")
    assert said[0].endswith("cannot be written: No space left on device.")
    assert said[1:] == ["2", "0", "disk/run/versions/a/model.json", "0"]
    assert same_run(whole, tmp_path / "kept") is None


def test_a_folder_that_cannot_be_written(whole: Path, tmp_path: Path) -> None:
    write_chain(tmp_path)
    shutil.copytree(whole, tmp_path / "disk" / "run")
    (tmp_path / "disk/run/versions/c/model.json").unlink()
    said = in_a_namespace(
        tmp_path,
        f"""mount --bind disk disk && mount -o remount,ro,bind disk
            {TRAIN} 2>&1 >/dev/null; echo $?""",
    )
    assert said == ["flipguard: the run folder disk/run cannot be written: Read-only file system.", "2"]


HUNGRY = """
import torch
from torch import nn


class Hungry(nn.Module):
    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        self.layer, self.seed = nn.Linear(64, classes), seed

    def forward(self, x):
        if self.training and torch.is_grad_enabled() and self.seed == {seed}:
            torch.empty(2**50)
        return self.layer(x.flatten(1))


def build(classes: int) -> nn.Module:
    return Hungry(classes, torch.initial_seed())
"""


@pytest.mark.parametrize("processes", [1, 2])
def test_out_of_memory_in_the_third_member(processes: int, tmp_path: Path) -> None:
    """The allocator itself refuses. The message names the knobs; members that were done are not trained again."""
    ensemble = {"name": "elodi", "ensemble": {"members": 3}}
    versions = [{"name": "a", "model": {"name": "hungry:build"}, "method": ensemble, "seed": 40}]
    (tmp_path / "chain.yaml").write_text(as_yaml({**CHAIN, "versions": versions}))
    (tmp_path / "hungry.py").write_text(HUNGRY.format(seed=43))
    train = ["train", "chain.yaml", "--out", "run", "--trust", f"train.processes={processes}"]
    refused = flipguard(tmp_path, *train)
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "flipguard: out of memory at epoch 0, step 0 with batches of 31: set accumulate above"
    )
    assert refused.stderr.count("\n") == 1
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run/members").glob("*/member.safetensors")}
    assert len(kept) == 2 if processes == 1 else len(kept) >= 1
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "stopped"
    (tmp_path / "hungry.py").write_text(HUNGRY.format(seed=-1))
    done = flipguard(tmp_path, *train)
    assert done.returncode == 0, done.stderr
    assert f"a: {len(kept)} of 3 members" in done.stdout
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
