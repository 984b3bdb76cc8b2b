"""What several machines measured of one bench, in one folder of results."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from flipguard.bench.plan import BenchSpec
from flipguard.bench.tables import (
    PREDICTIONS,
    RUNS,
    other_condition,
    read_facts,
    read_table,
    write_predictions,
    write_runs,
)
from flipguard.types import InputError

KEYS = ("id", "label")
Cell = tuple[str, int]
"""A row and a seed of it."""


def add_results(spec: BenchSpec, folder: Path, others: Sequence[Path]) -> list[str]:
    """Rows and seeds of other folders into `folder`, in the spec's order; returns a note for each that was passed over.

    What is there stays: of a row and seed that two folders have, the first one's counts.
    """
    records: dict[Cell, list[dict[str, Any]]] = {}
    columns: dict[str, Any] = {}
    facts: dict[str, Any] | None = None
    samples: pa.Table | None = None
    notes: list[str] = []
    for source in ([folder] if (folder / RUNS).exists() else []) + list(others):
        own = read_facts(source)
        if facts is not None and (other := other_condition(facts, own)):
            key, there, here = other
            raise InputError(f"{source} was measured with {key} {here}, and the others with {there}.")
        facts = facts or own
        said = read_table(source, PREDICTIONS)
        samples = _same_samples(samples, said.select(list(KEYS)), folder, source)
        found: dict[Cell, list[dict[str, Any]]] = {}
        for record in read_table(source, RUNS).to_pylist():
            found.setdefault((record["row"], record["seed"]), []).append(record)
        for cell, those in found.items():
            if cell in records:
                notes.append(f"{cell[0]}, seed {cell[1]}, is there already: that of {source} is passed over.")
                continue
            records[cell] = those
            mine = (f"{cell[0]}.{cell[1]}.{pair}." for pair in {record["pair"] for record in those})
            columns |= {name: said[name] for start in mine for name in said.column_names if name.startswith(start)}
    if facts is None or samples is None:
        raise InputError("nothing to add: name the folders that hold a bench's results.")
    order = _in_order(records, spec)
    folder.mkdir(parents=True, exist_ok=True)
    write_runs(folder, [record for cell in order for record in records[cell]], facts)
    named = [name for row, seed in order for name in columns if name.rsplit(".", 3)[:2] == [row, str(seed)]]
    arrays = {name: columns[name].to_numpy() for name in named}
    write_predictions(folder, samples["id"], samples["label"].to_numpy(), arrays)
    return notes


def _same_samples(before: pa.Table | None, now: pa.Table, folder: Path, source: Path) -> pa.Table:
    if before is None:
        return now
    for key in KEYS:
        if not np.array_equal(before[key].to_numpy(), now[key].to_numpy()):
            raise InputError(f"{source} has other test samples than {folder}, or another order of them.")
    return before


def _in_order(records: Mapping[Cell, Any], spec: BenchSpec) -> list[Cell]:
    """As one call of the bench would have written them; what the spec no longer has comes last."""
    rows, seeds = list(spec.every_row), list(spec.seeds)

    def place(cell: Cell) -> tuple[int, int]:
        row, seed = cell
        return (
            rows.index(row) if row in rows else len(rows),
            seeds.index(seed) if seed in seeds else len(seeds),
        )

    return sorted(records, key=place)
