"""What a training run came to: its comparisons, its matrix, or the mean over seeds."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flipguard.analysis.epochs import on_which_part
from flipguard.analysis.runs import is_run, read_run
from flipguard.comparison.result import Comparison
from flipguard.reports.markdown import comparison_markdown, matrix_markdown
from flipguard.reports.strips import sparkline
from flipguard.reports.terminal import GAIN, HARM, QUIET, comparison_report, matrix_report
from flipguard.reports.wording import NONE, clean, percent, rule_name

if TYPE_CHECKING:
    from flipguard.releases.outcome import Outcome

SPARKS = 30
FIGURES = {
    "error_rate_old": "error, old",
    "error_rate_new": "error, new",
    "negative_flip_rate": "NFR",
    "relative_negative_flip_rate": "relative NFR",
    "churn": "churn",
}


def run_report(outcome: "Outcome") -> RenderableType:
    """The last update in full; before it the matrix of a chain, or the mean over several seeds."""
    return Group(*_sections(outcome))


def _sections(outcome: "Outcome") -> Iterator[RenderableType]:
    folder = clean(outcome.folder, 200)
    yield Text(f"finished: {folder}" if outcome.found else f"done: {folder}")
    if outcome.runs:
        yield Padding(_seeds_table(outcome.runs), (1, 0, 0, 0))
        if any(run.comparisons and run.comparisons[-1].gate.rules for run in outcome.runs):
            yield Padding(_verdicts(outcome.runs), (1, 0, 0, 0))
        return
    epochs = _epochs_table(outcome.folder)
    if epochs.row_count:
        yield Padding(epochs, (1, 0, 0, 0))
    if outcome.matrix is not None:
        yield Padding(matrix_report(outcome.matrix), (1, 0, 0, 0))
    if outcome.comparisons:
        yield Padding(comparison_report(outcome.comparisons[-1]), (1, 0, 0, 0))


def _epochs_table(folder: Path) -> Table:
    """How error and flips went while each version was trained, as they were measured then."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    runs = [read_run(folder)] if is_run(folder) else []
    for name in ("over epochs", "", on_which_part(runs).removeprefix(", "), "first", "last"):
        table.add_column(name, justify="right" if name in ("first", "last") else "left", no_wrap=True)
    for version, each in ((version, run.epochs(version)) for run in runs for version in run.versions):
        for title, field in (("error", "error_rate_new"), ("NFR", "negative_flip_rate")):
            known = [line[field] for line in each if line.get(field) is not None]
            if len(known) > 1:
                ends = percent(known[0]), percent(known[-1])
                table.add_row(Text(clean(version, 20)), title, sparkline(thinned(known, SPARKS)), *ends)
    return table


def thinned(values: Sequence[float], most: int) -> list[float]:
    """At most so many of the values, evenly, with the first and the last.

    >>> thinned([0, 1, 2, 3, 4, 5, 6], 4)
    [0, 2, 4, 6]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _seeds_table(runs: "Sequence[Outcome]") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{clean(runs[0].versions[-2])} → {clean(runs[0].versions[-1])}" if _compared(runs) else "run")
    for run in runs:
        table.add_column(clean(run.folder.name), justify="right")
    table.add_column("mean ± std", justify="right")
    for field, title in FIGURES.items() if _compared(runs) else ():
        values = [_value(run.comparisons[-1], field) for run in runs]
        table.add_row(title, *(NONE if value is None else f"{100 * value:.2f}%" for value in values), spread(values))
    return table


def _verdicts(runs: "Sequence[Outcome]") -> RenderableType:
    """The gate's word on all seeds together, then each rule that one of them breaks."""
    refused = [run for run in runs if run.passed is False]
    word = ("REFUSED", f"bold {HARM}") if refused else ("PASSED", f"bold {GAIN}")
    count = f"{len(refused)} of {len(runs)}" if refused else f"all {len(runs)}"
    by = f" by {count} seed{'' if len(runs) == 1 else 's'}"
    line = Text.assemble("gate: ", word, by, (f"   judged on the {runs[0].comparisons[-1].gate.judged_on}", QUIET))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    for run in refused:
        for rule in run.comparisons[-1].gate.rules:
            if not rule.passed:
                table.add_row(clean(run.folder.name), rule_name(rule), Text(clean(rule.reason, 200)))
    return Group(line, *([table] if refused else []))


def _compared(runs: "Sequence[Outcome]") -> bool:
    return all(run.comparisons for run in runs)


def _value(comparison: Comparison, field: str) -> float | None:
    figure = getattr(comparison, field)
    return None if figure is None else figure.value


def spread(values: Sequence[float | None]) -> str:
    """Mean and standard deviation in percent.

    >>> spread([0.01, 0.03])
    '2.00 ± 1.41%'
    """
    known = [value for value in values if value is not None]
    if len(known) < 2 or len(known) < len(values):
        return NONE
    return f"{100 * statistics.mean(known):.2f} ± {100 * statistics.stdev(known):.2f}%"


def run_markdown(outcome: "Outcome") -> str:
    """comparison.md: every later version against every earlier one, the last update first."""
    matrix = [] if outcome.matrix is None else [matrix_markdown(outcome.matrix)]
    return "\n".join([*matrix, *(comparison_markdown(one) for one in reversed(outcome.comparisons))])
