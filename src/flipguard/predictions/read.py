"""Read predictions from whatever holds them: Parquet, CSV, NPZ, Arrow, a folder or glob of parts, a data frame."""

import glob
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flipguard.predictions.table import (
    Need,
    Predictions,
    check_columns,
    is_text,
    plain_type,
    stored_metadata,
    to_arrow,
)
from flipguard.types import InputError

_PARQUET = (".parquet", ".pq")
_ARROW = (".arrow", ".feather", ".ipc")
_CSV = (".csv", ".tsv", ".txt", ".csv.gz")


def read_predictions(source: Any, *, name: str | None = None, need: Need = "prediction") -> Predictions:
    """Predictions from a path, a data frame (pandas, polars, pyarrow), a dict of arrays, or `Predictions` themselves.

    Parquet rows stay on disk; every other form is read into memory. `need` says what the file must hold: predictions
    (or scores they follow from), labels, or ids alone.

    >>> read_predictions({"id": ["a", "b"], "label": [1, 0], "prediction": [1, 1]}).rows
    2
    """
    if isinstance(source, Predictions):
        return replace(source, name=name) if name and source.name == "predictions" else source
    if isinstance(source, str | Path):
        return _read_path(Path(source), name or str(source), need)
    name = name or "predictions"
    if isinstance(source, dict):
        return Predictions.from_arrays(**_sorted_columns(source), name=name, need=need)
    return Predictions.from_table(
        source if isinstance(source, pa.Table) else _frame_to_arrow(source), name=name, need=need
    )


