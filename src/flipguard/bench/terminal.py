"""A bench's rows as a table on the terminal."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flipguard.bench.tables import LEVEL, PERCENT, Cell, Row, in_groups

COLUMNS = ("error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "run_churn")


def bench_report(title: str, rows: Sequence[Row]) -> RenderableType:
    """Mean ± standard deviation over seeds, in percent; the best in bold."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    known = [figure for figure in COLUMNS if any(figure in row.cells for row in rows)]
    # Where there is little room a row's name is broken in two, and no figure is cut.
    table.add_column("row", overflow="fold")
    for name in ("training", "inference"):
        table.add_column(name, justify="right", min_width=len(name))
    for figure in known:
        widest = max(len(_cell(row.cells[figure])) for row in rows if figure in row.cells)
        table.add_column(f"{PERCENT[figure]}, %", justify="right", min_width=widest)
    for group, own in in_groups(rows).items():
        if group:
            table.add_row(Text(group, style="italic"))
        for row in own:
            shown = [_cell(row.cells[figure]) if figure in row.cells else Text("–") for figure in known]
            table.add_row(Text(row.name), f"{row.training_cost:.1f}×", f"{row.inference_cost:.1f}×", *shown)
    seeds = max((len(row.seeds) for row in rows), default=0)
    return Group(
        Text(title, style="bold"),
        Text(f"{_seeds(seeds)} Training in plain trainings of the new model, inference in answers of one."),
        Text(),
        table,
    )


def _seeds(number: int) -> str:
    """How the figures came about.

    >>> _seeds(1), _seeds(5)
    ('One seed: no spread, and no churn of two runs.', '5 seeds, mean ± std.')
    """
    return f"{number} seeds, mean ± std." if number > 1 else "One seed: no spread, and no churn of two runs."


def _cell(cell: Cell) -> Text:
    spread = "" if cell.spread is None else f" ± {100 * cell.spread:.1f}"
    close = "≈" if cell.p is not None and cell.p >= LEVEL else " "
    return Text(f"{100 * cell.mean:.1f}{spread}{close}", style="bold" if cell.best else "", no_wrap=True)
