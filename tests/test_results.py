"""The committed tables are what the committed records give."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["elodi_cifar100", "elodi_cifar100_long"])
def test_the_cifar_tables_are_made_from_their_records(name: str) -> None:
    command = [sys.executable, "recipes/table.py", f"results/{name}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "results" / f"{name}.md").read_text()


def test_the_table_of_all_methods_is_made_from_its_records() -> None:
    command = [sys.executable, "recipes/methods_on_digits.py", "--table", "results/methods_on_digits"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "results" / "methods_on_digits.md").read_text()


def test_the_faults_in_words_are_the_records() -> None:
    found = json.loads((ROOT / "results" / "faults.json").read_text())["faults"].values()
    tried, survived = (sum(each[key] for each in found) for key in ("tried", "survived"))
    for page in ("results/README.md", "docs/faults.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(rf"\b{tried} (faults )?tried(,| and) {survived} survived", text), page


def test_the_figures_in_words_are_the_tables() -> None:
    """Each mean in the summary of results/README.md stands in the test half of its table."""
    words = (ROOT / "results" / "README.md").read_text()
    table = (ROOT / "results" / "elodi_cifar100_long.md").read_text().split("## Test")[1]
    summary = words.split("| on the test set |")[1].split("What it shows")[0]
    rows = [line for line in summary.splitlines()[2:] if line.startswith("|")]
    found = [[cell.split() for cell in row.split("|")[2:5]] for row in rows]
    assert len(found) == 10
    for figures in found:
        means = [figure[0] for figure in figures]
        assert any(all(f"| {mean} " in line for mean in means) for line in table.splitlines()), figures
