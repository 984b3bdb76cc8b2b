"""The column `split`: which parts the data have, said where none is left to compare or where training data are."""

from collections.abc import Mapping
from difflib import get_close_matches

import duckdb

from flipguard.comparison.expression import VALIDATION
from flipguard.comparison.sources import Sources
from flipguard.predictions import Predictions
from flipguard.types import InputError

TRAINING = ("train", "training")
MOST_SHOWN = 7

Sizes = Mapping[str | None, int]
"""How many rows each split has; None for the rows without one."""


def split_sizes(connection: duckdb.DuckDBPyConnection, old: Predictions, new: Predictions) -> Sizes:
    """Of the file whose splits hold, without a join: the new one's where it has any, as in the expression."""
    for predictions, view in ((new, "new_rows"), (old, "old_rows")):
        if "split" in predictions.columns:
            found = dict(connection.sql(f"SELECT split, count(*) FROM {view} GROUP BY split").fetchall())
            if found.keys() - {None}:
                # Rows without a split may have one in the other file.
                return {} if None in found and {"split"} <= {*old.columns} & {*new.columns} else found
    return {}


def note_on_training(sizes: Sizes) -> list[str]:
    """Samples that a model was trained on are flattering, and nobody may have meant to compare them.

    >>> note_on_training({"train": 100, "val": 20, "test": 500})
    ['split holds test 500, train 100: all are compared; --split test compares those alone.']
    """
    compared = {name: number for name, number in sizes.items() if name not in VALIDATION}
    trained = [name for name in compared if name is not None and name.casefold() in TRAINING]
    if not trained:
        return []
    others = [name for name in compared if name is not None and name not in trained]
    tests = [name for name in others if name.casefold() == "test"] or others
    hint = f"; --split {tests[0]} compares those alone" if len(tests) == 1 else ""
    return [f"{_listed(compared)}: all are compared{hint}."]


def refuse_set_aside(sources: Sources, names: tuple[str, str], matched: int, *, by_column: bool) -> None:
    """Where no row is compared. `by_column` says that a file has splits, and not only ids to calibrate on."""
    every = f"no rows are left to compare: all {matched:,} shared ids of {names[0]} and {names[1]} are set aside"
    if not by_column:
        raise InputError(f"{every} to calibrate on. Leave some out of --calibrate-on.")
    sides = [f"{s}.split" for s, t in (("n", sources.new), ("o", sources.old)) if "split" in t.columns]
    rows = sources.old.set_alias("o").join(sources.new.set_alias("n"), "o.id = n.id")
    sizes: Sizes = dict(rows.aggregate(f"coalesce({', '.join(sides)}) AS part, count(*)", "part").fetchall())
    wanted = sources.plan.split
    if wanted is None:
        name = next(name for name in VALIDATION if name in sizes)
        raise InputError(f"{every}: {_listed(sizes)}. --split {name} compares those.")
    raise InputError(f"no row is of the split '{wanted}': {_listed(sizes)}.{_meant(wanted, sizes)}")


def _listed(sizes: Sizes) -> str:
    named = sorted((name, number) for name, number in sizes.items() if name is not None)
    parts = [f"{name} {number:,}" for name, number in named[:MOST_SHOWN]]
    parts += [f"{len(named) - MOST_SHOWN:,} more"] if len(named) > MOST_SHOWN else []
    parts += [f"{sizes[None]:,} rows without a name"] if None in sizes else []
    return f"split holds {', '.join(parts)}"


def _meant(wanted: str, sizes: Sizes) -> str:
    names = {name.strip().casefold(): name for name in sizes if name is not None}
    close = get_close_matches(wanted.strip().casefold(), names, n=1)
    return f" Did you mean '{names[close[0]]}'?" if close else ""
