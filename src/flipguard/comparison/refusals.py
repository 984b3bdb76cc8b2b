"""What two files cannot be compared for, in one line with an example: ids that do not fit, labels that contradict."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.expression import ONLY_NEW, ONLY_OLD
from flipguard.comparison.sources import Sources
from flipguard.predictions import Predictions
from flipguard.types import InputError

LONGEST_ID = 60
"""What a message shows of an id."""


def no_id_shared(names: tuple[str, str], first: Sequence[Any]) -> str:
    """One id of each file says at a glance that one of them has lost its leading zeros, or is of other data.

    >>> no_id_shared(("old.csv", "new.csv"), ("00017", "17"))
    'old.csv and new.csv share no id (first: 00017 and 17): are they predictions on the same data?'
    >>> no_id_shared(("a", "b"), ("img 17", "img  17"))
    'a and b share no id (first: img 17 and img 17, which only look alike): are they predictions on the same data?'
    """
    seen = ""
    if len(first) == 2:
        old, new = (_printed(value) for value in first)
        alike = ", which only look alike" if old == new else ""
        start = _where_they_part(old, new)
        seen = f" (first: {_shown(old, start)} and {_shown(new, start)}{alike})"
    return f"{names[0]} and {names[1]} share no id{seen}: are they predictions on the same data?"


def _printed(value: Any) -> str:
    """An id as a line can show it: white space folded, nothing that does not print."""
    return "".join(c for c in " ".join(str(value).split()) if c.isprintable())


def _where_they_part(old: str, new: str) -> int:
    """From where both are shown: the beginning, unless it is all that would be seen."""
    pairs = enumerate(zip(old, new, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(len(old), len(new)))
    return 0 if same < LONGEST_ID else same - LONGEST_ID // 2


def _shown(text: str, start: int) -> str:
    part = text[start : start + LONGEST_ID]
    return f"{'…' if start else ''}{part}{'…' if start + LONGEST_ID < len(text) else ''}"


def refuse_duplicates(sources: Sources, old: Predictions, new: Predictions, repeated: tuple[bool, bool]) -> None:
    for predictions, relation, found in zip((old, new), (sources.old, sources.new), repeated, strict=True):
        if not found:
            continue
        twice = relation.aggregate("id, count(*) AS times", "id").filter("times > 1 AND id IS NOT NULL").order("id")
        first = twice.limit(1).fetchall()
        if first:
            raise InputError(
                f"{predictions.name} has duplicate ids (first: {first[0][0]}, {first[0][1]} times). "
                "Each id must name one sample: remove the copies."
            )


def refuse_missing(
    sources: Sources,
    old: Predictions,
    new: Predictions,
    outcome: np.ndarray[Any, np.dtype[np.int64]],
    example: pa.ChunkedArray,
    only_old: int,
    only_new: int,
    matched: int,
    on_missing: str,
) -> None:
    for predictions, relation in ((old, sources.old), (new, sources.new)):
        unnamed = relation.filter("id IS NULL").aggregate("count(*)").fetchall()[0][0]
        if unnamed:
            raise InputError(f"{predictions.name} has {unnamed:,} rows without an id: every sample needs one.")
    only = (("old", only_old, ONLY_OLD), ("new", only_new, ONLY_NEW))
    first = {
        name: min(v for v in example.filter(pa.array(outcome == code)).to_pylist() if v is not None)
        for name, number, code in only
        if number
    }
    if not matched:
        raise InputError(no_id_shared((old.name, new.name), tuple(first.values())))
    if on_missing == "drop":
        return
    parts = [
        f"{number:,} {'is' if number == 1 else 'are'} only in {name} (first: {first[name]})"
        for name, number, _ in only
        if number
    ]
    raise InputError(
        f"{old.name} has {old.rows:,} ids and {new.name} {new.rows:,}; {', '.join(parts)}. "
        f"Pass --on-missing drop to compare the {matched:,} shared ones."
    )


def refuse_contradiction(
    sources: Sources, old: Predictions, new: Predictions, number: int, vocabulary: Vocabulary
) -> None:
    rows = sources.old.set_alias("o").join(sources.new.set_alias("n"), "o.id = n.id AND o.label <> n.label")
    first = rows.order("o.id").limit(1).project("o.id, o.label, n.label").fetchall()[0]
    raise InputError(
        f"{old.name} and {new.name} disagree on {number:,} label{'s' if number > 1 else ''} (first: id {first[0]} is "
        f"'{vocabulary.name(first[1])}' in old, '{vocabulary.name(first[2])}' in new). "
        "Pass --labels old, --labels new or --labels FILE to say which are right, or --class-map FILE if classes were "
        "renamed."
    )
