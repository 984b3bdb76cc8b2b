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
    table.add_column("row", no_wrap=True)
    known = [figure for figure in COLUMNS if any(figure in row.cells for row in rows)]
    for name in ("training", "inference", *(f"{PERCENT[figure]}, %" for figure in known)):
        table.add_column(name, justify="right")
    for group, own in in_groups(rows).items():
        if group:
            table.add_row(Text(group, style="italic"))
        for row in own:
            shown = [_cell(row.cells[figure]) if figure in row.cells else Text("–") for figure in known]
            table.add_row(Text(row.name), f"{row.training_cost:.1f}×", f"{row.inference_cost:.1f}×", *shown)
    seeds = max((len(row.seeds) for row in rows), default=0)
    return Group(
        Text(title, style="bold"),
        Text(f"{seeds} seeds, mean ± std. Training in plain trainings of the new model, inference in answers of one."),
        Text(),
        table,
    )


def _cell(cell: Cell) -> Text:
    spread = "" if cell.spread is None else f" ± {100 * cell.spread:.1f}"
    close = "≈" if cell.p is not None and cell.p >= LEVEL else " "
    return Text(f"{100 * cell.mean:.1f}{spread}{close}", style="bold" if cell.best else "", no_wrap=True)
