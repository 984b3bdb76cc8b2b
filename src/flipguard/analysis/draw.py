"""A figure's picture, by matplotlib: SVG, PNG or PDF."""

import importlib
from pathlib import Path
from typing import Any

from flipguard.analysis.plots import Panel, Plot, Series
from flipguard.files import whole_file
from flipguard.types import InputError, MissingExtra

# Okabe and Ito's colours, which differ for colour-blind eyes, too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
ARROWS = {"negative flips": "#CC0066", "positive flips": "#0072B2"}
FORMATS = (".svg", ".png", ".pdf")
_COLUMNS = 3


def draw(plot: Plot, path: str | Path) -> None:
    """Write the picture; the ending says which form it has."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a figure is written as {', '.join(FORMATS)} or .json, by the file's ending.")
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a picture needs {error.name}: pip install 'flipguard[demo]'") from error
    columns = plot.columns or (2 if len(plot.panels) == 4 else min(len(plot.panels), _COLUMNS))
    rows = -(-len(plot.panels) // columns)
    figure = figures.Figure(figsize=(4.2 * columns, 3.3 * rows + 0.3), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flat
    for panel, axes in zip(plot.panels, places, strict=False):
        _panel(axes, panel)
    for empty in places:
        empty.set_axis_off()
    figure.suptitle(plot.title, fontsize=11, parse_math=False)
    # A picture of the same data has the same bytes: no date, no random ids. Text stays text, small and searchable.
    still = importlib.import_module("matplotlib").rc_context({"svg.hashsalt": plot.name, "svg.fonttype": "none"})
    with whole_file(path) as beside, still:
        figure.savefig(beside, format=path.suffix[1:].lower(), dpi=150, metadata=_undated(path))


def _undated(path: Path) -> dict[str, None]:
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})


def _panel(axes: Any, panel: Panel) -> None:
    for place, series in enumerate(panel.series):
        place = place if series.colour is None else series.colour
        DRAWN[series.kind](axes, series, COLOURS[place % len(COLOURS)])
        for x, y, text in zip(series.x, series.y, series.text or (), strict=False):
            if series.kind != "cells":
                axes.annotate(text, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, parse_math=False)
    # Text from data is shown as it is: a dollar sign starts no formula.
    axes.set_xlabel(panel.x, parse_math=False)
    axes.set_ylabel(panel.y, parse_math=False)
    axes.set_title(panel.title, fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.x_whole:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if panel.y_log:
        axes.set_yscale("log")
    if panel.equal:
        axes.set_aspect("equal", "box" if panel.series[0].kind == "density" else "datalim")
    if panel.ticks is not None:
        places = range(len(panel.ticks))
        axes.set_xticks(places, panel.ticks, rotation=30, ha="right", fontsize=8, parse_math=False)
        axes.set_yticks(places, panel.ticks, fontsize=8, parse_math=False)
    else:
        axes.locator_params(axis="x", nbins=6)
    if len(panel.series) > 1:
        for text in axes.legend(fontsize=8, frameon=False, handlelength=2.6).get_texts():
            text.set_parse_math(False)


def _style(series: Series, colour: str) -> dict[str, Any]:
    line = "--" if series.dashed else "-"
    return {"color": colour, "label": series.name, "linestyle": line, "alpha": 0.35 if series.faint else 1}


def _steps(axes: Any, series: Series, colour: str) -> None:
    axes.stairs(series.y, series.x, **_style(series, colour))
    if series.faint:
        axes.stairs(series.y, series.x, color=colour, alpha=0.15, fill=True)


def _arrows(axes: Any, series: Series, colour: str) -> None:
    assert series.x2 is not None
    assert series.y2 is not None
    along = [b - a for a, b in zip(series.x, series.x2, strict=True)]
    up = [b - a for a, b in zip(series.y, series.y2, strict=True)]
    own = {"color": ARROWS.get(series.name, "#999999"), "label": series.name, "width": 3e-3}
    axes.quiver(series.x, series.y, along, up, angles="xy", scale_units="xy", scale=1, **own)
    axes.plot(series.x + series.x2, series.y + series.y2, " ")


def _cells(axes: Any, series: Series, colour: str) -> None:
    assert series.z is not None
    side = int(max(series.x)) + 1
    table = [[float("nan")] * side for _ in range(int(max(series.y)) + 1)]
    for x, y, z in zip(series.x, series.y, series.z, strict=True):
        table[int(y)][int(x)] = z
    most = max(map(abs, series.z)) or 1.0
    axes.imshow(table, cmap="PuOr", vmin=-most, vmax=most)
    for x, y, z, text in zip(series.x, series.y, series.z, series.text or (), strict=False):
        light = abs(z) > 0.7 * most
        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if light else "black")


def _density(axes: Any, series: Series, colour: str) -> None:
    assert series.z is not None
    width = len(series.x)
    table = [series.z[start : start + width] for start in range(0, len(series.z), width)]
    drawn = axes.contourf(
        series.x, series.y, table, levels=[max(series.z) * (step or 0.25) / 8 for step in range(9)], cmap="Blues"
    )
    axes.axhline(0, color="#999999", linewidth=0.5)
    axes.axvline(0, color="#999999", linewidth=0.5)
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.8, format="%.2g")
    bar.set_label("density", fontsize=8)
    bar.ax.tick_params(labelsize=7)


def _points(axes: Any, series: Series, colour: str) -> None:
    if series.low is not None and series.high is not None:
        _ends(axes, series, colour, "")
    else:
        style = {"s": 18 if len(series.x) <= 60 else 6, "alpha": 0.35 if series.faint else 0.8, "linewidths": 0}
        axes.scatter(series.x, series.y, color=colour, label=series.name, **style)


def _line(axes: Any, series: Series, colour: str) -> None:
    if series.low is not None and series.high is not None:
        _ends(axes, series, colour, "--" if series.dashed else "-")
    else:
        axes.plot(series.x, series.y, **_style(series, colour))


def _ends(axes: Any, series: Series, colour: str, line: str) -> None:
    """With the ends of intervals."""
    assert series.low is not None
    assert series.high is not None
    ends = [[max(y - low, 0) for y, low in zip(series.y, series.low, strict=True)]]
    ends += [[max(high - y, 0) for y, high in zip(series.y, series.high, strict=True)]]
    style = {"fmt": "o", "markersize": 4 if len(series.x) <= 20 else 2, "capsize": 2, "elinewidth": 0.8}
    axes.errorbar(series.x, series.y, ends, color=colour, label=series.name, linestyle=line, **style)


DRAWN = {
    "steps": _steps,
    "arrows": _arrows,
    "cells": _cells,
    "density": _density,
    "points": _points,
    "line": _line,
}
