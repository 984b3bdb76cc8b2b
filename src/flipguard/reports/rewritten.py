"""What `flipguard rewrite` did, at a glance."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from flipguard.comparison.rewriting import Rewritten
from flipguard.reports.wording import NONE, clean, percent


def rewritten_report(found: Rewritten, *, fewer_in: str | None = None) -> RenderableType:
    """The rule and where it learned whom to believe, then the chain's figures as it came and as the rule stores it.

    `fewer_in` is the file that was written without the rows on which reliability was estimated, if it was.
    """
    rule = f"{found.rule}, cost ratio {found.cost_ratio:g}" if found.cost_ratio is not None else found.rule
    lines = [
        f"{' → '.join(clean(version) for version in found.versions)}   {found.rows:,} rows",
        f"rule {rule}; reliability estimated on {clean(found.estimated_on, 300)}.",
        f"{found.overruled:,} of the last version's predictions are overruled.",
    ]
    parts: list[RenderableType] = [Text("\n".join(lines))]
    if found.before is not None and found.after is not None:
        parts += [Text(), _figures(found)]
    notes = list(found.notes)
    if fewer_in is not None:
        notes.append(
            f"{clean(fewer_in, 200)} holds the {found.rows:,} rewritten rows alone: to compare it with a version's "
            "whole file, pass --on-missing drop."
        )
    if notes:
        parts += [Text(), Text("\n".join(f"note: {clean(note, 600)}" for note in notes))]
    return Group(*parts)


def _figures(found: Rewritten) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("over the chain")
    for title in ("as it came", "rewritten"):
        table.add_column(title, justify="right")
    sides = [side for side in (found.before, found.after) if side is not None]
    ratios = [side.positive_per_negative for side in sides]
    table.add_row("ΣNF, right and then wrong", *(f"{side.negative_flips:,}" for side in sides))
    table.add_row("ΣPF, wrong and then right", *(f"{side.positive_flips:,}" for side in sides))
    table.add_row("NFR, ΣNF / (N·T)", *(percent(side.negative_flip_rate) for side in sides))
    table.add_row("PF / NF", *(NONE if ratio is None else f"{ratio:.2f}" for ratio in ratios))
    table.add_row("error of the last version", *(percent(side.error_rate) for side in sides))
    return table
