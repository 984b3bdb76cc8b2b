"""A bench's rows as Markdown."""

from collections.abc import Callable, Mapping, Sequence

from flipguard.bench.chains import chain_table
from flipguard.bench.tables import LEVEL, PERCENT, PLAIN, Cell, Row, in_groups

TITLES = {**PERCENT, **PLAIN}
SHORT = ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "churn", "run_churn")
LONG = ("nll_new", "ece_new", "cnll_new", "cece_new")
PARTS = {
    "corrupted": "Test, corrupted: the mean over kinds and severities",
    "test_old_classes": "Test, the old model's classes alone",
    "validation_old_classes": "Validation, the old model's classes alone",
}
NOTE = (
    "Rates in percent. Mean ± standard deviation over seeds. **Bold**: the best of those that answer at the cost of "
    "one model; ≈: not shown to be worse than it (t over paired seeds, variances moderated by those of all rows, "
    f"adjusted by Holm, {LEVEL:.0%} level). Training cost: counted operations of everything that the update trains and "
    "asks, in plain trainings of the new model; the old model, and what it was made from, are there already. Churn of "
    "two runs: between the new models of each two seeds."
)


def bench_markdown(title: str, parts: Mapping[str, Sequence[Row]], facts: Sequence[str]) -> str:
    """The whole page: for each part of the data its tables, and how they were made."""
    lines = [f"# {title}", "", *(f"{fact}  " for fact in facts), "", NOTE, ""]
    for part, rows in parts.items():
        lines += [f"## {PARTS.get(part, part.capitalize())}", "", *_tables(rows, SHORT, _spread, costs=True)]
        chains = chain_table(rows)
        if chains:
            lines += ["### Chains", "", *chains, ""]
        if any(figure in row.cells for row in rows for figure in LONG):
            lines += ["### Calibration of the new model", "", *_tables(rows, LONG, _spread)]
        if any(len(row.seeds) > 1 for row in rows):
            lines += ["### 95 % intervals of the means", "", *_tables(rows, (*SHORT[:-1], *LONG), _interval)]
    return "\n".join(lines)


def _tables(
    rows: Sequence[Row], figures: Sequence[str], text: Callable[[Cell, float], str], *, costs: bool = False
) -> list[str]:
    """One for each group of rows, under its name."""
    lines = []
    for group, own in in_groups(rows).items():
        lines += [*([f"*{group}*", ""] if group else []), *_table(own, figures, text, costs=costs), ""]
    return lines


def _table(
    rows: Sequence[Row], figures: Sequence[str], text: Callable[[Cell, float], str], *, costs: bool = False
) -> list[str]:
    known = [figure for figure in figures if any(figure in row.cells for row in rows)]
    head = [*(TITLES[figure] for figure in known)]
    if costs:
        head = ["training", "inference", *head, "seconds", "seeds"]
    lines = [f"| row | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
    for row in rows:
        shown = [
            text(row.cells[figure], 100.0 if figure in PERCENT else 1.0) if figure in row.cells else "–"
            for figure in known
        ]
        if costs:
            cost = [f"{row.training_cost:.1f}×", f"{row.inference_cost:.1f}×"]
            shown = [*cost, *shown, f"{row.seconds:.0f}", str(len(row.seeds))]
        lines.append(f"| {row.name} | {' | '.join(shown)} |")
    return lines


def _digits(scale: float) -> int:
    return 2 if scale == 100.0 else 3


def _spread(cell: Cell, scale: float) -> str:
    digits = _digits(scale)
    text = f"{scale * cell.mean:.{digits}f}"
    if cell.spread is not None:
        text = f"{text} ± {scale * cell.spread:.{digits}f}"
    if cell.best:
        return f"**{text}**"
    return f"{text} ≈" if cell.p is not None and cell.p >= LEVEL else text


def _interval(cell: Cell, scale: float) -> str:
    reach, digits = cell.reach(), _digits(scale)
    if reach is None:
        return "–"
    return f"{scale * (cell.mean - reach):.{digits}f} to {scale * (cell.mean + reach):.{digits}f}"
