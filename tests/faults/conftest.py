"""A chain that ran through unbroken, and copies of it to do harm to."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chain import in_this_process, write_chain

# Its assertions say as much as a test's own.
pytest.register_assert_rewrite("scenarios")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a chain that nothing happened to; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    write_chain(folder)
    done = in_this_process(folder, "train", "chain.yaml", "--out", "run")
    assert done.exit_code == 0, done.stderr
    return folder / "run"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Callable[[], Path]:
    """A copy of that run, beside its spec."""

    def make() -> Path:
        write_chain(tmp_path)
        return Path(shutil.copytree(whole, tmp_path / "run"))

    return make
