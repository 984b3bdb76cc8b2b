"""The two files as tables that the comparison runs on."""

from collections.abc import Mapping
from dataclasses import dataclass

import duckdb

from flipguard.comparison.expression import Plan


@dataclass(frozen=True)
class Sources:
    """The two files as DuckDB tables ready for the expression, and the plan that fits them.

    `slices` leads from a column to group by to its name in the tables, where no name of a user's can be in the way.
    """

    connection: duckdb.DuckDBPyConnection
    old: duckdb.DuckDBPyRelation
    new: duckdb.DuckDBPyRelation
    plan: Plan
    slices: Mapping[str, str]


def has_labels(sources: Sources) -> tuple[bool, bool]:
    """Whether the old file, and the new one, labels any of its rows."""
    old, new = (
        "label" in relation.columns and bool(relation.filter("label IS NOT NULL").limit(1).fetchall())
        for relation in (sources.old, sources.new)
    )
    return old, new


def contradictions(sources: Sources) -> int:
    """How many samples the two files label differently."""
    if "label" not in sources.old.columns or "label" not in sources.new.columns:
        return 0
    rows = sources.old.set_alias("o").join(sources.new.set_alias("n"), "o.id = n.id AND o.label <> n.label")
    return int(rows.aggregate("count(*)").fetchall()[0][0])
