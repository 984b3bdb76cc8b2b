"""What an update costs against what it gives: the picture of a bench."""

from collections.abc import Callable, Sequence

from flipguard.analysis.plots import Panel, Plot, Series
from flipguard.bench.tables import Row

NFR, ERROR = "relative_negative_flip_rate", "error_rate_new"


def front(title: str, rows: Sequence[Row]) -> Plot:
    """Relative NFR against error, and both against the training's cost; what no other row beats on all three is dark.

    ELODI Fig. 1b, with the cost that the paper leaves out.
    """
    known = [row for row in rows if NFR in row.cells and ERROR in row.cells]
    best = {row.name for row in known if not any(_beats(other, row) for other in known)}
    names = {ERROR: "error of the new model", NFR: "relative negative flip rate"}
    cost = "training cost, in plain trainings"
    panels = (
        Panel(names[ERROR], names[NFR], tuple(_points(known, best, lambda row: row.cells[ERROR].mean, NFR))),
        Panel(cost, names[NFR], tuple(_points(known, best, lambda row: row.training_cost, NFR))),
        Panel(cost, names[ERROR], tuple(_points(known, best, lambda row: row.training_cost, ERROR))),
    )
    facts = {f"{names[figure]} of {row.name}": row.cells[figure].mean for row in known for figure in (ERROR, NFR)}
    return Plot("front", title, "flipguard bench", panels, facts)


def _beats(one: Row, other: Row) -> bool:
    """No worse in error, relative NFR, training and inference cost, and better in one of them."""
    first, second = _measures(one), _measures(other)
    return all(a <= b for a, b in zip(first, second, strict=True)) and first != second


def _measures(row: Row) -> tuple[float, ...]:
    return (row.cells[ERROR].mean, row.cells[NFR].mean, round(row.training_cost, 2), round(row.inference_cost, 2))


def _points(rows: Sequence[Row], best: set[str], x: Callable[[Row], float], y: str) -> list[Series]:
    found = []
    for name, several in (
        ("on the front", [row for row in rows if row.name in best]),
        ("others", [row for row in rows if row.name not in best]),
    ):
        if not several:
            continue
        values = [row.cells[y].mean for row in several]
        reach = [row.cells[y].reach() or 0.0 for row in several]
        found.append(
            Series(
                name,
                tuple(x(row) for row in several),
                tuple(values),
                "points",
                low=tuple(value - r for value, r in zip(values, reach, strict=True)),
                high=tuple(value + r for value, r in zip(values, reach, strict=True)),
                text=tuple(row.name for row in several),
                faint=name == "others",
            )
        )
    return found
