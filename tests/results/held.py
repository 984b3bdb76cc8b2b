"""What a section of results/README.md says, beside what its bench holds."""

from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from flipguard.bench.tables import PREDICTIONS, Row, read_rows, read_table

ROOT = Path(__file__).parents[2]


def section(heading: str) -> str:
    return (ROOT / "results" / "README.md").read_text().split(f"\n## {heading}")[1].split("\n## ")[0]


def told(text: str) -> dict[str, list[str]]:
    """The lines of a section's tables that begin with a row's name in code: the name, and the cells after it."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return {line[0].strip("`"): line[1:] for line in lines}


def rows_of(bench: str) -> list[Row]:
    return read_rows(ROOT / "results" / "bench" / bench)


def check_lines(name: str, heading: str, made: Callable[[Row], list[str]]) -> None:
    """A section's lines are the rows of its bench, in their order, and begin with what is made of each."""
    rows, said = rows_of(name), told(section(heading))
    assert list(said) == [row.name for row in rows]
    for row in rows:
        cells = made(row)
        assert said[row.name][: len(cells)] == cells, row.name


def percent(row: Row, *cells: str) -> list[float]:
    return [100 * row.cells[cell].mean for cell in cells]


def after_plain_models(bench: str, row: str, seeds: Collection[int]) -> float:
    """Relative NFR of a row's new models after each plain old model of their seed: the mean over seeds and models."""
    said = read_table(ROOT / "results" / "bench" / bench, PREDICTIONS).to_pandas()
    old = [name.split(".") for name in said if name.startswith("none.") and name.endswith(".old")]
    found = []
    for _, seed, copy, _ in old:
        if int(seed) not in seeds:
            continue
        # Plain new models are held against the plain old one of their own pair.
        own = copy if row == "none" else 0
        new, right = said[f"{row}.{seed}.{own}.new"], said[f"none.{seed}.{copy}.old"] == said["label"]
        flips, wrong = (right & (new != said["label"])).mean(), (new != said["label"]).mean()
        found.append(flips / (wrong * right.mean()))
    return float(np.mean(found))
