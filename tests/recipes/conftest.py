"""CIFAR-100, AG News and CLINC-150 in the forms in which they are published, of a few rows each."""

import csv
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flipguard.data import load_data
from flipguard.predictions import Predictions

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a recipe as `python recipes/NAME.py …` does, but in this process, and gives what it printed."""

    def run(name: str, *options: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipes")


def write_cifar100(folder: Path, classes: int = 13) -> None:
    """The binary form: a coarse and a fine label, then 3,072 bytes."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for part, rows in (("train", 78), ("test", 26)):
        fine = np.arange(rows, dtype=np.uint8) % classes
        pixels = rng.integers(0, 256, (rows, 3072), dtype=np.uint8)
        (folder / f"{part}.bin").write_bytes(np.column_stack([fine // 5, fine, pixels]).tobytes())
    for name, number in (("fine", classes), ("coarse", 1 + (classes - 1) // 5)):
        (folder / f"{name}_label_names.txt").write_text("".join(f"{name}{i}\n" for i in range(number)))


def write_news(folder: Path) -> None:
    topics = ("election minister treaty", "match goal coach", "market shares profit", "software chip rocket")
    for part, rows in (("train", 160), ("test", 60)):
        with (folder / f"{part}.csv").open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([1 + i % 4, topics[i % 4], f"{topics[i % 4]} on day {i % 7}"] for i in range(rows))


def write_clinc150(path: Path) -> None:
    intents = ("book_flight", "cancel", "weather")
    said = {
        part: [[f"please {intents[i % 3]} {i}", intents[i % 3]] for i in range(rows)]
        for part, rows in (("train", 33), ("val", 9), ("test", 21))
    }
    path.write_text(
        json.dumps({**said, "oos_train": [["what", "oos"]], "oos_val": [["x", "oos"]], "oos_test": [["y", "oos"]]})
    )


@pytest.fixture(scope="module")
def tiny(workplace: Path) -> Path:
    """All three sets in the forms in which they are published, and what is left of an old CIFAR-100 model."""
    folder = workplace / "tiny"
    folder.mkdir()
    write_cifar100(folder / "cifar-100-binary")
    write_news(folder)
    write_clinc150(folder / "data_full.json")
    data = load_data("cifar100", folder=folder)
    old = workplace / "logits"
    old.mkdir()
    for name, split in (("train", data.train), ("test", data.test)):
        logits = torch.zeros(len(split), len(data.classes))
        rows = Predictions.from_arrays(id=split.ids, label=split.y.numpy(), logits=logits, classes=data.classes)
        rows.write(old / f"{name}.parquet")
    return folder
