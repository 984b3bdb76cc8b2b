"""Tables of what training does: the demo's outcome, and the list of methods."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

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


def methods_report(cards: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One row per method: its kind, where it comes from, what it costs, its parameters with their defaults."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    # With these two set, the words of a log 100 columns wide stay whole.
    widths = {"paper, equation": 16, "parameters": 20}
    for title in ("method", "kind", "paper, equation", "held to", "trainings", "inference", "parameters"):
        table.add_column(title, overflow="fold", width=widths.get(title))
    for card in cards:
        parameters = ", ".join(f"{name}={_short(value)}" for name, value in card["parameters"].items())
        references = ", ".join(card["references"]) or "-"
        source = card["paper"] if card["equation"] == "-" else f"{card['paper']}, eq. {card['equation']}"
        facts = (card["name"], card["kind"], source, references, card["training_cost"], card["inference_cost"])
        table.add_row(*(Text(str(fact)) for fact in (*facts, parameters)))
    return table


def _short(value: Any) -> str:
    return "{…}" if isinstance(value, Mapping) else str(value)
