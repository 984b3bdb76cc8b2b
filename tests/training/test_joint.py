"""Students of several networks in the loop: stopped and resumed, and in two processes."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flipguard.checkpoints import load_checkpoint
from flipguard.data import Augmentation, load_data
from flipguard.methods import build_method
from flipguard.training import Epoch, ModelSpec, Recipe, Seeds, train_network
from flipguard.types import Batch, Reference, Step

CNN = ModelSpec("cnn", {"width": 4, "dropout": 0.5})
METHODS = {
    "codistill_skl": {"beta": 1.0, "regulariser": "entropy"},
    "codistill_ce": {"beta": 1.0, "every": 4, "burn_in": 0.3},
}


class Stop(Exception):
    pass


class Stopped:
    """A method that is interrupted when it comes to a step."""

    def __init__(self, method: Any, at: int | None) -> None:
        self._method, self._at, self.student = method, at, method.student

    def __call__(self, student: Any, references: Mapping[str, Reference], batch: Batch) -> Step:
        if self._at is not None and int(batch.step) == self._at:
            raise Stop
        step: Step = self._method(student, references, batch)
        return step


def trained(name: str, path: Path, at: int | None) -> tuple[dict[str, Tensor], list[Epoch]]:
    records: list[Epoch] = []
    network = train_network(
        CNN,
        load_data("digits"),
        Stopped(build_method(name, **METHODS[name]), at),
        Recipe(epochs=2, batch_size=128, learning_rate=0.05),
        seeds=Seeds.of(3),
        augmentation=Augmentation(crop_padding=1, flip=False),
        checkpoint=path,
        checkpoint_every=3,
        on_epoch=lambda record, _: records.append(record),
    )
    return network.state_dict(), records


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return set(one) == set(other) and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    """Stopped after saves at steps 6 and 12 of 18; the copies were taken at 4 and 8, so the file must hold them."""
    whole, records = trained(name, tmp_path / "whole.safetensors", None)
    torn = tmp_path / "torn.safetensors"
    for at in (7, 14):
        with pytest.raises(Stop):
            trained(name, torn, at)
    found, rest = trained(name, torn, None)
    assert same(found, whole)
    assert rest[-1].terms == records[-1].terms
    expected, finished = (load_checkpoint(tmp_path / f"{run}.safetensors")[0] for run in ("whole", "torn"))
    assert same(finished, expected)
    assert any(entry.startswith("student.stale.") for entry in expected) is (name == "codistill_ce")
    for entry, value in whole.items():
        assert torch.equal(expected[f"student.networks.0.{entry}"], value)


SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from flipguard.data import load_data
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.training.distributed import place

rank, world = place()
data = load_data("digits")
for name, options in METHODS:
    network = train_network(
        ModelSpec("mlp", {"hidden": (16,)}), data, build_method(name, **options), Recipe(epochs=1, batch_size=128),
        seeds=Seeds.of(3),
    )
    torch.save(network.state_dict(), Path(sys.argv[1]) / f"{name}-{rank}-of-{world}.pt")
"""


def test_two_processes_get_what_one_gets(tmp_path: Path, alone: Callable[[str, Path], None]) -> None:
    script = SCRIPT.replace("METHODS", repr(list(METHODS.items())))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    team = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places = [{**team, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=place, stderr=subprocess.PIPE, text=True)
        for place in places
    ]
    try:
        alone(script, tmp_path)
        ends = [(process.communicate(timeout=300)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert [code for _, code in ends] == [0] * len(places), "\n".join(errors for errors, _ in ends)
    for name in METHODS:
        one, first, second = (
            torch.load(tmp_path / f"{name}-{run}.pt", weights_only=True) for run in ("0-of-1", "0-of-2", "1-of-2")
        )
        for entry, value in one.items():
            assert torch.equal(first[entry], second[entry])
            assert torch.allclose(first[entry], value, atol=1e-5)
