"""What a figure is before it is a picture: panels of named series. It can be tested, stored, and drawn elsewhere."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from flipguard.types import InputError

Kind = Literal["line", "points", "steps", "arrows", "cells", "density"]


@dataclass(frozen=True)
class Series:
    """Numbers under a name.

    kind    "steps" is a histogram's outline, its x the K + 1 edges of K values; an "arrow" runs from (x, y) to (x2,
            y2); "cells" are a table's: z stands in the column x of the row y; a "density" has K columns x and L rows y,
            and L times K values z, row by row
    low     lower and upper ends of intervals of y, where there are any
    text    a label per point
    colour  series of one number share a colour; by default each has its own
    faint   drawn lightly, as the background of another series
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    kind: Kind = "line"
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    x2: tuple[float, ...] | None = None
    y2: tuple[float, ...] | None = None
    z: tuple[float, ...] | None = None
    text: tuple[str, ...] | None = None
    colour: int | None = None
    dashed: bool = False
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """Series that share axes. `x_whole`: x counts, so that no tick stands between two numbers; `ticks` are the names of
    the rows and columns of cells."""

    x: str
    y: str
    series: tuple[Series, ...]
    title: str = ""
    x_whole: bool = False
    y_log: bool = False
    equal: bool = False
    ticks: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Plot:
    """A figure: `source` names the paper and its figure; `facts` are the numbers that a caption would tell.

    columns  how many panels stand in a row; by default as many as fit
    """

    name: str
    title: str
    source: str
    panels: tuple[Panel, ...]
    facts: dict[str, float]
    columns: int | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def joined(name: str, title: str, source: str, plots: Sequence[Plot]) -> Plot:
    """Several plots' panels as one figure."""
    facts = {fact: value for plot in plots for fact, value in plot.facts.items()}
    return Plot(name, title, source, tuple(panel for plot in plots for panel in plot.panels), facts)


def floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def histogram(name: str, values: Any, edges: Any, **options: Any) -> Series:
    """Shares of the values in bins; what lies outside of the edges enters the outermost bins.

    >>> histogram("a", [0.1, 0.2, 0.9, 5.0], [0.0, 0.5, 1.0]).y
    (0.5, 0.5)
    """
    import numpy as np

    inside = np.clip(np.asarray(values, np.float64), edges[0], edges[-1])
    counts = np.histogram(inside, edges)[0]
    return Series(name, floats(edges), floats(counts / max(len(inside), 1)), "steps", **options)


def read_plot(path: str | Path) -> Plot:
    """A figure from the .json that `flipguard figure` wrote."""
    from pydantic import TypeAdapter, ValidationError

    try:
        plot = TypeAdapter(Plot).validate_json(Path(path).read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValidationError as error:
        raise InputError(f"{path} is no figure's data, which flipguard figure --out FILE.json writes.") from error
    for series in (series for panel in plot.panels for series in panel.series):
        _check(series, path)
    return plot


def _check(series: Series, path: str | Path) -> None:
    """As many numbers as the kind needs, and each of them one that can be drawn."""
    count = len(series.y)
    places = {"steps": count + 1, "density": len(series.x)}.get(series.kind, count)
    beside: list[tuple[Sequence[Any] | None, int]] = [(series.x, places), (series.z, count)]
    beside += [(column, count) for column in (series.low, series.high, series.x2, series.y2, series.text)]
    if series.kind == "density":
        beside[1] = (series.z, count * places)
    needed = {"arrows": (series.x2, series.y2), "cells": (series.z,), "density": (series.z,)}.get(series.kind, ())
    whole = all(column is None or len(column) == wanted for column, wanted in beside) and None not in needed
    numbers = (series.x, series.y, series.z, series.low, series.high, series.x2, series.y2)
    finite = all(math.isfinite(value) for column in numbers if column is not None for value in column)
    if not whole or not finite or (series.kind in ("cells", "density") and not count):
        raise InputError(f"{path}: the series '{series.name}' has numbers that are missing or cannot be drawn.")
    if series.kind == "cells" and any(not 0 <= place < 1000 for place in (*series.x, *series.y)):
        raise InputError(f"{path}: the series '{series.name}' has cells outside of a table.")
