"""Tables: CSV or Parquet files with feature columns or a text column."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
import torch

from flipguard.data.augment import measure_normalisation
from flipguard.data.dataset import DataSet, Inputs, Split, numbered_ids
from flipguard.types import InputError


def read_table(path: Path) -> pa.Table:
    """A CSV (with a header) or Parquet file, by its ending."""
    readers = {".csv": pyarrow.csv.read_csv, ".parquet": pyarrow.parquet.read_table}
    if path.suffix not in readers:
        raise InputError(f"{path}: a table ends in .csv or .parquet.")
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    try:
        table = readers[path.suffix](path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read as a table ({' '.join(str(error).split())}).") from error
    if not table.num_rows:
        raise InputError(f"{path} has no rows.")
    return table


def load_table(
    root: Path,
    *,
    train: str,
    test: str,
    validation: str | None = None,
    label: str = "label",
    text: str | None = None,
    features: Sequence[str] | None = None,
    id: str | None = None,
    slices: Sequence[str] = (),
    name: str | None = None,
) -> DataSet:
    """Tables `train`, `test` and perhaps `validation`, files under `root`.

    `text` names a text column; otherwise `features` are the feature columns, by default every numeric column but the
    label, the id and the slices. The classes are the distinct training labels, sorted (as numbers, when they are).
    Features are normalised by the training part's mean and standard deviation.
    """
    files = {"train": train, "test": test} | ({"validation": validation} if validation else {})
    paths = {part: root / file for part, file in files.items()}
    tables = {part: read_table(path) for part, path in paths.items()}
    values = sorted(pc.unique(_column(tables["train"], label, paths["train"])).drop_null().to_pylist())
    codes = {str(value): code for code, value in enumerate(values)}
    if text is None and features is None:
        features = _numeric(tables["train"], without={label, id, *slices})
        if not features:
            raise InputError(
                f"{paths['train']} has no numeric columns to use as features; name them, or a text column."
            )
    splits = {}
    for part, table in tables.items():
        path = paths[part]
        x: Inputs = _texts(table, text, path) if text else _features(table, features or (), path)
        ids = _ids(table, id, path) if id else numbered_ids(part, table.num_rows)
        columns = {column: np.asarray(_column(table, column, path).to_pylist()) for column in slices}
        splits[part] = Split(x, _codes(table, label, codes, path), ids, columns)
    x = splits["train"].x
    return DataSet(
        name or root.resolve().name,
        splits["train"],
        splits["test"],
        tuple(codes),
        "text" if text else "features",
        measure_normalisation(x) if isinstance(x, torch.Tensor) else None,
        validation=splits.get("validation"),
    )


def _column(table: pa.Table, name: str, path: Path) -> pa.ChunkedArray:
    if table.column_names.count(name) != 1:
        raise InputError(f"{path} must have one column {name!r}; it has {', '.join(table.column_names)}.")
    return table[name]


def _numeric(table: pa.Table, *, without: set[str | None]) -> list[str]:
    return [
        field.name
        for field in table.schema
        if field.name not in without and (pa.types.is_integer(field.type) or pa.types.is_floating(field.type))
    ]


def _texts(table: pa.Table, name: str, path: Path) -> tuple[str, ...]:
    column = _column(table, name, path)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise InputError(f"{path}: the text column {name!r} has type {column.type}.")
    if column.null_count:
        raise InputError(f"{path}: {column.null_count:,} rows have no text in column {name!r}.")
    return tuple(column.to_pylist())


def _features(table: pa.Table, names: Sequence[str], path: Path) -> torch.Tensor:
    columns = []
    for name in names:
        column = _column(table, name, path)
        try:
            values = column.cast(pa.float64()).to_numpy()
        except pa.ArrowException as error:
            raise InputError(f"{path}: the feature column {name!r} has type {column.type}, not numbers.") from error
        bad = int((~np.isfinite(values)).sum())
        if bad:
            raise InputError(f"{path}: column {name!r} has {bad:,} values that are missing or not finite.")
        columns.append(values.astype(np.float32))
    return torch.from_numpy(np.stack(columns, axis=1))


def _ids(table: pa.Table, name: str, path: Path) -> npt.NDArray[Any]:
    column = _column(table, name, path)
    if column.null_count:
        raise InputError(f"{path}: {column.null_count:,} rows have no id in column {name!r}.")
    return np.asarray(column.to_pylist())


def _codes(table: pa.Table, name: str, codes: dict[str, int], path: Path) -> torch.Tensor:
    """Class codes, int64 (N,); a missing label is -1."""
    found = [None if value is None else str(value) for value in _column(table, name, path).to_pylist()]
    unknown = [value for value in found if value is not None and value not in codes]
    if unknown:
        raise InputError(f"{path}: the label {unknown[0]!r} does not occur in the training table.")
    return torch.tensor([-1 if value is None else codes[value] for value in found], dtype=torch.int64)
