"""Small plots of one line for the terminal: they read without colour, too."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flipguard.comparison.result import Comparison
from flipguard.reports.wording import outcome_counts, percent

WIDTH = 78
_LEVELS = "▁▂▃▄▅▆▇█"
_MARKS = {
    "stayed right": ("█", "dim"),
    "negative flips": ("▼", "red"),
    "positive flips": ("▲", "green"),
    "stayed wrong": ("░", "dim"),
}


@dataclass(frozen=True)
class OutcomeStrip:
    """All labelled samples as one strip, and what its signs mean; in a narrow terminal the meanings take two lines."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        counts = outcome_counts(self.comparison)
        strip, meanings = Text(), []
        cells = shares(list(counts.values()), min(WIDTH, options.max_width))
        for (name, n), length in zip(counts.items(), cells, strict=True):
            sign, style = _MARKS[name]
            strip.append(sign * length, style)
            meanings.append(Text.assemble((sign, style), f" {name} {percent(n / self.comparison.labelled)}"))
        yield strip
        gap = Text("   ")
        line = gap.join(meanings)
        yield from [line] if line.cell_len <= options.max_width else [gap.join(meanings[:2]), gap.join(meanings[2:])]


def shares(counts: Sequence[int], width: int) -> list[int]:
    """How many of `width` cells each count gets: in proportion, but never none for what is there.

    >>> shares([970, 1, 0, 29], 20)
    [18, 1, 0, 1]
    """
    total = sum(counts)
    cells = [max(round(width * n / total), 1) if n else 0 for n in counts]
    cells[cells.index(max(cells))] += width - sum(cells)
    return cells


def sparkline(values: Sequence[float | None]) -> str:
    """The values as bars from 0 to the largest; a blank for one that is not known.

    >>> sparkline([None, 0.0, 0.5, 1.0])
    ' ▁▅█'
    """
    top = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else _LEVELS[round((len(_LEVELS) - 1) * value / top) if top else 0] for value in values
    )
