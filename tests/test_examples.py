"""The examples run as their first lines say, against the real libraries, and show what they promise."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parent.parent / "examples"
NEEDS = {
    "digits.py": "sklearn",
    "lightning_update.py": "lightning",
    "mlflow_registry.py": "mlflow",
    "scikit_learn.py": "sklearn",
    "tensorboard_logging.py": "tensorboard",
    "transformers_update.py": "transformers",
    "wandb_registry.py": "wandb",
}
SHOWN = {
    "digits.py": r"now wrong",
    "lightning_update.py": r"kd: error \d.*negative flip rate",
    "mlflow_registry.py": r"max_nfr 0\.1: registered as version 1",
    "tensorboard_logging.py": r"logs holds 15 epochs, a negative flip rate of \d\.\d\d%, and the gate: passed",
    "scikit_learn.py": r"max_nfr 0\.03: kept",
    "transformers_update.py": r"kd: error \d.*negative flip rate",
    "wandb_registry.py": r"kept digits.* with model\.json, model\.safetensors",
}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == NEEDS.keys() == SHOWN.keys()


@pytest.mark.parametrize("name", [name for name, library in NEEDS.items() if find_spec(library) is not None])
def test_an_example_shows_what_it_promises(name: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(SHOWN[name], done.stdout), done.stdout


@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_the_registry_example_also_shows_a_refusal(tmp_path: Path) -> None:
    place = f"sqlite:///{tmp_path / 'own.db'}"
    command = [sys.executable, str(EXAMPLES / "mlflow_registry.py"), "--uri", place]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.search(r"max_nfr 0\.001: 'mlp new' is not registered, the gate refuses", done.stdout), done.stdout
