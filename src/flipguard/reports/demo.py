"""Tables of what training does: the demo's outcome, and the list of methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

ONE_LINE = ("method", "kind", "held to", "trainings", "inference")
SHARES = {"what it does": 3, "paper, equation": 3, "parameters": 4}
"""The columns of several lines, and the parts of the remaining width that each has."""
SEVERAL_LINES = 80
"""What these need between them, so that their words stay whole."""
WIDEST = 200

_COLUMNS = (
    ("error old", "error_rate_old"),
    ("error new", "error_rate_new"),
    ("NFR", "negative_flip_rate"),
    ("relative NFR", "relative_negative_flip_rate"),
    ("churn", "churn"),
)


def demo_report(outcomes: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row per treatment, mean ± half the 95 % interval over the pairs, in percent; then what it comes to."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("treatment")
    for title, _ in _COLUMNS:
        table.add_column(f"{title}, %", justify="right")
    for outcome in outcomes:
        cells = [f"{100 * f['value']:.2f} ± {100 * (f['high'] - f['value']):.2f}" for f in _figures(outcome)]
        table.add_row(str(outcome["method"]), *cells)
    return Group(Text(_title(outcomes[0])), Text(), table, Text(), Text(_summary({o["method"]: o for o in outcomes})))


def _figures(outcome: Mapping[str, Any]) -> list[Mapping[str, float]]:
    return [outcome[name] for _, name in _COLUMNS]


def _title(outcome: Mapping[str, Any]) -> str:
    return (
        f"digits, 32 → 128 hidden units, {outcome['n']:,} test samples, {outcome['pairs']} old/new pairs; "
        "mean ± 95 % interval over pairs"
    )


def _summary(by_method: Mapping[str, Mapping[str, Any]]) -> str:
    none, focal, elodi = (by_method[name] for name in ("none", "fd_lm", "elodi"))

    def cut(treated: Mapping[str, Any]) -> str:
        figure = "relative_negative_flip_rate"
        return f"{100 * (1 - treated[figure]['value'] / none[figure]['value']):.0f}%"

    def error(treated: Mapping[str, Any]) -> str:
        return f"{100 * treated['error_rate_new']['value']:.2f}%"

    return (
        f"Against no treatment (error {error(none)}), focal distillation cuts relative NFR by {cut(focal)}, at an "
        f"error of {error(focal)}; ELODI by {cut(elodi)}, at {error(elodi)}, with one network at inference where the "
        f"paragon needs {elodi['members']}."
    )


@dataclass(frozen=True)
class MethodsReport:
    """The methods: what each does, its kind, where each comes from, what it costs, its parameters with their defaults.

    A row for each; where a terminal is too narrow for whole words, a paragraph for each.
    """

    cards: Sequence[Mapping[str, Any]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [_row(card) for card in self.cards]
        whole = [max(len(title), *(len(row[title]) for row in rows)) for title in ONE_LINE]
        left = min(options.max_width, WIDEST) - sum(whole) - 2 * (len(ONE_LINE) + len(SHARES) - 1)
        yield _methods_table(rows, left) if left >= SEVERAL_LINES else Group(*map(_paragraph, self.cards))


def _methods_table(rows: Sequence[Mapping[str, str]], left: int) -> Table:
    """`left` is what the long columns share."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    widths = {title: left * share // sum(SHARES.values()) for title, share in SHARES.items()}
    for title in rows[0]:
        table.add_column(title, overflow="fold", no_wrap=title in ONE_LINE, width=widths.get(title))
    for row in rows:
        table.add_row(*map(Text, row.values()))
    return table


def _row(card: Mapping[str, Any]) -> dict[str, str]:
    references, source, parameters = _told(card)
    return {
        "method": str(card["name"]),
        "what it does": str(card["summary"]),
        "kind": str(card["kind"]),
        "paper, equation": source,
        "held to": references,
        "trainings": str(card["training_cost"]),
        "inference": str(card["inference_cost"]),
        "parameters": parameters,
    }


def _paragraph(card: Mapping[str, Any]) -> RenderableType:
    references, source, parameters = _told(card)
    costs = f"trainings {card['training_cost']}, inference {card['inference_cost']}"
    held = f"held to {references}; " if references != "-" else ""
    head = Text.assemble((str(card["name"]), "bold"), f"  {card['kind']}")
    lines = [Text(line) for line in (str(card["summary"]), source, held + costs)] + [Text(parameters, style="dim")]
    return Group(head, *(Padding(line, (0, 0, 0, 2)) for line in lines))


def _told(card: Mapping[str, Any]) -> tuple[str, str, str]:
    """What it is held to, where it comes from, its parameters."""
    parameters = ", ".join(f"{name}={_short(value)}" for name, value in card["parameters"].items())
    source = card["paper"] if card["equation"] == "-" else f"{card['paper']}, eq. {card['equation']}"
    return ", ".join(card["references"]) or "-", source, parameters


def _short(value: Any) -> str:
    return "{…}" if isinstance(value, Mapping) else str(value)
