"""A table from the records of recipes/elodi_cifar100.py.

    python recipes/table.py results/elodi_cifar100 > results/elodi_cifar100.md

One row per treatment: mean ± standard deviation over seeds where there are several; no treatment is averaged over the
pairs of members of each seed first.
"""

import json
import sys
from pathlib import Path

import numpy as np

from flipguard import metrics
from flipguard.metrics import Tally

COLUMNS = {
    "ER old": metrics.error_rate_old,
    "ER new": metrics.error_rate_new,
    "NFR": metrics.negative_flip_rate,
    "relative NFR": metrics.relative_negative_flip_rate,
    "churn": metrics.churn,
}


def figures(counts: list[int]) -> list[float]:
    """In percent, from the counts of the five outcomes."""
    tally = Tally(count=np.array([*counts, 0, 0]), missing=np.zeros(2, np.int64))
    return [100 * float(figure(tally)) for figure in COLUMNS.values()]


def rows(folder: Path, part: str) -> dict[str, list[list[float]]]:
    """For each treatment, its figures per seed."""
    found: dict[str, list[list[float]]] = {}
    for path in sorted(folder.glob("seed_*.json")):
        record = json.loads(path.read_text())
        pairs: dict[str, list[list[float]]] = {}
        for name, outcome in record["outcomes"].items():
            member = name.startswith("none_") and name.removeprefix("none_").isdigit()
            pairs.setdefault("none" if member else name, []).append(figures(outcome[part]))
        for name, values in pairs.items():
            found.setdefault(name, []).append(np.mean(values, axis=0).tolist())
    return found


def table(folder: Path, part: str) -> str:
    lines = [f"| treatment | {' | '.join(COLUMNS)} | seeds |", f"|---|{'---|' * (len(COLUMNS) + 1)}"]
    for name, seeds in rows(folder, part).items():
        mean, spread = np.mean(seeds, axis=0), np.std(seeds, axis=0, ddof=1) if len(seeds) > 1 else None
        cells = [f"{m:.2f}" if spread is None else f"{m:.2f} ± {spread[i]:.2f}" for i, m in enumerate(mean)]
        lines.append(f"| {name} | {' | '.join(cells)} | {len(seeds)} |")
    return "\n".join(lines)


def main() -> None:
    folder = Path(sys.argv[1])
    print(f"## Validation (5,000 samples)\n\n{table(folder, 'validation')}\n\n## Test (10,000 samples)\n")
    print(table(folder, "test"))


if __name__ == "__main__":
    main()
