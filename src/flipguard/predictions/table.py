"""`Predictions`: rows of (id, label, prediction, …) in memory or in Parquet files, with what is known of the model."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flipguard.predictions.fingerprint import fingerprint
from flipguard.types import InputError

RESERVED = ("id", "label", "prediction", "logits", "probabilities", "weight", "split", "features")
Need = Literal["prediction", "label", "id"]
METADATA_KEY = b"flipguard"
FORMAT = 1


@dataclass(frozen=True)
class Predictions:
    """What a model said about a data set.

    `source` holds the rows: an Arrow table, or the paths of Parquet files whose rows stay on disk until they are
    needed. Columns: `id` (unique; integer or string), `label` and `prediction` (class index or class name), `logits`
    or `probabilities` (a list per row), `weight`, `split`, `features`; every further column is a slice.

    >>> p = Predictions.from_arrays(label=[0, 1, 1], prediction=[0, 1, 0], classes=["cat", "dog"], model="tiny")
    >>> p.rows, p.slices, p.class_count
    (3, (), 2)
    """

    name: str
    source: pa.Table | tuple[Path, ...]
    schema: pa.Schema
    rows: int
    classes: tuple[str, ...] | None = None
    model: str | None = None
    version: str | None = None
    fingerprint: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_table(
        cls, table: pa.Table, *, name: str = "predictions", need: Need = "prediction", **known: Any
    ) -> "Predictions":
        """From an Arrow table; `known` overrides what the table's own metadata says of classes, model and version."""
        known = {**stored_metadata(table.schema, name), **{k: v for k, v in known.items() if v is not None}}
        table = _plain_columns(table, name)
        check_columns(table.schema, name, need)
        if not table.num_rows:
            raise InputError(f"{name} is empty: a prediction file needs at least one row.")
        if known.get("classes") is not None:
            known["classes"] = _class_names(known["classes"], name)
        known.setdefault("fingerprint", None)
        return cls(name=name, source=table, schema=table.schema, rows=table.num_rows, **known)

    @classmethod
    def from_arrays(
        cls,
        *,
        id: Any = None,
        label: Any = None,
        prediction: Any = None,
        logits: Any = None,
        probabilities: Any = None,
        weight: Any = None,
        split: Any = None,
        features: Any = None,
        slices: Mapping[str, Any] | None = None,
        classes: Sequence[str] | None = None,
        model: str | None = None,
        version: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        name: str = "predictions",
        need: Need = "prediction",
    ) -> "Predictions":
        """From NumPy arrays, torch tensors (on any device) or lists. Without `id` the rows are numbered from 0.

        logits, probabilities: (N, C); features: (N, D); everything else (N,).
        """
        given = {
            "id": id,
            "label": label,
            "prediction": prediction,
            "logits": logits,
            "probabilities": probabilities,
            "weight": weight,
            "split": split,
            "features": features,
            **(slices or {}),
        }
        columns = {key: to_arrow(value, f"{name}'s {key}") for key, value in given.items() if value is not None}
        if not columns:
            raise InputError(f"{name} has no columns: pass at least prediction= or logits=.")
        sizes = {key: len(column) for key, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise InputError(
                f"{name}: the columns differ in length ({', '.join(f'{k} {n}' for k, n in sizes.items())})."
            )
        if "id" not in columns:
            columns = {"id": pa.array(np.arange(next(iter(sizes.values())))), **columns}
        return cls.from_table(
            pa.table(columns),
            name=name,
            need=need,
            classes=classes,
            model=model,
            version=version,
            metadata=dict(metadata) if metadata is not None else None,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    @property
    def slices(self) -> tuple[str, ...]:
        """The columns without a meaning of their own: country, device, superclass, …"""
        return tuple(name for name in self.schema.names if name not in RESERVED)

    @property
    def scores(self) -> str | None:
        """The column that holds one number per class: `logits`, else `probabilities`, else nothing."""
        return next((name for name in ("logits", "probabilities") if name in self.schema.names), None)

    @property
    def class_count(self) -> int | None:
        """C, from the class names or from the width of the scores."""
        if self.classes is not None:
            return len(self.classes)
        return self.score_width if self.scores else None

    @cached_property
    def score_width(self) -> int:
        """The number of scores in a row, by the first row that has any."""
        if self.scores is None:
            raise InputError(f"{self.name} has neither logits nor probabilities.")
        kind = self.schema.field(self.scores).type
        if pa.types.is_fixed_size_list(kind):
            return int(kind.list_size)
        for batch in self.batches([self.scores], size=64):
            lengths = pc.list_value_length(batch.column(0)).drop_null()
            if len(lengths):
                return int(lengths[0].as_py())
        raise InputError(f"{self.name}: every row of its column '{self.scores}' is missing.")

    def batches(self, columns: Sequence[str], *, size: int) -> Iterator[pa.RecordBatch]:
        """The rows in stored order, `size` at a time (the last of a file may be shorter)."""
        if isinstance(self.source, pa.Table):
            yield from self.source.select(list(columns)).to_batches(max_chunksize=size)
            return
        for path in self.source:
            with pq.ParquetFile(path, pre_buffer=True) as file:
                for batch in file.iter_batches(size, columns=list(columns)):
                    yield _decoded(batch)

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, or some of their columns, in memory."""
        chosen = list(columns) if columns is not None else list(self.columns)
        if isinstance(self.source, pa.Table):
            return self.source.select(chosen)
        return pa.concat_tables(pq.read_table(path, columns=chosen, partitioning=None) for path in self.source)

    def data_fingerprint(self) -> str:
        """Computed from the rows, whatever the file's metadata says."""
        labelled = "label" in self.columns
        table = self.table(["id", "label"] if labelled else ["id"])
        labels = label_names(table["label"], self.classes) if labelled else pa.nulls(self.rows, pa.string())
        return fingerprint(table["id"], labels)

    def write(self, path: str | Path) -> "Predictions":
        """Write one Parquet file: beside the target first, then renamed over it, so that it is never half there."""
        path = Path(path)
        computed = self.data_fingerprint()
        stored = {
            "format": FORMAT,
            "classes": list(self.classes) if self.classes is not None else None,
            "model": self.model,
            "version": self.version,
            "fingerprint": computed,
            "metadata": dict(self.metadata),
        }
        table = self.table().replace_schema_metadata({METADATA_KEY: json.dumps(stored).encode()})
        # Dictionary pages of floats never pay: ten times slower to read and hardly smaller.
        compact = [f.name for f in table.schema if not _is_list(f.type) and not pa.types.is_floating(f.type)]
        beside = path.with_name(f".{path.name}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, beside, compression="zstd", use_dictionary=compact, row_group_size=100_000)
            beside.replace(path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
        return replace(self, fingerprint=computed, name=str(path))


def _decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with dictionary columns as plain ones."""
    for i, column in enumerate(batch.schema):
        if pa.types.is_dictionary(column.type):
            batch = batch.set_column(i, column.name, pc.cast(batch.column(i), column.type.value_type))
    return batch


def stored_metadata(schema: pa.Schema, name: str) -> dict[str, Any]:
    """What a file written by flipguard says of itself; nothing for a file that another system wrote."""
    raw = (schema.metadata or {}).get(METADATA_KEY)
    if raw is None:
        return {}
    try:
        stored = json.loads(raw)
        classes = stored.get("classes")
        return {
            "classes": tuple(str(c) for c in classes) if classes is not None else None,
            "model": stored.get("model"),
            "version": stored.get("version"),
            "fingerprint": stored.get("fingerprint"),
            "metadata": dict(stored.get("metadata") or {}),
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(f"{name}: its flipguard metadata is not readable ({error}). Write the file again.") from error


def label_names(values: pa.ChunkedArray, classes: tuple[str, ...] | None) -> pa.ChunkedArray:
    """Class names for indices; names stay as they are, and indices without names count as their decimal text."""
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), pa.string())])
    if pa.types.is_floating(values.type):
        values = pc.cast(values, pa.int64())
    if classes is not None and pa.types.is_integer(values.type):
        inside = pc.and_(pc.greater_equal(values, 0), pc.less(values, len(classes)))
        if pc.all(inside).as_py() is False:
            raise InputError(
                f"a label lies outside the {len(classes)} classes (indices run from 0 to {len(classes) - 1})."
            )
        return pc.take(pa.array(classes, pa.string()), values)
    return pc.cast(values, pa.string())


def check_columns(schema: pa.Schema, name: str, need: Need) -> None:
    """The columns that cannot be done without, and the types that can be read.

    A file of predictions needs predictions or scores, a file of labels only labels, a list of ids only ids.
    """
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"{name} has two columns named '{twice}': rename one of them.")
    if "id" not in names:
        raise InputError(f"{name} has no column 'id' (its columns: {_shortened(names)}). Name the sample's id 'id'.")
    if need == "label" and "label" not in names:
        raise InputError(f"{name} has no column 'label' (its columns: {_shortened(names)}).")
    if need == "prediction" and not {"prediction", "logits", "probabilities"} & set(names):
        raise InputError(
            f"{name} has neither 'prediction' nor 'logits' nor 'probabilities' (its columns: {_shortened(names)})."
        )
    for column, wanted, fits in _EXPECTED:
        if column in names and not fits(plain_type(schema.field(column).type)):
            raise InputError(f"{name}: column '{column}' must hold {wanted}, it holds {schema.field(column).type}.")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values behind a dictionary encoding, which is a way of storing and not a meaning."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_class(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or is_text(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_scores(kind: pa.DataType) -> bool:
    return _is_list(kind) and bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


_EXPECTED: tuple[tuple[str, str, Callable[[pa.DataType], bool]], ...] = (
    ("id", "integers or strings", lambda t: bool(pa.types.is_integer(t)) or is_text(t)),
    ("label", "class indices or class names", _is_class),
    ("prediction", "class indices or class names", _is_class),
    ("logits", "a list of numbers per row", _is_scores),
    ("probabilities", "a list of numbers per row", _is_scores),
    ("weight", "numbers", lambda t: bool(pa.types.is_integer(t) or pa.types.is_floating(t))),
    ("split", "names such as test or validation", is_text),
)


def _plain_columns(table: pa.Table, name: str) -> pa.Table:
    """Dictionary columns decoded, booleans and whole floats as integers, lists out of text: one type per meaning."""
    for i, column in enumerate(table.schema):
        values = table.column(i)
        if pa.types.is_dictionary(column.type):
            values = pc.cast(values, column.type.value_type)
        if column.name in ("label", "prediction", "id"):
            values = _whole_numbers(values, column.name, name)
        if column.name in ("logits", "probabilities", "features") and is_text(values.type):
            values = _lists_from_text(values, column.name, name)
        if values is not table.column(i):
            table = table.set_column(i, column.name, values)
    return table


def _whole_numbers(values: pa.ChunkedArray, column: str, name: str) -> pa.ChunkedArray:
    """A column of class indices that passed through a data frame with gaps comes as 3.0: it is 3."""
    if pa.types.is_boolean(values.type):
        return pc.cast(values, pa.int8())
    if pa.types.is_null(values.type) and column != "id":
        return pc.cast(values, pa.int64())
    if not pa.types.is_floating(values.type):
        return values
    gaps = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    try:
        return pc.cast(gaps, pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{name}: column '{column}' must hold whole numbers or names ({error}).") from error


def _lists_from_text(values: pa.ChunkedArray, column: str, name: str) -> pa.ChunkedArray:
    """`[0.1, 2.5]` or `0.1 2.5`, as CSV files carry a list."""
    rows: list[list[float] | None] = []
    for row, text in enumerate(values.to_pylist()):
        try:
            words = text.strip().strip("[]()").replace(",", " ").replace(";", " ").split() if text else None
            rows.append([float(word) for word in words] if words is not None else None)
        except ValueError as error:
            raise InputError(f"{name}: row {row + 1} of column '{column}' is no list of numbers ({error}).") from error
    return pa.chunked_array([pa.array(rows, pa.list_(pa.float32()))])


def _class_names(classes: Sequence[str], name: str) -> tuple[str, ...]:
    names = tuple(str(c) for c in classes)
    if len(set(names)) < len(names):
        twice = next(c for c in names if names.count(c) > 1)
        raise InputError(f"{name}: the class name '{twice}' stands twice in its list of classes.")
    return names


def to_arrow(values: Any, what: str) -> pa.Array | pa.ChunkedArray:
    """A list, a NumPy array of one or two axes, a torch tensor or an Arrow array, as an Arrow array."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        values = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    try:
        array = values if isinstance(values, list | tuple) else np.asarray(values)
        if isinstance(array, np.ndarray) and array.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
        if isinstance(array, np.ndarray) and array.ndim != 1:
            raise InputError(f"{what} must have one axis (or two: a list per row), it has shape {array.shape}.")
        return pa.array(array, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{what} cannot be read as a column: {str(error).splitlines()[0]}.") from error


def _shortened(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(str(n) for n in names[:most])
    return f"{shown}, and {len(names) - most} more" if len(names) > most else shown
