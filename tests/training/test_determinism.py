"""Same seed, same bits; each stream can be held fixed alone; a killed run goes on as if nothing had been."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.checkpoints import load_checkpoint
from flipguard.data import Augmentation, DataSet, load_data
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.types import Batch

CNN = ModelSpec("cnn", {"width": 4, "dropout": 0.5})
SHIFT = Augmentation(crop_padding=1, flip=False)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_data("digits")


def run(digits: DataSet, seeds: Seeds, recipe: Recipe, method: Callable[..., Any] | None = None) -> dict[str, Tensor]:
    network = train_network(CNN, digits, method or NoTreatment(), recipe, seeds=seeds, augmentation=SHIFT)
    return network.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_same_seed_same_bits(digits: DataSet, optimiser: Any) -> None:
    recipe = Recipe(epochs=1, batch_size=256, optimiser=optimiser, learning_rate=0.01)
    first = run(digits, Seeds.of(3), recipe)
    # What was drawn before, and whoever else draws, must not matter.
    torch.manual_seed(99)
    torch.rand(17)
    assert same(first, run(digits, Seeds.of(3), recipe))
    assert not same(first, run(digits, Seeds.of(4), recipe))


class Spy:
    """No treatment, noting what the first step met: weights, rows, inputs, and the noise of dropout."""

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}

    def __call__(self, student: nn.Module, references: Any, batch: Batch) -> Any:
        if not self.weights:
            self.weights = {name: value.clone() for name, value in student.state_dict().items()}
            assert isinstance(batch.x, Tensor)
            self.index, self.x = batch.index.clone(), batch.x[batch.index.argsort()].clone()
            self.noise = torch.get_rng_state()
        return NoTreatment()(student, references, batch)


@pytest.mark.parametrize("stream", ["initialisation", "order", "augment"])
def test_each_stream_alone(digits: DataSet, stream: str) -> None:
    """All rows are one batch, so that the first step sees every row's augmentation, in an order to be compared."""
    rows = len(digits.train)
    recipe = Recipe(epochs=1, batch_size=rows)
    plain, changed = Spy(), Spy()
    first = run(digits, Seeds.of(3), recipe, plain)
    second = run(digits, replace(Seeds.of(3), **{stream: 4}), recipe, changed)
    assert same(plain.weights, changed.weights) is (stream != "initialisation")
    assert torch.equal(plain.index, changed.index) is (stream != "order")
    assert torch.equal(plain.x, changed.x) is (stream != "augment")
    assert torch.equal(plain.noise, changed.noise) is (stream != "augment")
    assert not same(first, second)


SCRIPT = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from flipguard.data import Augmentation, load_data
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, train_network

class Told:
    def __call__(self, student, references, batch):
        print(int(batch.step), flush=True)
        return NoTreatment()(student, references, batch)

def main(folder, data):
    for optimiser in ("sgd", "adamw"):
        lines = folder / f"{optimiser}.jsonl"
        def note(record, network):
            entry = {"epoch": record.epoch, "terms": record.terms, "error": record.train_error}
            entry["rate"] = record.learning_rate
            with lines.open("a") as file:
                file.write(json.dumps(entry) + "\\n")
        network = train_network(
            ModelSpec("cnn", {"width": 4, "dropout": 0.5}), data, Told(),
            Recipe(epochs=3, batch_size=128, optimiser=optimiser, learning_rate=0.01), seeds=Seeds.of(3),
            augmentation=Augmentation(crop_padding=1, flip=False),
            checkpoint=folder / f"{optimiser}.safetensors", checkpoint_every=2, on_epoch=note,
        )
        torch.save(network.state_dict(), folder / f"{optimiser}.pt")

main(Path(sys.argv[1]), load_data("digits"))
"""


def started(folder: Path) -> "subprocess.Popen[str]":
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def killed_after(folder: Path, steps: int) -> list[int]:
    """The steps that a run told of before it was killed."""
    process = started(folder)
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(int(line))
        if len(told) == steps:
            process.kill()
            break
    told += [int(line) for line in process.stdout if line.endswith("\n")]
    process.communicate()
    assert process.returncode == -9
    return told


def records(path: Path) -> dict[int, Any]:
    """By epoch. An epoch that was reported, but not saved, is reported again: with the same figures."""
    found: dict[int, Any] = {}
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        assert found.setdefault(entry["epoch"], entry) == entry
    return found


def test_killed_at_random_steps(tmp_path: Path, alone: Callable[[str, Path], None]) -> None:
    """SGD for 27 steps, then AdamW for 27, killed four times on the way, each time some steps after the start."""
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    alone(SCRIPT, whole)
    chance = random.Random(8)
    starts = []
    for _ in range(4):
        told = killed_after(torn, chance.randint(5, 12))
        starts.append(told[0])
    assert len(set(starts)) > 2, "the runs did not go on where they were"
    alone(SCRIPT, torn)
    for optimiser in ("sgd", "adamw"):
        expected = torch.load(whole / f"{optimiser}.pt", weights_only=True)
        found = torch.load(torn / f"{optimiser}.pt", weights_only=True)
        assert same(expected, found), optimiser
        assert records(torn / f"{optimiser}.jsonl") == records(whole / f"{optimiser}.jsonl")
        assert sorted(records(torn / f"{optimiser}.jsonl")) == [0, 1, 2]
        tensors, facts = load_checkpoint(torn / f"{optimiser}.safetensors")
        assert (facts["epoch"], facts["step"]) == (3, 0)
        assert same({f"student.network.{name}": value for name, value in expected.items()}, tensors)
