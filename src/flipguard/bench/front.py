"""What an update costs against what it gives: the picture of a bench."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from flipguard.bench.tables import Row
from flipguard.files import whole_file
from flipguard.types import MissingExtra

NFR, ERROR = "relative_negative_flip_rate", "error_rate_new"
NAMES = {ERROR: "error of the new model, %", NFR: "relative negative flip rate, %"}
COST = "training cost, in plain trainings"
FRONT, REST = "#0072B2", "#999999"


def on_the_front(rows: Sequence[Row]) -> set[str]:
    """Rows that no other of their group beats: by error, relative NFR, training and inference, one less, none more."""
    known = [row for row in rows if NFR in row.cells and ERROR in row.cells]
    return {row.name for row in known if not any(_beats(other, row) for other in known if other.group == row.group)}


def _beats(one: Row, other: Row) -> bool:
    first, second = _measures(one), _measures(other)
    return all(a <= b for a, b in zip(first, second, strict=True)) and first != second


def _measures(row: Row) -> tuple[float, ...]:
    return (row.cells[ERROR].mean, row.cells[NFR].mean, round(row.training_cost, 2), round(row.inference_cost, 2))


def draw_front(title: str, rows: Sequence[Row], path: Path) -> None:
    """Relative NFR against error (ELODI Fig. 1b), and both against the training's cost, which the paper leaves out.

    What is on the front is blue; a row that answers with several networks is hollow. Names stand beside the axes, each
    with a line to its point. A row with more than twice the usual error would press all others into a corner; the title
    has it.
    """
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"a picture needs {error.name}: pip install 'flipguard[demo]'") from error
    best, known = on_the_front(rows), [row for row in rows if NFR in row.cells and ERROR in row.cells]
    if not known:
        # Where nothing is wrong, nothing can flip beyond chance: there is no relative NFR to draw.
        path.unlink(missing_ok=True)
        return
    limit = 2 * median([row.cells[ERROR].mean for row in known])
    apart = [f"{row.name}, error {row.cells[ERROR].mean:.0%}" for row in known if row.cells[ERROR].mean > limit]
    known = [row for row in known if row.cells[ERROR].mean <= limit]
    figure = figures.Figure(figsize=(17, max(4.5, 0.17 * len(known) + 1)), layout="constrained")
    wide = {"wspace": 0.1}
    first, second, third = figure.subplots(1, 3, gridspec_kw=wide)
    _panel(first, known, best, lambda row: 100 * row.cells[ERROR].mean, ERROR, NFR)
    _panel(second, known, best, lambda row: row.training_cost, COST, NFR)
    _panel(third, known, best, lambda row: row.training_cost, COST, ERROR)
    for axes in (second, third):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}×")
    left_out = f" (beyond the picture: {'; '.join(apart)})" if apart else ""
    figure.suptitle(f"{title}{left_out}", fontsize=11, parse_math=False)
    # A picture of the same data has the same bytes: no date, no random ids.
    still = importlib.import_module("matplotlib").rc_context({"svg.hashsalt": "front", "svg.fonttype": "none"})
    with whole_file(path) as beside, still:
        figure.savefig(beside, format="svg", metadata={"Date": None})


def _panel(axes: Any, rows: Sequence[Row], best: set[str], x: Callable[[Row], float], across: str, up: str) -> None:
    for row in rows:
        colour = FRONT if row.name in best else REST
        inside = colour if row.inference_cost < 1.5 else "white"
        axes.plot(x(row), 100 * row.cells[up].mean, "o", color=colour, markerfacecolor=inside, markersize=5, zorder=3)
    axes.set_xlabel(NAMES.get(across, across))
    axes.set_ylabel(NAMES[up])
    axes.spines[["top", "right"]].set_visible(False)
    ordered = sorted(rows, key=lambda row: row.cells[up].mean)
    for place, row in enumerate(ordered):
        colour = FRONT if row.name in best else REST
        axes.annotate(
            row.name,
            (x(row), 100 * row.cells[up].mean),
            xytext=(1.04, (place + 0.5) / len(ordered)),
            textcoords="axes fraction",
            fontsize=7,
            va="center",
            color=colour if row.name in best else "#555555",
            parse_math=False,
            arrowprops={"arrowstyle": "-", "color": colour, "alpha": 0.35, "linewidth": 0.6},
        )