def _sorted_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns that `from_arrays` knows by name, and the rest as slices."""
    known = ("id", "label", "prediction", "logits", "probabilities", "weight", "split", "features")
    facts = ("classes", "model", "version", "metadata")
    rest = {key: value for key, value in columns.items() if key not in known + facts}
    return {**{key: columns[key] for key in known + facts if key in columns}, "slices": rest}


def _frame_to_arrow(frame: Any) -> pa.Table:
    import narwhals as nw

    try:
        wrapped = nw.from_native(frame)
    except TypeError as error:
        raise InputError(
            f"predictions cannot be read from a {type(frame).__name__}: pass a path, a data frame, an Arrow table or a "
            "dict of arrays."
        ) from error
    eager = wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped
    table = eager.to_arrow()
    return table.select([c for c in table.column_names if not c.startswith("__index_level_")])


def _read_path(path: Path, name: str, need: Need) -> Predictions:
    if path.is_dir():
        parts = sorted(p for p in path.rglob("*.parquet") if not p.name.startswith((".", "_")))
        if not parts:
            raise InputError(f"{name} is a folder without *.parquet files: expected the parts of one prediction file.")
        return _read_parquet(tuple(parts), name, need)
    if path.exists():
        return _read_file(path, name, need)
    if glob.has_magic(str(path)):
        found = tuple(Path(p) for p in sorted(glob.glob(str(path), recursive=True)))
        if not found:
            raise InputError(f"{name} matches no file.")
        return _read_parquet(found, name, need)
    raise InputError(f"{name} does not exist.")


def _read_file(path: Path, name: str, need: Need) -> Predictions:
    try:
        if not path.stat().st_size:
            raise InputError(f"{name} is empty (0 bytes): expected a prediction file.")
        suffix = path.suffix.lower()
        if suffix in _PARQUET:
            return _read_parquet((path,), name, need)
        if suffix in _ARROW:
            return _read_arrow(path, name, need)
        if suffix == ".npz":
            return _read_npz(path, name, need)
        if path.name.lower().endswith(_CSV):
            return _read_csv(path, name, need)
    except OSError as error:
        raise InputError(f"{name} cannot be read: {_first_line(error)}.") from error
    raise InputError(
        f"{name}: unknown ending '{path.suffix}'. Expected .parquet, .csv, .tsv, .npz, .arrow or .feather."
    )


def _read_parquet(paths: tuple[Path, ...], name: str, need: Need) -> Predictions:
    """Only the footers are read: schema, number of rows, metadata."""
    footers = [_parquet_footer(path) for path in paths]
    schema = footers[0][0]
    for path, (other, _) in zip(paths, footers, strict=True):
        if set(other.names) != set(schema.names):
            differ = sorted(set(other.names) ^ set(schema.names))
            raise InputError(
                f"{name}: its parts hold different columns: {paths[0].name} and {path.name} differ in "
                f"{', '.join(differ)}."
            )
    rows = sum(count for _, count in footers)
    if not rows:
        raise InputError(f"{name} is empty: a prediction file needs at least one row.")
    known = stored_metadata(schema, name)
    if len(paths) > 1:
        known["fingerprint"] = None
    if _needs_plain_columns(schema):
        table = pa.concat_tables(
            (pq.read_table(path, partitioning=None) for path in paths), promote_options="permissive"
        )
        return Predictions.from_table(table, name=name, need=need, **known)
    check_columns(schema, name, need)
    return Predictions(name=name, source=paths, schema=schema, rows=rows, **known)


def _parquet_footer(path: Path) -> tuple[pa.Schema, int]:
    try:
        with pq.ParquetFile(path) as file:
            return file.schema_arrow, int(file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is no readable Parquet file ({_first_line(error)}). Was it written to the end?"
        ) from error


def _needs_plain_columns(schema: pa.Schema) -> bool:
    """Columns that are stored in a roundabout form (3.0 for 3, true for 1, lists as text) go through memory."""
    for column in schema:
        kind = plain_type(column.type)
        loose = pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)
        if column.name in ("id", "label", "prediction") and loose:
            return True
        if column.name in ("logits", "probabilities") and is_text(kind):
            return True
    return False


def _read_arrow(path: Path, name: str, need: Need) -> Predictions:
    try:
        with pa.memory_map(str(path)) as source:
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:
                source.seek(0)
                table = pa.ipc.open_stream(source).read_all()
    except pa.ArrowException as error:
        raise InputError(f"{name} is no readable Arrow file ({_first_line(error)}).") from error
    return Predictions.from_table(table, name=name, need=need)


def _read_npz(path: Path, name: str, need: Need) -> Predictions:
    try:
        with np.load(path, allow_pickle=False) as archive:
            columns = {key: archive[key] for key in archive.files}
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        hint = " Save strings as a NumPy string array, not as objects." if "pickle" in str(error).lower() else ""
        raise InputError(f"{name} is no readable NPZ file ({_first_line(error)}).{hint}") from error
    facts = {key: columns.pop(key) for key in ("classes", "model", "version") if key in columns}
    known: dict[str, Any] = {key: str(value) for key, value in facts.items() if key != "classes"}
    if "classes" in facts:
        known["classes"] = [str(c) for c in facts["classes"].tolist()]
    if not columns:
        raise InputError(f"{name} holds no arrays: expected id, label and prediction or logits.")
    sizes = {key: len(value) if value.ndim else 0 for key, value in columns.items()}
    if len(set(sizes.values())) > 1:
        raise InputError(f"{name}: its arrays differ in length ({', '.join(f'{k} {n}' for k, n in sizes.items())}).")
    if "id" not in columns:
        columns = {"id": np.arange(next(iter(sizes.values()))), **columns}
    table = pa.table({key: to_arrow(value, f"{name}'s {key}") for key, value in columns.items()})
    return Predictions.from_table(table, name=name, need=need, **known)


def _read_csv(path: Path, name: str, need: Need) -> Predictions:
    import duckdb

    with duckdb.connect() as connection:
        try:
            # Every row is looked at before a type is chosen: an id that is a number in the first million rows and a
            # name in the next stays text throughout.
            relation = connection.read_csv(plain_path(path), header=True, sample_size=-1)
            table = relation.to_arrow_table()
        except duckdb.Error as error:
            raise InputError(f"{name} is no readable CSV file ({_first_line(error)}).") from error
    if "id" not in table.column_names:
        raise InputError(
            f"{name} has no column 'id' (its first line reads: {', '.join(table.column_names)[:80]}). "
            "A CSV file needs a header line such as id,label,prediction."
        )
    return Predictions.from_table(table, name=name, need=need)


def plain_path(path: Path) -> str:
    """The path as DuckDB takes it: characters that would match other files are put in brackets."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]
