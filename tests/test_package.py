"""What would be uploaded: both archives are built and checked, and the wheel runs in an environment of its own."""

import email
import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import flipguard

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "COVERAGE"))}


def run(*command: str | Path, folder: Path) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that is built from it: what the sdist lacks, the wheel lacks."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT, folder=folder)
    return folder


def test_both_archives_pass_the_checks_of_an_upload(archives: Path) -> None:
    found = sorted(path.name for path in archives.iterdir())
    version = flipguard.__version__
    assert found == [f"flipguard-{version}-py3-none-any.whl", f"flipguard-{version}.tar.gz"]
    said = run(sys.executable, "-m", "twine", "check", "--strict", *archives.iterdir(), folder=archives)
    assert said.count("PASSED") == 2


def test_the_version_stands_in_one_place(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
        assert metadata["Version"] == flipguard.__version__
        assert "flipguard/py.typed" in archive.namelist()
        assert any(name.startswith("flipguard/reports/html/templates/") for name in archive.namelist())
        extras = set(metadata.get_all("Provides-Extra") or ())
    assert {"train", "demo", "lightning", "transformers", "sklearn", "mlflow", "wandb", "spark"} <= extras
    stated = [
        path.relative_to(ROOT)
        for path in (*ROOT.glob("*.toml"), *(ROOT / "src").rglob("*.py"))
        if f'"{flipguard.__version__}"' in path.read_text(encoding="utf-8")
    ]
    assert stated == [Path("src/flipguard/_version.py")]


def test_the_sdist_has_what_its_tests_need(archives: Path) -> None:
    (sdist,) = archives.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "conftest.py", "constraints.txt"}
    assert wanted <= names
    assert "tests/test_package.py" in names
    assert "examples/gitlab-ci.yml" in names
    assert not {name for name in names if name.startswith((".venv", "results/", "shared/"))}


def test_an_empty_environment_runs_the_demo(archives: Path, tmp_path: Path) -> None:
    """As pipx does it: an environment for the command alone, and the command called from anywhere."""
    (wheel,) = archives.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    commands = tmp_path / "venv" / "bin"
    pip = [commands / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, "-c", ROOT / "constraints.txt", f"{wheel}[demo]", folder=tmp_path)
    said = run(commands / "flipguard", "demo", "--pairs", "2", "--json", "demo.json", folder=tmp_path)
    assert "pair 2 of 2 done" in said
    found = {each["method"]: each["pairs"] for each in json.loads((tmp_path / "demo.json").read_text())}
    assert len(found) == 4
    assert set(found.values()) == {2}
