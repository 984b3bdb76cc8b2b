"""An integration whose library is not there says which extra brings it."""

import subprocess
import sys

LIBRARIES = ("lightning", "mlflow", "ray", "transformers", "wandb")
PROGRAM = """
import importlib, sys
from flipguard.types import MissingExtra

for library in sys.argv[1:]:
    sys.modules[library] = None
    try:
        importlib.import_module(f"flipguard.integrations.{library}")
    except MissingExtra as error:
        print(error)
    del sys.modules[library]
"""


def test_a_missing_library_names_the_extra() -> None:
    """Python takes a module that stands as None for one that is not installed."""
    command = [sys.executable, "-c", PROGRAM, *LIBRARIES]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for library, line in zip(LIBRARIES, told, strict=True):
        assert f"needs {library}" in line
        assert f"flipguard[{library}]" in line
