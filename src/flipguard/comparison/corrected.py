"""A file of corrected labels, which overrules those of both files."""

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Value, Vocabulary
from flipguard.predictions import Predictions
from flipguard.predictions.columns import is_text
from flipguard.types import InputError


def relabelled(
    connection: duckdb.DuckDBPyConnection, labels: Predictions, vocabulary: Vocabulary, id_as_text: bool
) -> str:
    """A view of (id, label code) from a file of corrected labels."""
    table = labels.table(["id", "label"])
    table = table.set_column(1, "label", _label_codes(table["label"], labels, vocabulary))
    if id_as_text:
        table = table.set_column(0, "id", table["id"].cast(pa.string()))
    times = pc.value_counts(table["id"])
    repeated = times.filter(pc.greater(times.field("counts"), 1))
    if len(repeated):
        raise InputError(f"{labels.name} has duplicate ids (first: {repeated[0]['values']}): remove the copies.")
    connection.register("relabelled", table)
    key = "CAST(id AS VARCHAR)" if id_as_text else "id"
    if not connection.sql(f"SELECT 1 FROM old_rows WHERE {key} IN (SELECT id FROM relabelled) LIMIT 1").fetchall():
        raise InputError(f"{labels.name} holds none of the ids that are compared: are these labels of the same data?")
    return "relabelled"


def _label_codes(values: pa.ChunkedArray, labels: Predictions, vocabulary: Vocabulary) -> pa.ChunkedArray:
    text = is_text(values.type)
    if vocabulary.names is None:
        if text:
            raise InputError(f"{labels.name} holds class names, the compared files hold class indices without names.")
        below = values.filter(pc.less(values, 0))
        if len(below):
            raise InputError(f"{labels.name}: the label {below[0]} is no class of either model.")
        return values
    codes = _corrected_codes(labels, vocabulary, text=text)
    kind = values.type if text else pa.int64()
    place = pc.index_in(values.cast(kind), value_set=pa.array(list(codes), kind))
    unknown = values.filter(pc.and_(place.is_null(), values.is_valid()))
    if len(unknown):
        raise InputError(f"{labels.name}: the label '{unknown[0]}' is no class of either model.")
    return pc.take(pa.array(list(codes.values()), pa.int64()), place)


def _corrected_codes(labels: Predictions, vocabulary: Vocabulary, *, text: bool) -> dict[Value, int]:
    """What a file of corrected labels may hold: names, or indices into its own list of classes or the new model's."""
    code: dict[Value, int] = {name: i for i, name in enumerate(vocabulary.names or ())}
    if text:
        return code
    if labels.classes is not None:
        return {i: code[name] for i, name in enumerate(labels.classes) if name in code}
    if vocabulary.new_classes is not None:
        return dict(enumerate(vocabulary.new_classes))
    return {
        v: c for values in (vocabulary.old, vocabulary.new) for v, c in (values or {}).items() if isinstance(v, int)
    }
