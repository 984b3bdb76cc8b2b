"""How the cost of members grows with their number, as a picture from the figures of `members.py --grow`."""

import json
from pathlib import Path
from typing import Any

from flipguard.analysis.draw import draw
from flipguard.analysis.plots import Panel, Plot, Series

ENGINES = ("plain", "captured", "grouped", "stacked", "compiled", "paired")


def series(figures: dict[str, Any]) -> list[Series]:
    """Of one shape's figures: a line per engine, ms per member-step over members, with the least and most of its runs.

    >>> slow, fast = {"ms": 4.0, "runs": [3.0, 5.0]}, {"ms": 2.0, "runs": [2.0]}
    >>> figures = {"flops": 9, "captured_8": fast, "captured_1": slow, "grouped_8": {"not": "no"}, "student_8": fast}
    >>> [(line.name, line.x, line.y, line.high) for line in series(figures)]
    [('captured', (1.0, 8.0), (4.0, 2.0), (5.0, 2.0))]
    """
    lines = []
    for place, engine in enumerate(ENGINES):
        found = sorted(
            (float(name.removeprefix(f"{engine}_")), figure)
            for name, figure in figures.items()
            if name.startswith(f"{engine}_") and "ms" in figure
        )
        if found:
            x = tuple(members for members, _ in found)
            y, low, high = (
                tuple(float(value(figure)) for _, figure in found)
                for value in (lambda f: f["ms"], lambda f: min(f["runs"]), lambda f: max(f["runs"]))
            )
            lines.append(Series(engine, x, y, low=low, high=high, colour=place))
    return lines


def level(line: Series, to: float) -> Series:
    """The plain loop trains one after another: what a step costs does not depend on how many are to come."""
    return Series("plain loop", (line.x[0], to), (line.y[0], line.y[0]), colour=line.colour, dashed=True)


def plot(source: Path, target: Path) -> None:
    """A panel per shape."""
    record = json.loads(source.read_text())
    panels = []
    for name, figures in record["jobs"].items():
        lines = series(figures)
        most = max((line.x[-1] for line in lines), default=1.0)
        shown = tuple(level(line, most) if line.name == "plain" else line for line in lines)
        panels.append(Panel("members at once", "ms per member-step", shown, title=name.replace("_", " "), x_whole=True))
    title = f"{record['hardware']}, torch {record['torch'].split('+')[0]}"
    draw(Plot("members", title, "benchmarks/members.py", tuple(panels), {}), target)
    print(target)
