"""The columns by which samples are sliced: those asked for, or all that have few values."""

from collections.abc import Iterable
from difflib import get_close_matches

import duckdb
import pyarrow as pa

from flipguard.comparison.engine import quoted
from flipguard.comparison.options import Options
from flipguard.predictions import Predictions
from flipguard.predictions.columns import RESERVED, is_text, plain_type
from flipguard.types import InputError

MOST_SLICE_VALUES = 100


def settled_slices(
    connection: duckdb.DuckDBPyConnection, old: Predictions, new: Predictions, options: Options
) -> tuple[tuple[str, ...], list[str]]:
    """The slice columns to group by: those asked for, or every one with few values."""
    known = {name: p for p in (old, new) for name in p.slices}
    for name in (*(options.by or ()), *([options.cluster] if options.cluster else ())):
        if name == options.cluster == "label":
            raise InputError("samples of one class are not one cluster: --cluster needs a column such as customer.")
        if name not in known and name != "label":
            _refuse_reserved(name, old, new)
            close = get_close_matches(name, known, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" Columns to slice by: {', '.join(known) or 'none'}."
            raise InputError(f"neither file has a column '{name}'.{hint}")
        for predictions in (old, new):
            if name in predictions.slices and pa.types.is_nested(predictions.schema.field(name).type):
                raise InputError(
                    f"{predictions.name}: column '{name}' holds a list or struct per row: no value to slice by."
                )
    if options.by is not None:
        asked = tuple(dict.fromkeys(name for name in options.by if name != "label"))
        _check_kinds(old, new, (*asked, *([options.cluster] if options.cluster else [])))
        return asked, []
    chosen: list[str] = []
    many: list[str] = []
    for name, predictions in known.items():
        kind = plain_type(predictions.schema.field(name).type)
        if name == options.cluster or pa.types.is_nested(kind) or pa.types.is_floating(kind):
            continue
        view = "new_rows" if predictions is new else "old_rows"
        few = f"SELECT DISTINCT {quoted(name)} FROM {view} LIMIT {MOST_SLICE_VALUES + 1}"
        distinct = connection.sql(f"SELECT count(*) FROM ({few})").fetchall()[0][0]
        (chosen if distinct <= MOST_SLICE_VALUES else many).append(name)
    _check_kinds(old, new, (*chosen, *([options.cluster] if options.cluster else [])))
    notes = [f"not sliced by {name}: it has over {MOST_SLICE_VALUES} values (--by {name} does it)." for name in many]
    return tuple(chosen), notes


def _refuse_reserved(name: str, old: Predictions, new: Predictions) -> None:
    if name in RESERVED and (name in old.columns or name in new.columns):
        what = "--split NAME compares the rows of one split alone" if name == "split" else "it has a meaning of its own"
        raise InputError(f"column '{name}' cannot be sliced by: {what}.")


def _check_kinds(old: Predictions, new: Predictions, columns: Iterable[str]) -> None:
    """A value that is a number in one file and a text in the other is two values."""
    for name in columns:
        if name in old.slices and name in new.slices:
            kinds = [plain_type(p.schema.field(name).type) for p in (old, new)]
            if is_text(kinds[0]) != is_text(kinds[1]) and not any(pa.types.is_null(kind) for kind in kinds):
                raise InputError(
                    f"column '{name}' holds {kinds[0]} in {old.name} and {kinds[1]} in {new.name}: write it alike."
                )
