"""The papers' figures on the page: a chart to hover over and zoom into for each panel of a `Plot`."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flipguard.analysis.plots import Panel, Plot, Series
from flipguard.reports.html.charts import Chart, Spec, axis, safe
from flipguard.reports.wording import clean

COLOURS = ("--accent", "--unsure", "--gain", "--harm", "--dull", "--calm", "--ink")
ARROWS = {"negative flips": "--harm", "positive flips": "--gain"}
_MOST_ROWS = 60
_MOST_LABELS = 30
_MOST_MARKS = 40


def figure_charts(plot: Plot, place: int) -> Iterator[Chart]:
    """`place` is the figure's own on the page: no name from data becomes an id."""
    for number, panel in enumerate(plot.panels):
        title = plot.title if len(plot.panels) == 1 else f"{plot.title}: {panel.title or panel.y}"
        rows = list(_rows(panel))
        left_out = f" The table shows {_MOST_ROWS} of {len(rows):,} values." if len(rows) > _MOST_ROWS else ""
        wanted = rows if len(rows) <= _MOST_ROWS else [rows[i * len(rows) // _MOST_ROWS] for i in range(_MOST_ROWS)]
        yield Chart(
            f"figure-{place}-{number}",
            clean(title, 120),
            f"{clean(panel.y, 80)} against {clean(panel.x, 80)} ({clean(plot.source, 80)}).{left_out}",
            f"{clean(panel.y, 80)} against {clean(panel.x, 80)}. " + "; ".join(map(_said, panel.series[:7])),
            _head(panel),
            wanted,
            {"data": [trace for each in _traces(panel) for trace in each], "layout": _layout(panel)},
            _height(panel),
        )


def _layout(panel: Panel) -> Spec:
    across, up = axis(safe(panel.x, 60)), axis(safe(panel.y, 60))
    if panel.x_whole:
        ends = [x for series in panel.series for x in series.x] or [0.0]
        across |= {"tick0": 0, "dtick": max(1, math.ceil((max(ends) - min(ends)) / 12))}
    if panel.y_log:
        up["type"] = "log"
    if panel.equal:
        up["scaleanchor"] = "x"
    if panel.ticks is not None:
        names = [safe(name, 24) for name in panel.ticks]
        marks: Spec = {"tickvals": list(range(len(names))), "ticktext": names, "showgrid": False, "zeroline": False}
        across, up = {**across, **marks}, {**up, **marks, "autorange": "reversed"}
    return {"xaxis": across, "yaxis": up, "showlegend": len(panel.series) > 1}


def _height(panel: Panel) -> int:
    return max(340, 120 + 40 * len(panel.ticks)) if panel.ticks is not None else 380 if panel.equal else 340


def _traces(panel: Panel) -> Iterator[list[Spec]]:
    for place, series in enumerate(panel.series):
        colour = COLOURS[(place if series.colour is None else series.colour) % len(COLOURS)]
        yield [{"name": safe(series.name, 40), **trace} for trace in DRAWN[series.kind](series, colour)]


def _style(series: Series, colour: str) -> Spec:
    return {"color": colour, "width": 2, "dash": "dash" if series.dashed else "solid"}


def _bars(series: Series, colour: str) -> Spec:
    if series.low is None or series.high is None:
        return {}
    up = [max(high - y, 0) for y, high in zip(series.y, series.high, strict=True)]
    down = [max(y - low, 0) for y, low in zip(series.y, series.low, strict=True)]
    return {
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": up,
            "arrayminus": down,
            "color": colour,
            "thickness": 1,
        }
    }


def _line(series: Series, colour: str) -> list[Spec]:
    few = len(series.x) <= _MOST_MARKS
    return [_marked(series, colour, "lines+markers" if few else "lines", _style(series, colour), 6)]


def _points(series: Series, colour: str) -> list[Spec]:
    return [_marked(series, colour, "markers", {"color": colour}, 9 if len(series.x) <= _MOST_LABELS else 5)]


def _marked(series: Series, colour: str, mode: str, line: Spec, size: int) -> Spec:
    labels = [safe(text) for text in series.text] if series.text is not None else None
    shown = labels is not None and len(labels) <= _MOST_LABELS
    return {
        "x": list(series.x),
        "y": list(series.y),
        "mode": f"{mode}+text" if shown else mode,
        "line": line,
        "marker": {"size": size, "color": colour, "opacity": 0.4 if series.faint else 1},
        "hovertemplate": f"{safe(series.name)} %{{text}}: %{{x:.4~g}}, %{{y:.4~g}}<extra></extra>"
        if labels
        else f"{safe(series.name)}: %{{x:.4~g}}, %{{y:.4~g}}<extra></extra>",
        **({"text": labels, "textposition": "top center", "cliponaxis": False} if labels else {}),
        **_bars(series, colour),
    }


def _steps(series: Series, colour: str) -> list[Spec]:
    """K values between K + 1 edges."""
    return [
        {
            "x": list(series.x),
            "y": [*series.y, *series.y[-1:]],
            "mode": "lines",
            "line": {**_style(series, colour), "shape": "hv", "width": 1 if series.faint else 2},
            "opacity": 0.6 if series.faint else 1,
            "hovertemplate": f"{safe(series.name)}: from %{{x:.4~g}}: %{{y:.4~g}}<extra></extra>",
        }
    ]


def _arrows(series: Series, colour: str) -> list[Spec]:
    """Each a line with a head at its end; a gap before the next."""
    assert series.x2 is not None
    assert series.y2 is not None
    across = [value for a, b in zip(series.x, series.x2, strict=True) for value in (a, b, None)]
    up = [value for a, b in zip(series.y, series.y2, strict=True) for value in (a, b, None)]
    own = ARROWS.get(series.name, "--dull")
    head = {"symbol": "arrow", "angleref": "previous", "color": own, "size": [0, 9, 0] * len(series.x)}
    return [
        {
            "x": across,
            "y": up,
            "mode": "lines+markers",
            "line": {"color": own, "width": 1},
            "marker": head,
            "hovertemplate": f"{safe(series.name)}: %{{x:.4~g}}, %{{y:.4~g}}<extra></extra>",
        }
    ]


def _heat() -> Spec:
    return {
        "colorscale": [[0, "--card"], [1, "--heat"]],
        "colorbar": {"thickness": 10, "outlinewidth": 0},
        "hovertemplate": "%{x:.4~g}, %{y:.4~g}: %{z:.4~g}<extra></extra>",
        "showlegend": False,
    }


def _cells(series: Series, colour: str) -> list[Spec]:
    assert series.z is not None
    width, height = int(max(series.x)) + 1, int(max(series.y)) + 1
    table: list[list[float | None]] = [[None] * width for _ in range(height)]
    texts = [[""] * width for _ in range(height)]
    for place, (x, y, z) in enumerate(zip(series.x, series.y, series.z, strict=True)):
        table[int(y)][int(x)] = z
        texts[int(y)][int(x)] = safe(series.text[place]) if series.text is not None else f"{z:.3g}"
    heat = {**_heat(), "text": texts, "texttemplate": "%{text}", "textfont": {"color": "--ink"}}
    most = max(map(abs, series.z)) or 1.0
    signed = {"colorscale": [[0, "--heat"], [0.5, "--page"], [1, "--calm-soft"]], "zmin": -most, "zmax": most}
    return [{"type": "heatmap", "z": table, "xgap": 2, "ygap": 2, **heat, **(signed if min(series.z) < 0 else {})}]


def _density(series: Series, colour: str) -> list[Spec]:
    assert series.z is not None
    width = len(series.x)
    rows = [[float(f"{z:.4g}") for z in series.z[start : start + width]] for start in range(0, len(series.z), width)]
    top = max(series.z) or 1.0
    plane: Spec = {"type": "contour", "x": list(series.x), "y": list(series.y), "z": rows, "zmin": 0, "zmax": top}
    levels = {"start": top / 16, "end": top, "size": top / 8}
    scale = [[0, "--card"], [1, "--calm"]]
    return [{**plane, **_heat(), "colorscale": scale, "contours": levels, "line": {"width": 0.5, "color": "--dull"}}]


DRAWN: dict[str, Callable[[Series, str], list[Spec]]] = {
    "line": _line,
    "points": _points,
    "steps": _steps,
    "arrows": _arrows,
    "cells": _cells,
    "density": _density,
}


# ---- in words ----


def _number(value: float) -> str:
    return f"{value:.4g}"


def _said(series: Series) -> str:
    name = clean(series.name) or "values"
    if series.kind == "density":
        x, y, z = _peak(series)
        return f"{name}: densest near {_number(x)}, {_number(y)} ({_number(z)})"
    if series.kind == "line" and series.y:
        return f"{name}: from {_number(series.y[0])} at {_number(series.x[0])} to {_number(series.y[-1])}"
    return f"{name}: {len(series.y):,} {series.kind}"


def _peak(series: Series) -> tuple[float, float, float]:
    assert series.z is not None
    place = max(range(len(series.z)), key=series.z.__getitem__)
    return series.x[place % len(series.x)], series.y[place // len(series.x)], series.z[place]


def _head(panel: Panel) -> tuple[str, ...]:
    across, up = clean(panel.x), clean(panel.y)
    kinds: Sequence[str] = [series.kind for series in panel.series]
    if "arrows" in kinds:
        return ("series", f"{across}, before", f"{up}, before", f"{across}, after", f"{up}, after")
    return ("series", across, up, "value") if {"density", "cells"} & {*kinds} else ("series", across, up, "interval")


def _rows(panel: Panel) -> Iterator[tuple[str, ...]]:
    for series in panel.series:
        yield from ROWS.get(series.kind, _plain_rows)(series, panel)


def _plain_rows(series: Series, panel: Panel) -> Iterator[tuple[str, ...]]:
    for place, y in enumerate(series.y):
        name = clean(series.name if series.text is None else f"{series.name} {series.text[place]}")
        known = series.low is not None and series.high is not None
        ends = f"[{_number(series.low[place])}, {_number(series.high[place])}]" if known else ""  # type: ignore[index]
        yield (name, _number(series.x[place]), _number(y), ends)


def _arrow_rows(series: Series, panel: Panel) -> Iterator[tuple[str, ...]]:
    assert series.x2 is not None
    assert series.y2 is not None
    for ends in zip(series.x, series.y, series.x2, series.y2, strict=True):
        yield (clean(series.name), *map(_number, ends))


def _cell_rows(series: Series, panel: Panel) -> Iterator[tuple[str, ...]]:
    assert series.z is not None
    names: Any = panel.ticks
    for x, y, z in zip(series.x, series.y, series.z, strict=True):
        places = (clean(names[int(end)]) if names else _number(end) for end in (x, y))
        yield (clean(series.name), *places, _number(z))


def _density_rows(series: Series, panel: Panel) -> Iterator[tuple[str, ...]]:
    yield (f"{clean(series.name)}, densest", *map(_number, _peak(series)))


ROWS: dict[str, Callable[[Series, Panel], Iterator[tuple[str, ...]]]] = {
    "arrows": _arrow_rows,
    "cells": _cell_rows,
    "density": _density_rows,
}
