"""`Predictions`: rows of (id, label, prediction, …) in memory or in Parquet files, with what is known of the model."""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flipguard.files import EMPTY_SEAL, is_special, seal, whole_file
from flipguard.predictions.columns import (
    RESERVED,
    Need,
    check_columns,
    class_names,
    is_list,
    label_names,
    plain_columns,
    to_arrow,
)
from flipguard.predictions.fingerprint import fingerprint
from flipguard.predictions.spread import gathered
from flipguard.types import DamagedFile, InputError

METADATA_KEY, SEAL_KEY = b"flipguard", "flipguard.seal"
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
        if not table.num_rows:
            raise InputError(f"{name} is empty: a prediction file needs at least one row.")
        if known.get("classes") is not None:
            known["classes"] = class_names(known["classes"], name)
        table, known["classes"] = gathered(table, known.get("classes"))
        table = plain_columns(table, name)
        check_columns(table.schema, name, need)
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
        for name_ in slices or {}:
            if name_ in RESERVED:
                raise InputError(
                    f"{name}: '{name_}' has a meaning of its own: pass {name_}=, not a slice of that name."
                )
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
            # Buffered ahead, the column chunks of the whole file would stay in memory.
            with rows_of(path), pq.ParquetFile(path, pre_buffer=False) as file:
                for batch in file.iter_batches(size, columns=list(columns)):
                    yield _decoded(batch)

    def batches_ahead(self, columns: Sequence[str], *, size: int, ahead: int = 2) -> Iterator[pa.RecordBatch]:
        """The same, read by a thread of its own that stays a few batches in front of whoever works on them."""
        batches = self.batches(columns, size=size)
        with ThreadPoolExecutor(1) as reader:
            waiting = deque(reader.submit(next, batches, None) for _ in range(ahead))
            while (batch := waiting.popleft().result()) is not None:
                waiting.append(reader.submit(next, batches, None))
                yield batch

    def stored_bounds(self, column: str) -> tuple[int, int] | None:
        """A column's smallest and largest value by the statistics in the Parquet footers, where every part has them."""
        if isinstance(self.source, pa.Table) or column not in self.columns:
            return None
        lows, highs = [], []
        for path in self.source:
            footer = pq.read_metadata(path)
            place = [footer.schema.column(i).path for i in range(len(footer.schema))].index(column)
            for group in range(footer.num_row_groups):
                statistics = footer.row_group(group).column(place).statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                lows.append(statistics.min)
                highs.append(statistics.max)
        return (min(lows), max(highs)) if lows else None

    def table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows, or some of their columns, in memory."""
        chosen = list(columns) if columns is not None else list(self.columns)
        if isinstance(self.source, pa.Table):
            return self.source.select(chosen)
        parts = []
        for path in self.source:
            with rows_of(path):
                part = pq.read_table(path, columns=chosen, partitioning=None)
            if part.num_rows:
                parts.append(pa.Table.from_batches([_decoded(b) for b in part.select(chosen).to_batches()]))
        found = sum(part.num_rows for part in parts)
        if found != self.rows:
            what = f"{self.rows:,} rows, and {found:,} can be read"
            raise DamagedFile(f"{self.name} is damaged: its footer speaks of {what}. Write it again.", self.source[0])
        return pa.concat_tables(parts, promote_options="permissive")

    def data_fingerprint(self) -> str:
        """Computed from the rows, whatever the file's metadata says."""
        labelled = "label" in self.columns
        table = self.table(["id", "label"] if labelled else ["id"])
        labels = label_names(table["label"], self.classes) if labelled else pa.nulls(self.rows, pa.string())
        return fingerprint(table["id"], labels)

    def write(self, path: str | Path) -> "Predictions":
        """Write one Parquet file: beside the target first, then renamed over it, so that it is never half there.

        Its footer holds a checksum of all its bytes, which `read_predictions` looks at.
        """
        path = Path(path)
        if path.suffix.lower() not in (".parquet", ".pq"):
            raise InputError(
                f"{path}: predictions are written as Parquet. Name the file {path.with_suffix('.parquet').name}."
            )
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
        compact = [f.name for f in table.schema if not is_list(f.type) and not pa.types.is_floating(f.type)]
        with whole_file(path) as beside:
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(beside, table.schema, compression="zstd", use_dictionary=compact) as writer:
                writer.write_table(table, row_group_size=100_000)
                # In the footer alone: in the table's own metadata it would be stored a second time, encoded.
                writer.add_key_value_metadata({SEAL_KEY: EMPTY_SEAL})
            if not is_special(beside):
                with beside.open("r+b") as file:
                    seal(file, at_end=True)
        return replace(self, fingerprint=computed, name=str(path))


@contextmanager
def rows_of(path: Path) -> Iterator[None]:
    """Within, what Arrow cannot read of a file's rows is an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:200]
        raise DamagedFile(f"{path}: its rows cannot be read ({reason}). Was it written to the end?", path) from error


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
        found = {
            "classes": None if stored.get("classes") is None else tuple(stored["classes"]),
            "model": stored.get("model"),
            "version": stored.get("version"),
            "fingerprint": stored.get("fingerprint"),
            "metadata": dict(stored.get("metadata") or {}),
        }
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{name}: its flipguard metadata is not readable ({error}). Write the file again.") from error
    if found["classes"] is not None:
        found["classes"] = class_names(found["classes"], name)
    return found
