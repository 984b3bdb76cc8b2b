"""The row of a bench that the rule of results/README.md chooses, from its records on the validation part.

    python recipes/choose.py results/bench/cifar100_front_search --seeds 100 101 --rows again_2 again_3 --at-most 23.0

Of the rows whose mean relative NFR over the seeds is at most so many percent it is the one with the lowest mean error;
if there is none, the one with the lowest relative NFR. The test part is not looked at. A row that lacks a seed is an
error, as means over different seeds do not compare.
"""

import argparse
import sys
from pathlib import Path

import pyarrow.parquet as pq

ERROR, FLIPS = "error_rate_new", "relative_negative_flip_rate"


def means(folder: Path, rows: list[str], seeds: list[int]) -> dict[str, tuple[float, float]]:
    """Row to its mean error and relative NFR in percent; a row of several pairs counts each seed's pairs alike."""
    columns = ["row", "seed", "part", ERROR, FLIPS]
    records = pq.read_table(folder / "runs.parquet", columns=columns).to_pylist()
    found = {}
    for row in rows:
        own = [r for r in records if r["row"] == row and r["part"] == "validation" and r["seed"] in seeds]
        missing = sorted(set(seeds) - {r["seed"] for r in own})
        if missing:
            sys.exit(f"{folder} has no validation figures of {row} for seed {missing[0]}.")
        found[row] = (_mean(own, ERROR), _mean(own, FLIPS))
    return found


def _mean(records: list[dict[str, float]], figure: str) -> float:
    return 100 * sum(record[figure] for record in records) / len(records)


def chosen(found: dict[str, tuple[float, float]], at_most: float) -> str:
    """The rule."""
    few = [row for row, (_, flips) in found.items() if flips <= at_most]
    return min(few, key=lambda row: found[row][0]) if few else min(found, key=lambda row: found[row][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--rows", nargs="+", required=True)
    parser.add_argument("--at-most", type=float, required=True, help="relative NFR in percent")
    options = parser.parse_args()
    found = means(options.folder, options.rows, options.seeds)
    for row, (error, flips) in found.items():
        print(f"{row}: error {error:.2f}, relative NFR {flips:.2f}", file=sys.stderr)
    print(chosen(found, options.at_most))


if __name__ == "__main__":
    main()
