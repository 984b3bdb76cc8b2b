"""An integration whose library is not there says which extra brings it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("library", ["lightning", "mlflow", "ray", "transformers", "wandb"])
def test_a_missing_library_names_the_extra(library: str) -> None:
    """Python takes a module that stands as None for one that is not installed."""
    program = f"import sys; sys.modules[{library!r}] = None; import flipguard.integrations.{library}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("flipguard.types.MissingExtra: ")
    assert f"needs {library}" in last
    assert f"flipguard[{library}]" in last
