"""A chain of versions as a table: NFR between each two of them, and what all updates together broke."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from flipguard.bench.tables import Cell, Row

NFR, FLIPS = "negative_flip_rate", "negative_flips"


def chain_table(rows: Sequence[Row]) -> list[str]:
    """Markdown lines (ELODI, Table 5): a line for each chain, a column for each two versions; [] without chains.

    ΣNF adds up the negative flips of one update after the other; the last column has it in percent of all answers,
    ΣNF / (N·T) for T updates (Träuble et al. 2021).
    """
    chains = {link.chain: _of(rows, link.chain) for row in rows if (link := row.link) is not None}
    if not chains:
        return []
    pairs = sorted({pair for links in chains.values() for pair in links})
    head = [*(f"v{older} → v{newer}" for older, newer in pairs), "ΣNF", "ΣNF / (N·T)"]
    lines = [f"| chain | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}"]
    for chain, links in chains.items():
        shown = [_text(links[pair].cells[NFR], 100.0) if pair in links else "–" for pair in pairs]
        last = max(newer for _, newer in links)
        steps = [links[step].cells for step in pairwise(range(last + 1)) if step in links]
        if len(steps) == last:
            shown += [_text(_total([cells[FLIPS] for cells in steps]), 1.0)]
            shown += [_text(_total([cells[NFR] for cells in steps]), 100.0 / last)]
        else:
            shown += ["–", "–"]
        lines.append(f"| {chain} | {' | '.join(shown)} |")
    return lines


def _of(rows: Sequence[Row], chain: str) -> dict[tuple[int, int], Row]:
    return {(row.link.older, row.link.newer): row for row in rows if row.link is not None and row.link.chain == chain}


def _total(cells: Sequence[Cell]) -> Cell:
    """The sum, seed by seed, over those that all have."""
    seeds = [seed for seed in cells[0].values if all(seed in cell.values for cell in cells)]
    return Cell({seed: float(np.sum([cell.values[seed] for cell in cells])) for seed in seeds})


def _text(cell: Cell, scale: float) -> str:
    digits = 1 if scale == 1.0 else 2
    spread = "" if cell.spread is None else f" ± {scale * cell.spread:.{digits}f}"
    return f"{scale * cell.mean:.{digits}f}{spread}"
