"""What a section of results/README.md says, beside what its bench holds."""

from collections.abc import Callable
from pathlib import Path

from flipguard.bench.tables import Row, read_rows

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
