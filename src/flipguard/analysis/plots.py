"""What a figure is before it is a picture: panels of named series. It can be tested, stored, and drawn elsewhere."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["line", "points", "steps", "arrows", "cells"]


@dataclass(frozen=True)
class Series:
    """Numbers under a name.

    kind    "steps" is a histogram's outline, its x the K + 1 edges of K values; an "arrow" runs from (x, y) to (x2,
            y2); "cells" are a table's: z stands in the column x of the row y
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
    """A figure: `source` names the paper and its figure; `facts` are the numbers that a caption would tell."""

    name: str
    title: str
    source: str
    panels: tuple[Panel, ...]
    facts: dict[str, float]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


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
