"""What several machines measured of one bench, in one folder of results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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


def add_results(
    spec: BenchSpec, folder: Path, others: Sequence[Path], *, rows: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[str]:
    """Rows and seeds of other folders into `folder`, in the spec's order; returns a note for each that two have.

    What is there stays, but for a row and seed of which another folder has more parts of the data: all of it is taken
    from there, as parts that were measured on different networks would not belong together. Of the other folders only
    these `rows` and `seeds` are taken, if any are named: so a bench can have rows of another one under its conditions.
    """
    for source in others:
        if source.resolve() == folder.resolve():
            raise InputError(f"{source} is --out itself: name another folder to add.")
    own = [folder] if (folder / RUNS).exists() else []
    sources = own + list(others)
    cells = {folder: _cells(folder)} if own else {}
    cells |= {source: _only(_cells(source), source, rows, seeds) for source in others}
    for source in sources:
        _check(spec, source, cells[source])
    tables = {source: read_table(source, PREDICTIONS) for source in sources}
    samples = tables[sources[0]].select(list(KEYS))
    for source in sources[1:]:
        if not all(np.array_equal(samples[key].to_numpy(), tables[source][key].to_numpy()) for key in KEYS):
            raise InputError(
                f"{source} has other test samples than {sources[0]}, or another order of them: add it to another --out."
            )
    found: dict[Cell, tuple[Path, list[dict[str, Any]]]] = {}
    notes = []
    for source in sources:
        for cell, records in cells[source].items():
            if cell not in found:
                found[cell] = source, records
                continue
            first, there = found[cell]
            more = {record["part"] for record in records} > {record["part"] for record in there}
            if more:
                found[cell] = source, records
            kept, left = (source, first) if more else (first, source)
            other = "" if {r["key"] for r in records} == {r["key"] for r in there} else ", of other settings,"
            notes.append(
                f"{cell[0]}, seed {cell[1]}: {kept} counts{', which has more parts' if more else ''}; that of {left}"
                f"{other} is passed over."
            )
    order = sorted(found, key=lambda cell: (list(spec.every_row).index(cell[0]), _place(spec, cell[1])))
    folder.mkdir(parents=True, exist_ok=True)
    write_runs(folder, [record for cell in order for record in found[cell][1]], read_facts(sources[0]))
    columns = {
        name: tables[found[cell][0]][name].to_numpy()
        for cell in order
        for name in tables[found[cell][0]].column_names
        if name.rsplit(".", 3)[:2] == [cell[0], str(cell[1])]
    }
    write_predictions(folder, samples["id"], samples["label"].to_numpy(), columns)
    return notes


def _only(
    cells: dict[Cell, list[dict[str, Any]]], source: Path, rows: Sequence[str], seeds: Sequence[int]
) -> dict[Cell, list[dict[str, Any]]]:
    """Those of the named rows and seeds, each of which must be there."""
    for place, named in enumerate((rows, seeds)):
        there = list(dict.fromkeys(cell[place] for cell in cells))
        for one in named:
            if one not in there:
                raise InputError(
                    f"{source} has no {('row', 'seed')[place]} {one}; it has {', '.join(map(str, there))}."
                )
    for row in rows:
        by = [seed for name, seed in cells if name == row]
        if lacking := [seed for seed in seeds if seed not in by]:
            raise InputError(f"{source} has {row} by seed {', '.join(map(str, by))}, and not by {lacking[0]}.")
    return {
        cell: records
        for cell, records in cells.items()
        if (not rows or cell[0] in rows) and (not seeds or cell[1] in seeds)
    }


def _check(spec: BenchSpec, source: Path, cells: dict[Cell, list[dict[str, Any]]]) -> None:
    """Refuses what was measured under other conditions than the spec's, or is of another bench."""
    if other := other_condition(read_facts(source), spec.facts):
        key, there, here = other
        raise InputError(f"{source} was measured with {key} {there}, and this bench has {here}: leave it out.")
    if unknown := [row for row, _ in cells if row not in spec.every_row]:
        raise InputError(f"{source} has the row '{unknown[0]}', which this bench has not: is it another one's?")


def _cells(source: Path) -> dict[Cell, list[dict[str, Any]]]:
    found: dict[Cell, list[dict[str, Any]]] = {}
    for record in read_table(source, RUNS).to_pylist():
        found.setdefault((record["row"], record["seed"]), []).append(record)
    return found


def _place(spec: BenchSpec, seed: int) -> int:
    """Seeds that the spec no longer has come last."""
    return spec.seeds.index(seed) if seed in spec.seeds else len(spec.seeds)
