"""The tables a person reads at a glance. Everything is a rich renderable made of `Text`, so data is never markup."""

import io
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flipguard.comparison.result import Comparison, Figure, Matrix
from flipguard.comparison.result import Group as Part
from flipguard.reports.strips import OutcomeStrip, sparkline
from flipguard.reports.wording import (
    NONE,
    class_groups,
    clean,
    confidences,
    hit_hardest,
    interval,
    is_significant,
    number,
    p_value,
    percent,
    rule_name,
    shown_worse,
    slice_groups,
    titles,
    verdict,
    with_interval,
)

PLAIN_WIDTH = 100
MOST_GROUPS = 5
MOST_FLIPS = 5
PAIRS = "NFR from ↓ to →"
HARM, GAIN, UNSURE, QUIET = "red", "green", "yellow", "dim"


def plain_text(report: RenderableType, width: int = PLAIN_WIDTH) -> str:
    """No colour, no escape codes, a fixed width: what a log takes, whatever the environment says."""
    console = Console(
        file=io.StringIO(),
        width=width,
        color_system=None,
        no_color=True,
        force_terminal=False,
        force_interactive=False,
        highlight=False,
        emoji=False,
    )
    with console.capture() as capture:
        console.print(report)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def comparison_report(comparison: Comparison) -> RenderableType:
    """The verdict first, then the figures behind it, where it hurts, and the gate last, where the eye ends."""
    return Group(*_sections(comparison))


def _sections(comparison: Comparison) -> Iterator[RenderableType]:
    old, new = titles(comparison)
    yield Text.assemble((old, "bold"), " → ", (new, "bold"), (f"   {_samples(comparison)}", QUIET))
    yield Text(verdict(comparison), style=_verdict_style(comparison))
    if comparison.labelled:
        yield _gap(OutcomeStrip(comparison))
    yield _gap(_flip_table(comparison))
    models = _model_table(comparison)
    if models.row_count:
        yield _gap(models)
    for kind, groups in (("class", class_groups(comparison)), ("slice", slice_groups(comparison))):
        worst = hit_hardest(groups, comparison, MOST_GROUPS)
        if worst:
            yield _gap(_group_table(kind, worst, len(groups), comparison.confidence))
    if comparison.worst_flips:
        yield _gap(_worst_table(comparison))
    if comparison.notes:
        yield _gap(_notes(comparison.notes))
    if comparison.gate.rules:
        yield _gap(_gate_table(comparison))


def _notes(notes: list[str]) -> Text:
    return Text("\n".join(f"note: {clean(note, 400)}" for note in notes), style=QUIET)


def _samples(comparison: Comparison) -> str:
    unlabelled = comparison.n - comparison.labelled
    labels = f", {unlabelled:,} without a label" if unlabelled else ""
    clusters = f", clustered by {clean(comparison.cluster)}" if comparison.cluster else ""
    return f"{comparison.n:,} sample{'' if comparison.n == 1 else 's'}{labels}{clusters}"


def _verdict_style(comparison: Comparison) -> str:
    if comparison.negative_flips == comparison.positive_flips:
        return ""
    if not is_significant(comparison):
        return UNSURE
    return HARM if comparison.negative_flips > comparison.positive_flips else GAIN


def _gap(renderable: RenderableType) -> Padding:
    return Padding(renderable, (1, 0, 0, 0))


