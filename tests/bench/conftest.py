"""A small bench on digits, run once."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flipguard.bench.run import Bench

sys.path.insert(0, str(Path(__file__).parent))

from small_bench import parsed


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """As a bench's processes have it: with two, the same network comes out another in its last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a bench that ran to its end."""
    folder = tmp_path_factory.mktemp("bench")
    Bench(parsed(), folder).run(processes=1)
    return folder
