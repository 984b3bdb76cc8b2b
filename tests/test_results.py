"""The committed tables are what the committed records give."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_cifar_table_is_made_from_its_records() -> None:
    command = [sys.executable, "recipes/table.py", "results/elodi_cifar100"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "results" / "elodi_cifar100.md").read_text()
