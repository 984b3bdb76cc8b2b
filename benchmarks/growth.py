"""How the cost of members grows with their number, as a picture from the figures of `members.py --grow`."""

import json
import re
from pathlib import Path
from typing import Any

from flipguard.analysis.draw import draw
from flipguard.analysis.plots import Panel, Plot, Series
from flipguard.types import InputError

ENGINES = ("plain", "captured", "grouped", "stacked", "compiled", "paired")
"""In the order of their colours; others that a file has come after them."""
AROUND = ("teachers", "student")
"""Figures of something else than members."""


def series(figures: dict[str, Any]) -> list[Series]:
    """Of one shape's figures: a line per engine, ms per member-step over members, with the least and most of its runs.

    >>> slow, fast = {"ms": 4.0, "runs": [3.0, 5.0]}, {"ms": 2.0, "runs": [2.0]}
    >>> figures = {"flops": 9, "captured_8": fast, "captured_1": slow, "grouped_8": {"not": "no"}, "student_8": fast}
    >>> [(line.name, line.x, line.y, line.high) for line in series(figures)]
    [('captured', (1.0, 8.0), (4.0, 2.0), (5.0, 2.0))]
    """
    found: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for name, figure in figures.items():
        parts = re.fullmatch(r"([a-z]+)_(\d+)", name)
        if parts and parts[1] not in AROUND and "ms" in figure:
            found.setdefault(parts[1], []).append((float(parts[2]), figure))
    known = [*ENGINES, *sorted(set(found) - set(ENGINES))]
    return [_line(engine, place, found[engine]) for place, engine in enumerate(known) if engine in found]


def _line(engine: str, place: int, found: list[tuple[float, dict[str, Any]]]) -> Series:
    found = sorted(found, key=lambda one: one[0])
    figures = [figure for _, figure in found]
    return Series(
        engine,
        tuple(members for members, _ in found),
        tuple(float(figure["ms"]) for figure in figures),
        low=tuple(float(min(figure.get("runs", [figure["ms"]]))) for figure in figures),
        high=tuple(float(max(figure.get("runs", [figure["ms"]]))) for figure in figures),
        colour=place,
    )


def level(line: Series, to: float) -> Series:
    """The plain loop trains one after another: what a step costs does not depend on how many are to come."""
    return Series("plain loop", (line.x[0], to), (line.y[0], line.y[0]), colour=line.colour, dashed=True)


def plot(source: Path, target: Path) -> None:
    """A panel per shape that has figures; those that are missing leave gaps, or no panel at all."""
    try:
        record = json.loads(source.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as figures of members: {error}.") from error
    panels = []
    for name, figures in record.get("jobs", {}).items():
        lines = series(figures)
        if not lines:
            continue
        most = max(line.x[-1] for line in lines)
        shown = tuple(level(line, most) if line.name == "plain" and most > line.x[0] else line for line in lines)
        panels.append(Panel("members at once", "ms per member-step", shown, title=name.replace("_", " "), x_whole=True))
    if not panels:
        raise InputError(f"{source} has no figures to draw.")
    title = f"{record['hardware']}, torch {record['torch'].split('+')[0]}"
    draw(Plot("members", title, "benchmarks/members.py", tuple(panels), {}), target)
    print(target)
