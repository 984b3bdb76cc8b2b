"""The generated part of a method's page: its card, its equation as the code states it, and what we measured of it."""

import inspect
import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from fences import fenced

from flipguard.methods import METHODS, Card

ROOT = Path(__file__).parents[2]
UNTREATED = ("none", "finetuned")
PAGE = re.compile(r"methods/(\w+)\.md")
EARLIER = {
    **dict.fromkeys(("dealt_branch", "dealt_branch_5", "dealt_branch_30", "small_branch"), "scion"),
    **dict.fromkeys(("patient_branch", "patient_branch_5"), "scion"),
    **dict.fromkeys(("patient_5", "patient_3", "patient_2", "dealt_5", "dealt_3", "small_5", "small_3"), "heir"),
}
"""Rows whose names were fixed before their methods had one."""


def navigation() -> list[Any]:
    return ["methods/index.md", *({name: f"methods/{name}.md"} for name in METHODS)]


def with_card(page: str, text: str) -> str:
    """The page with its generated parts put in; other pages as they are."""
    found = PAGE.fullmatch(page)
    if found is None:
        return text
    if found[1] == "index":
        return text.replace("<!-- cards -->", overview())
    card = METHODS[found[1]]
    return text.replace("<!-- card -->", _card(card)).replace("<!-- figures -->", _figures(card.name))


def overview() -> str:
    """All methods in a table."""
    rows = [
        f"| [`{card.name}`]({card.name}.md) | {card.summary} | {_source(card)} | {_held_to(card)} | "
        f"{card.training_cost} | {card.inference_cost} |"
        for card in METHODS.values()
    ]
    head = [
        "| method | what it does | from | held to | trainings | networks at inference |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows])


def _card(card: Card) -> str:
    first, *rest = _said_of(card)
    parameters = [f"| `{name}` | `{value}` |" for name, value in _flat(card.parameters())]
    lines = [
        card.summary,
        f'<p class="equation" markdown>{first}</p>',
        *rest,
        f"| from | {_source(card)} |\n|---|---|\n"
        f"| kind | {card.kind} |\n"
        f"| held to | {_held_to(card)} |\n"
        f"| cost of training | {card.training_cost}, in trainings of one network; m members |\n"
        f"| networks at inference | {card.inference_cost} |",
        "| parameter | default |\n|---|---|\n" + "\n".join(parameters),
    ]
    if card.settings:
        rows = [f"| {data} | {_options(options)} |" for data, options in card.settings.items()]
        lines.append("| the papers' settings | |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(lines)


def _said_of(card: Card) -> list[str]:
    """Paragraphs of the docstrings: the method's, those of the class it builds on, of its groups of parameters."""
    made: Any = card.factory
    told = inspect.getdoc(made) or ""
    bases = [base for base in made.__mro__[1:] if f"`{base.__name__}`" in told]
    groups = [type(value) for value in vars(made(**card.fixed, **card.defaults)).values() if is_dataclass(value)]
    paragraphs = fenced(told).split("\n\n")
    for other in (*bases, *groups):
        paragraphs.append(f"`{other.__name__}`: {fenced(inspect.getdoc(other) or '')}")
    return paragraphs


def _source(card: Card) -> str:
    number = f", Eq. {card.equation}" if card.equation not in ("", "-") else ""
    return f"{card.paper}{number}"


def _held_to(card: Card) -> str:
    return ", ".join(card.references) or "nothing"


def _flat(parameters: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in parameters.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, dict) else [(f"{before}{name}", value)]
        found += inner
    return found


def _options(options: Any) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in options.items())


def _figures(name: str) -> str:
    """The method's rows, beside that of no treatment, of every table of treatments in results/ and of every bench."""
    results = ROOT / "results"
    pages = [*sorted(results.glob("bench/*/table.md")), *sorted(results.glob("*.md"))]
    tables = [found for path in pages for found in _tables(path, name)]
    if not tables:
        return "No table in results/ has this method yet."
    return "\n\n".join(tables)


def _tables(path: Path, name: str) -> list[str]:
    found, heading, title = [], "", ""
    lines = path.read_text("utf-8").splitlines()
    for place, line in enumerate(lines):
        title = line.lstrip("# ") if line.startswith("# ") else title
        heading = line.lstrip("# ") if line.startswith(("## ", "### ")) else heading
        if not line.startswith(("| treatment |", "| row | training |")) or heading.startswith("Validation"):
            continue
        rows = _rows(lines[place + 2 :])
        mine = [row for row in rows if _of(row) == name]
        if mine:
            base = [row for row in rows if row not in mine and row.split("|")[1].strip() in UNTREATED]
            page, part = path.relative_to(ROOT), f"{heading[:1].lower()}{heading[1:]}"
            told = f"[{title or path.stem}](../../{page}), {part}, in percent:"
            found.append("\n".join([told, "", line, lines[place + 1], *base, *mine]))
    return found


def _rows(lines: list[str]) -> list[str]:
    end = next((place for place, line in enumerate(lines) if not line.startswith("|")), len(lines))
    return lines[:end]


def _of(row: str) -> str:
    """The method whose name a treatment's begins with, the longest if there are several: `fd_kl_0.3` is of fd_kl."""
    treatment = row.split("|")[1].strip().strip("`")
    if treatment in EARLIER:
        return EARLIER[treatment]
    fitting = [name for name in METHODS if treatment == name or treatment.startswith((f"{name}_", f"{name} "))]
    return max(fitting, key=len, default="")
