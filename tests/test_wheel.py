"""The built wheel, in an environment of its own and outside the repository, does what the documentation says."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import flipguard

pytestmark = [pytest.mark.slow, pytest.mark.long]
ROOT = Path(__file__).parent.parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "COVERAGE"))}


def run(*command: str | Path, folder: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done


def another_python() -> str:
    """Python 3.12 where there is one that works: the other version that the package promises to run on."""
    found = shutil.which("python3.12")
    if (
        found
        and subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode == 0
    ):
        return found
    return sys.executable


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel and its dependencies, nothing else.

    Made once for all processes of a test run: whoever comes second waits for the first.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "wheel"
    folder.mkdir(exist_ok=True)
    commands = folder / "venv" / "bin"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT, folder=folder)
            (wheel,) = folder.glob("flipguard-*.whl")
            run(another_python(), "-m", "venv", folder / "venv", folder=folder)
            run(commands / "python", "-m", "pip", "install", "--quiet", wheel, folder=folder)
            (folder / "ready").touch()
    return commands


def write_logs(folder: Path) -> None:
    label = [i % 3 for i in range(101)]
    old = [(c + 1) % 3 if i % 10 == 0 else c for i, c in enumerate(label)]
    new = [(c + 1) % 3 if i % 17 == 0 else c for i, c in enumerate(label)]
    for name, said in (("old", old), ("new", new)):
        lines = [
            f"img_{i:03},{c},{p},{'de' if i % 2 else 'at'}" for i, (c, p) in enumerate(zip(label, said, strict=True))
        ]
        (folder / f"{name}.csv").write_text("\n".join(["id,label,prediction,country", *lines]) + "\n")


def test_the_wheel_compares_two_files(installed: Path, tmp_path: Path) -> None:
    write_logs(tmp_path)
    command = installed / "flipguard"
    assert flipguard.__version__ in run(command, "--version", folder=tmp_path).stdout
    outputs = ["--json", "out.json", "--junit", "out.xml", "--markdown", "out.md"]
    run(command, "compare", "old.csv", "new.csv", *outputs, "--max-nfr", "0.5", folder=tmp_path)
    found = json.loads((tmp_path / "out.json").read_text())
    # Every tenth was wrong, every seventeenth is: both are at 0 alone, among 101.
    assert (found["n"], found["negative_flips"], found["positive_flips"]) == (101, 5, 10)
    assert found["gate"]["passed"] is True
    assert {group["value"] for group in found["slices"]["country"]} == {"de", "at"}
    assert ET.parse(tmp_path / "out.xml").getroot().tag in ("testsuites", "testsuite")
    assert (tmp_path / "out.md").read_text().strip()
    run(command, "compare", "old.csv", "new.csv", "--max-nfr", "0.01", folder=tmp_path, code=1)
    refused = run(command, "compare", "old.csv", "none.csv", folder=tmp_path, code=2)
    assert "Traceback" not in refused.stderr
    assert "none.csv does not exist" in " ".join(refused.stderr.split())


def test_the_wheel_brings_no_torch_and_no_test_tools(installed: Path, tmp_path: Path) -> None:
    listed = run(installed / "python", "-m", "pip", "list", "--format", "json", folder=tmp_path).stdout
    names = {package["name"].lower() for package in json.loads(listed)}
    assert "flipguard" in names
    assert not names & {"torch", "torchmetrics", "pyspark", "pandas", "polars", "pytest", "scikit-learn"}


def test_the_wheel_is_typed_and_imported_from_where_it_lies(installed: Path, tmp_path: Path) -> None:
    program = (
        "import flipguard, pathlib; p = pathlib.Path(flipguard.__file__).parent; print(p, (p / 'py.typed').exists())"
    )
    place, typed = run(installed / "python", "-c", program, folder=tmp_path).stdout.split()
    assert Path(place).is_relative_to(installed.parent)
    assert typed == "True"
