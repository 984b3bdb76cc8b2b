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


def draw(plot: Plot, path: str | Path) -> None:
    """Write the picture; the ending says which form it has."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a figure is written as {', '.join(FORMATS)} or .json, by the file's ending.")
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a picture needs {error.name}: pip install 'flipguard[demo]'") from error
    figure = figures.Figure(figsize=(4.8 * len(plot.panels), 3.8), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(plot.panels), squeeze=False)[0], plot.panels, strict=True):
        _panel(axes, panel)
    figure.suptitle(plot.title, fontsize=11)
    # A picture of the same data has the same bytes: no date, no random ids.
    still = importlib.import_module("matplotlib").rc_context({"svg.hashsalt": plot.name})
    with whole_file(path) as beside, still:
        figure.savefig(beside, format=path.suffix[1:].lower(), dpi=150, metadata=_undated(path))


def _undated(path: Path) -> dict[str, None]:
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower(), {})


def _panel(axes: Any, panel: Panel) -> None:
    for place, series in enumerate(panel.series):
        _series(axes, series, COLOURS[place % len(COLOURS)])
    # Text from data is shown as it is: a dollar sign starts no formula.
    axes.set_xlabel(panel.x, parse_math=False)
    axes.set_ylabel(panel.y, parse_math=False)
    axes.set_title(panel.title, fontsize=10, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if panel.y_log:
        axes.set_yscale("log")
    if panel.equal:
        axes.set_aspect("equal", "datalim")
    if len(panel.series) > 1:
        for text in axes.legend(fontsize=8, frameon=False).get_texts():
            text.set_parse_math(False)


def _series(axes: Any, series: Series, colour: str) -> None:
    style = {"color": colour, "label": series.name, "linestyle": "--" if series.dashed else "-"}
    if series.kind == "steps":
        axes.stairs(series.y, series.x, **style)
    elif series.kind == "bars":
        axes.bar(series.x, series.y, color=colour, label=series.name)
    elif series.kind == "arrows":
        assert series.x2 is not None
        assert series.y2 is not None
        along = [b - a for a, b in zip(series.x, series.x2, strict=True)]
        up = [b - a for a, b in zip(series.y, series.y2, strict=True)]
        own = ARROWS.get(series.name, "#999999")
        axes.quiver(
            series.x,
            series.y,
            along,
            up,
            color=own,
            label=series.name,
            angles="xy",
            scale_units="xy",
            scale=1,
            width=3e-3,
        )
        axes.plot(series.x + series.x2, series.y + series.y2, " ")
    elif series.low is not None and series.high is not None:
        ends = [[max(y - low, 0) for y, low in zip(series.y, series.low, strict=True)]]
        ends += [[max(high - y, 0) for y, high in zip(series.y, series.high, strict=True)]]
        line = style["linestyle"] if series.kind == "line" else ""
        axes.errorbar(series.x, series.y, ends, color=colour, label=series.name, fmt="o", linestyle=line, capsize=2)
    elif series.kind == "points":
        axes.scatter(series.x, series.y, s=18, color=colour, label=series.name)
    else:
        axes.plot(series.x, series.y, **style)
    for x, y, text in zip(series.x, series.y, series.text or (), strict=False):
        axes.annotate(text, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7, parse_math=False)
