"""Read predictions from whatever holds them: Parquet, CSV, NPZ, Arrow, a folder or glob of parts, a data frame."""

import csv
import glob
import gzip
import re
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flipguard.files import check_unpacked, seal_holds
from flipguard.predictions.columns import RESERVED, Need, check_columns, is_text, plain_type, to_arrow
from flipguard.predictions.spread import gathered, needed
from flipguard.predictions.table import Predictions, rows_of, stored_metadata
from flipguard.types import DamagedFile, InputError

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
        check_columns(source.schema, source.name, need)
        return replace(source, name=name) if name and source.name == "predictions" else source
    if isinstance(source, str | Path):
        return _read_path(Path(source), name or str(source), need)
    name = name or "predictions"
    if isinstance(source, dict):
        return Predictions.from_arrays(**_sorted_columns(source), name=name, need=need)
    table = source if isinstance(source, pa.Table) else _frame_to_arrow(source, name)
    return Predictions.from_table(table, name=name, need=need)


def _sorted_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns that `from_arrays` knows by name, and the rest as slices."""
    facts = {"classes": object, "model": str, "version": str, "metadata": Mapping}
    # A column may be named `model` or `version`: it holds one value per row, the fact is one text.
    known = {k: v for k, v in columns.items() if k in RESERVED or (k in facts and isinstance(v, facts[k]))}
    return {**known, "slices": {str(k): v for k, v in columns.items() if k not in known}}


def _frame_to_arrow(frame: Any, name: str) -> pa.Table:
    import narwhals as nw
    from narwhals.exceptions import NarwhalsError

    try:
        wrapped = nw.from_native(frame)
    except TypeError as error:
        raise InputError(
            f"predictions cannot be read from a {type(frame).__name__}: pass a path, a data frame, an Arrow table or a "
            "dict of arrays."
        ) from error
    except NarwhalsError as error:
        raise InputError(f"{name} cannot be read as a table: {' '.join(str(error).split())}.") from error
    eager = wrapped.collect() if isinstance(wrapped, nw.LazyFrame) else wrapped
    try:
        # pandas names columns by numbers as well.
        table = eager.rename({c: str(c) for c in eager.columns if not isinstance(c, str)}).to_arrow()
    except (NarwhalsError, pa.ArrowException) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split())
        raise InputError(f"{name} cannot be read as a table: {reason}.") from error
    return table.select([c for c in table.column_names if not c.startswith("__index_level_")])


def _read_path(path: Path, name: str, need: Need) -> Predictions:
    if path.is_dir():
        stored = (p for p in path.rglob("*") if p.suffix.lower() in _PARQUET and p.is_file())
        # _SUCCESS, _temporary/…, .crc: what a writer keeps for itself.
        parts = sorted(p for p in stored if not any(n.startswith((".", "_")) for n in p.relative_to(path).parts))
        if (path / "run.json").is_file():
            raise InputError(
                f"{name} is a run folder of flipguard train: name a version's predictions in it, such as "
                f"{name}/versions/new/predictions/test.parquet, or use flipguard report {name}."
            )
        if not parts:
            raise InputError(f"{name} is a folder without *.parquet files: expected the parts of one prediction file.")
        return _read_parquet(tuple(parts), name, need)
    if path.exists():
        return _read_file(path, name, need)
    if glob.has_magic(str(path)):
        found = tuple(Path(p) for p in sorted(glob.glob(str(path), recursive=True)))
        if not found:
            raise InputError(f"{name} matches no file.")
        if any(p.suffix.lower() not in _PARQUET for p in found):
            raise InputError(
                f"{name} matches files that are no Parquet: a pattern stands for the parts of one Parquet file."
            )
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
    """Only the footers are kept: schema, number of rows, metadata. What flipguard wrote must fit its checksum."""
    for path in paths:
        with path.open("rb") as file:
            if not seal_holds(file, at_end=True):
                raise DamagedFile(f"{path} is damaged: its content does not fit its checksum.", path)
    footers = [_parquet_footer(path) for path in paths]
    schema = footers[0][0]
    for path, (other, _) in zip(paths, footers, strict=True):
        if set(other.names) != set(schema.names):
            differ = sorted(set(other.names) ^ set(schema.names))
            raise InputError(
                f"{name}: its parts hold different columns: {paths[0].name} and {path.name} differ in "
                f"{', '.join(differ)}."
            )
        _check_same_kinds(schema, other, name, (paths[0].name, path.name))
    rows = sum(count for _, count in footers)
    if not rows:
        raise InputError(f"{name} is empty: a prediction file needs at least one row.")
    known = stored_metadata(schema, name)
    if len(paths) > 1:
        known["fingerprint"] = None
    if any(_needs_plain_columns(part) for part, _ in footers) or _has_spread_scores(paths, schema, known):
        table = _rows_in_memory(paths)
        return Predictions.from_table(table, name=name, need=need, **known)
    for part, _ in footers:
        check_columns(part, name, need)
    return Predictions(name=name, source=paths, schema=schema, rows=rows, **known)


def _has_spread_scores(paths: Sequence[Path], schema: pa.Schema, known: Mapping[str, Any]) -> bool:
    """Decided by the columns in question alone: others may be large, and stay on disk where these are no scores."""
    columns = needed(schema)
    if not columns:
        return False
    table = _rows_in_memory(paths, columns)
    return gathered(table, known.get("classes"))[0] is not table


def _rows_in_memory(paths: Sequence[Path], columns: list[str] | None = None) -> pa.Table:
    parts = []
    for path in paths:
        with rows_of(path):
            parts.append(pq.read_table(path, columns=columns, partitioning=None))
    return pa.concat_tables(parts, promote_options="permissive")


def _check_same_kinds(first: pa.Schema, other: pa.Schema, name: str, parts: tuple[str, str]) -> None:
    """A column may be wider in one part than in another, but not numbers in one and text in the other."""
    for column in first:
        if first.names.count(column.name) > 1:
            raise InputError(f"{name} has two columns named '{column.name}': rename one of them.")
        kinds = column.type, other.field(column.name).type
        if is_text(kinds[0]) != is_text(kinds[1]) and not any(pa.types.is_null(kind) for kind in kinds):
            raise InputError(
                f"{name}: its column '{column.name}' holds {kinds[0]} in {parts[0]} and {kinds[1]} in {parts[1]}."
            )


def _parquet_footer(path: Path) -> tuple[pa.Schema, int]:
    try:
        with pq.ParquetFile(path) as file:
            rows = int(file.metadata.num_rows)
            if rows < 0:
                raise pa.ArrowInvalid(f"its footer speaks of {rows} rows")
            return file.schema_arrow, rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamagedFile(
            f"{path} is no readable Parquet file ({_first_line(error)}). Was it written to the end?", path
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
            # Arrow takes lengths and places in a file as they are; followed unchecked, they lead anywhere in memory.
            table.validate(full=True)
            _ = table.column_names
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{name} is no readable Arrow file ({_first_line(error)}).") from error
    return Predictions.from_table(table, name=name, need=need)


def _read_npz(path: Path, name: str, need: Need) -> Predictions:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{name} is no NPZ file. Was it written to the end, with numpy.savez?")
    try:
        # NumPy leaves the file open if the archive is broken.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            unpacked = sum(entry.file_size for entry in archive.zip.infolist())
            check_unpacked(path, path.stat().st_size, unpacked)
            columns = {key: archive[key] for key in archive.files}
            if any(not isinstance(column, np.ndarray) for column in columns.values()):
                raise ValueError("it holds other things than arrays")
    except InputError:
        raise
    except Exception as error:
        # A damaged archive can fail as BadZipFile, zlib.error, ValueError, SyntaxError, MemoryError and more.
        hint = " Save strings as a NumPy string array, not as objects." if "pickle" in str(error).lower() else ""
        raise InputError(f"{name} is no readable NPZ file ({_first_line(error)}).{hint}") from error
    facts = {
        key: columns.pop(key)
        for key in ("classes", "model", "version")
        if key in columns and (key == "classes" or not columns[key].ndim)
    }
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

    if path.suffix.lower() == ".gz":
        _check_gzip(path)
    try:
        table, exact = _csv_rows(path)
    except duckdb.Error as error:
        with tempfile.TemporaryDirectory(prefix="flipguard-") as folder:
            even = _even_line_ends(path, Path(folder))
            if even is None:
                raise InputError(f"{name} is no readable CSV file ({_first_line(error)}).") from error
            try:
                table, exact = _csv_rows(even)
            except duckdb.Error:
                raise InputError(f"{name} is no readable CSV file ({_first_line(error)}).") from error
    _refuse_repeated_header(path, name, table.column_names)
    for column in exact:
        place = table.column_names.index(column)
        table = table.set_column(place, column, _numbers_from_text(table.column(place)))
    if "id" not in table.column_names:
        if re.match(r"\W*id\W", table.column_names[0]):
            raise InputError(f"{name} is no readable CSV file: its lines do not all have as many cells as its header.")
        raise InputError(
            f"{name} has no column 'id' (its first line reads: {', '.join(table.column_names)[:80]}). "
            "A CSV file needs a header line such as id,label,prediction."
        )
    return Predictions.from_table(table, name=name, need=need)


def _check_gzip(path: Path) -> None:
    packed, unpacked = path.stat().st_size, 0
    with gzip.open(path) as file:
        try:
            while chunk := file.read(1 << 20):
                unpacked += len(chunk)
                check_unpacked(path, packed, unpacked)
        except (EOFError, zlib.error) as error:
            raise InputError(f"{path} is no readable gzip file ({_first_line(error)}).") from error


def _csv_rows(path: Path) -> tuple[pa.Table, list[str]]:
    """The rows, and which of their columns were kept as text: those whose values must not be guessed at."""
    import duckdb

    with duckdb.connect() as connection:
        # Every row is looked at before a type is chosen: an id that is a number in the first million rows and a
        # name in the next stays text throughout. No line is skipped to make the rest fit.
        options: dict[str, Any] = {"header": True, "sample_size": -1, "skiprows": 0}
        columns = connection.read_csv(plain_path(path), **options).columns
        # As text first: a guess would read the class names 01 and true as 1, and the id 2024-01-31 as a date.
        exact = [column for column in ("id", "label", "prediction") if column in columns]
        options["dtype"] = dict.fromkeys(exact, "VARCHAR")
        return connection.read_csv(plain_path(path), **options).to_arrow_table(), exact


def _even_line_ends(path: Path, folder: Path) -> Path | None:
    """A copy whose lines all end alike, for a file in which they do not (a header typed in by hand); else None."""
    content = path.read_bytes()
    if path.suffix.lower() == ".gz" or content.count(b"\r\n") in (0, content.count(b"\n")):
        return None
    even = folder / path.name
    even.write_bytes(content.replace(b"\r\n", b"\n"))
    return even


def _numbers_from_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Integers where every text is one as Python writes it (3.0, from a column with gaps, counts as 3), else text."""
    values = pc.utf8_trim_whitespace(values)
    values = pc.if_else(pc.equal(values, ""), pa.scalar(None, values.type), values)
    whole = pc.match_substring_regex(values, r"^(0|-?[1-9][0-9]{0,18})(\.0+)?$")
    if pc.all(whole).as_py() is False:
        return values
    try:
        return pc.cast(pc.replace_substring_regex(values, r"\.0+$", ""), pa.int64())
    except pa.ArrowInvalid:
        return values


def _refuse_repeated_header(path: Path, name: str, columns: list[str]) -> None:
    """DuckDB renames a repeated column to label_1; which of the two is meant only its author knows."""
    if not any(re.fullmatch(r"(.+)_\d+", c) for c in columns):
        return
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig") as file:
        line = file.readline()
    for delimiter in ",;\t|":
        header = [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
        twice = [cell for cell in header if header.count(cell) > 1]
        if len(header) == len(columns) and twice and "id" in header:
            raise InputError(f"{name} has two columns named '{twice[0]}': rename one of them.")


def plain_path(path: Path) -> str:
    """The path as DuckDB takes it: characters that would match other files are put in brackets."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in str(path))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).rstrip(".")[:200]
