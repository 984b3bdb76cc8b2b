"""A small data set that every test here trains on: 11 numbers, 7 classes, a rule that a linear network can learn."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flipguard.data import DataSet, Split

C, D = 7, 11


def _part(rows: int, generator: torch.Generator, rule: torch.Tensor, first: int) -> Split:
    x = torch.randn(rows, D, generator=generator)
    return Split(x, (x @ rule).argmax(-1), np.arange(first, first + rows))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """A script as `python -c SCRIPT FOLDER` runs it outside of any team, in this process: nothing happens to it."""

    def run(script: str, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(sys, "argv", ["", str(folder)])
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        exec(script, {})

    return run


@pytest.fixture
def data() -> DataSet:
    generator = torch.Generator().manual_seed(5)
    rule = torch.randn(D, C, generator=generator)
    train, validation, test = (_part(n, generator, rule, first) for n, first in ((83, 0), (41, 1000), (43, 2000)))
    return DataSet("toy", train, test, tuple("abcdefg"), "features", validation=validation)