def _table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    """Columns set apart by space alone: a log shows it as well as a screen."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", overflow="fold")
    return table


def _flip_table(comparison: Comparison) -> Table:
    level = f"{100 * comparison.confidence:g}%"
    table = _table("flips", "rate", f"{level} interval", "", right=(1,))
    for name, figure, share, meaning in _flip_rows(comparison):
        estimate = percent(figure.value) if share else number(figure.value)
        table.add_row(name, Text(estimate, style="bold"), interval(figure, share=share), Text(meaning, style=QUIET))
    noise = comparison.noise
    if noise is not None:
        surely_less = noise.excess.high is not None and noise.excess.high < 0
        style = HARM if noise.exceeds else GAIN if surely_less else UNSURE
        floor = noise.negative_flip_rate
        copies = f"{noise.copies} retrained {'copy' if noise.copies == 1 else 'copies'}"
        table.add_row("noise floor", percent(floor.value), interval(floor), Text(f"NFR of {copies}", style=QUIET))
        excess = percent(noise.excess.value, signed=True)
        sure = "two copies or more tell how sure" if noise.p is None else f"p {p_value(noise.p)}"
        above = Text(f"NFR − noise floor, {sure}", style=QUIET)
        table.add_row("above the noise", Text(excess, style=style), interval(noise.excess, signed=True), above)
    return table


def _flip_rows(comparison: Comparison) -> Iterator[tuple[str, Figure, bool, str]]:
    rows = (
        ("negative flip rate", comparison.negative_flip_rate, True, f"{comparison.negative_flips:,} right, now wrong"),
        ("positive flip rate", comparison.positive_flip_rate, True, f"{comparison.positive_flips:,} wrong, now right"),
        ("relative NFR", comparison.relative_negative_flip_rate, True, "100% = as independent models"),
        ("churn", comparison.churn, True, "predictions that changed"),
        ("weighted NFR", comparison.weighted_negative_flip_rate, True, "by the column weight"),
        ("weighted PFR", comparison.weighted_positive_flip_rate, True, "by the column weight"),
        ("flip cost", comparison.flip_cost, False, f"{comparison.cost_ratio or 0:g} × NFR − PFR; above 0 is harm"),
        ("surrogate churn", comparison.surrogate_churn, True, _distance(comparison)),
    )
    for name, figure, share, meaning in rows:
        if figure is not None:
            yield name, figure, share, meaning
    if comparison.old_classes is not None and comparison.old_classes.negative_flip_rate is not None:
        known = comparison.old_classes
        meaning = f"over the {known.labelled:,} samples of classes the old model knows"
        yield "NFR, old classes", comparison.old_classes.negative_flip_rate, True, meaning


def _distance(comparison: Comparison) -> str:
    """Each class that both models know adds at most ½, so this "rate" may pass 100 %."""
    return f"distance, α = {comparison.surrogate_churn_alpha:g}; up to 50% × classes"


def _model_table(comparison: Comparison) -> Table:
    table = _table("models", "old", "new", "change")
    rows = (
        ("error rate", "error_rate", "error_difference", True),
        ("weighted error", "weighted_error_rate", None, True),
        ("NLL", "nll", "nll_difference", False),
        ("ECE", "ece", None, True),
        ("cNLL", "cnll", None, False),
        ("cECE", "cece", None, True),
        ("top-2 gap", "prediction_confidence", None, False),
    )
    for name, field, difference, share in rows:
        old: Figure | None = getattr(comparison, f"{field}_old")
        new: Figure | None = getattr(comparison, f"{field}_new")
        if old is None and new is None:
            continue
        change: Figure | None = getattr(comparison, difference) if difference else _difference(old, new)
        table.add_row(
            name,
            with_interval(old, share=share),
            with_interval(new, share=share),
            Text(with_interval(change, share=share, signed=True), style=_change_style(change, field)),
        )
    return table


def _difference(old: Figure | None, new: Figure | None) -> Figure | None:
    """The change alone where no paired interval is known."""
    if old is None or new is None or old.value is None or new.value is None:
        return None
    return Figure(value=new.value - old.value, low=None, high=None)


def _change_style(change: Figure | None, field: str) -> str:
    """A change is coloured by what its interval shows; without one it is left alone. More confidence is no harm."""
    if change is None or change.low is None or change.high is None or field == "prediction_confidence":
        return ""
    return HARM if change.low > 0 else GAIN if change.high < 0 else UNSURE


def _group_table(kind: str, worst: list[tuple[str, Part]], total: int, confidence: float) -> Table:
    many = "classes" if kind == "class" else "slices"
    head = f"worst {many} ({len(worst)}/{total:,})"
    table = _table(head, "n", "NFR", "error", "change", "adj. p", right=(1, 4, 5))
    for name, group in worst:
        worse = shown_worse(group, confidence)
        style = HARM if worse else UNSURE if worse is None else ""
        change = group.error_difference
        errors = f"{_value(group.error_rate_old)} → {_value(group.error_rate_new)}"
        table.add_row(
            Text(clean(name, 40)),
            f"{group.labelled:,}",
            with_interval(group.negative_flip_rate),
            errors,
            Text(percent(None if change is None else change.value, signed=True), style=style),
            Text(p_value(group.adjusted_p), style=style),
        )
    return table


def _value(figure: Figure | None) -> str:
    return percent(None if figure is None else figure.value)


def _worst_table(comparison: Comparison) -> Table:
    flips = comparison.worst_flips
    scored = any(confidences(flip) for flip in flips)
    ranked = any(flip.rank is not None for flip in flips)
    shown = flips[:MOST_FLIPS]
    # Without scores none is worse than another: they are one of each of the classes that hurt most.
    title = "worst flips" if scored else f"{len(shown)} of {comparison.negative_flips:,} flips"
    # A negative flip's label is what the old model said.
    columns = [f"{title}: id", "label, old → new", *(["confidence"] if scored else [])]
    table = _table(*columns, *(["old rank"] if ranked else []))
    for flip in shown:
        cells = [
            Text(clean(flip.id, 40)),
            Text.assemble(_class(flip.label), " → ", (_class(flip.new), HARM)),
        ]
        if scored:
            cells.append(Text(confidences(flip)))
        if ranked:
            cells.append(Text(NONE if flip.rank is None else str(flip.rank)))
        table.add_row(*cells)
    return table


def _class(name: str | None) -> str:
    return "(none)" if name is None else clean(name, 30)


def _gate_table(comparison: Comparison) -> RenderableType:
    gate = comparison.gate
    refused = sum(not rule.passed for rule in gate.rules)
    on = "on the interval" if gate.judged_on == "interval" else "on the value"
    of = f"{refused} of {len(gate.rules)}" if refused else f"all {len(gate.rules)}"
    line = Text.assemble(
        "gate: ",
        ("PASSED", f"bold {GAIN}") if gate.passed else ("REFUSED", f"bold {HARM}"),
        (f"   {of} rules {'broken' if refused else 'kept'}, judged {on}", QUIET),
    )
    table = _table("", "", "")
    table.show_header = False
    for rule in gate.rules:
        mark = Text("ok", style=GAIN) if rule.passed else Text("NO", style=f"bold {HARM}")
        table.add_row(mark, rule_name(rule), Text(clean(rule.reason, 200)))
    return Group(line, table)


def matrix_report(matrix: Matrix) -> RenderableType:
    """Every version against every other, and how error and flips went from version to version."""
    updates = len(matrix.versions) - 1
    line = Text.assemble(
        (f"{matrix.sum_negative_flips:,} negative flips", "bold"),
        f" over {updates} {'update' if updates == 1 else 'updates'} of {matrix.n:,} samples",
        f" (mean NFR {percent(matrix.mean_negative_flip_rate)};",
        f" over all pairs {percent(matrix.mean_pairwise_negative_flip_rate)}).",
    )
    history = _table("over time", "", "from", "to")
    rates = [matrix.negative_flip_rate[i][i + 1] for i in range(updates)]
    for title, figures, lead in (("error", matrix.error_rate, []), ("NFR of the update", rates, [None])):
        values = [*lead, *(figure.value for figure in figures)]
        history.add_row(title, sparkline(values), percent(figures[0].value), percent(figures[-1].value))
    shown = [_gap(_Pairs(matrix)), *([_gap(history)] if updates > 1 else [])]
    return Group(line, *shown, *([_gap(_notes(matrix.notes))] if matrix.notes else []))


@dataclass(frozen=True)
class _Pairs:
    """Row: the version before, column: the version after. Consecutive updates are bold, the way back is dim.

    Too many columns for the terminal go below each other, a few at a time, after the versions themselves.
    """

    matrix: Matrix

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = len(self.matrix.versions)
        errors = [with_interval(figure) for figure in self.matrix.error_rate]
        names = [f"{i + 1} {clean(name, 30)}" for i, name in enumerate(self.matrix.versions)]
        whole = self._block(PAIRS, names, range(count), errors)
        if console.measure(whole, options=options.update_width(10_000)).maximum <= options.max_width:
            yield whole
            return
        versions = _table("version", "error")
        for name, error in zip(names, errors, strict=True):
            versions.add_row(Text(name), error)
        yield versions
        at_once = max(1, (options.max_width - len(f"{PAIRS}  ")) // len("100.00%  "))
        for first in range(0, count, at_once):
            part = range(first, min(first + at_once, count))
            yield _gap(self._block(PAIRS, [str(i + 1) for i in range(count)], part))

    def _block(self, head: str, names: list[str], columns: range, errors: list[str] | None = None) -> Table:
        lead = [head] if errors is None else [head, "error"]
        right = tuple(range(len(lead), len(lead) + len(columns)))
        table = _table(*lead, *(str(j + 1) for j in columns), right=right)
        for i, name in enumerate(names):
            rates = self.matrix.negative_flip_rate[i]
            cells = [Text(NONE if i == j else percent(rates[j].value), style=_matrix_style(i, j)) for j in columns]
            table.add_row(Text(name), *([] if errors is None else [errors[i]]), *cells)
        return table


def _matrix_style(i: int, j: int) -> str:
    return "bold" if j == i + 1 else "" if j > i else QUIET
