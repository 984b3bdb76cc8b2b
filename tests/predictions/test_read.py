"""Every form that predictions come in gives the same rows."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import torch

from flipguard import InputError, compare, read_predictions

ROWS = {
    "id": [11, 12, 13, 14, 15],
    "label": [0, 1, 2, 1, 0],
    "prediction": [0, 1, 1, 1, 2],
    "country": ["de", "at", "de", "ch", "at"],
}
LOGITS = np.array([[3, 1, 0], [0, 2, 1], [0, 2, 1], [0, 4, 0], [0, 1, 2]], np.float32)


def rows(source: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = read_predictions(source).table().to_pydict()
    return found


def write_csv(path: Path, **options: Any) -> Path:
    pd.DataFrame(ROWS).to_csv(path, index=False, **options)
    return path


def write_parquet(path: Path) -> Path:
    pq.write_table(pa.table(ROWS), path)
    return path


def write_parts(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(pa.table(ROWS).slice(0, 2), folder / "a.parquet")
    pq.write_table(pa.table(ROWS).slice(2), folder / "b.parquet")
    (folder / "_SUCCESS").write_text("")
    return folder


def write_npz(path: Path) -> Path:
    np.savez(path, **{name: np.array(values) for name, values in ROWS.items()})
    return path


def write_feather(path: Path) -> Path:
    pyarrow.feather.write_feather(pa.table(ROWS), path)
    return path


def write_stream(path: Path) -> Path:
    table = pa.table(ROWS)
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def write_arrow(path: Path) -> Path:
    table = pa.table(ROWS)
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


FORMS: dict[str, Callable[[Path], Any]] = {
    "parquet": lambda d: write_parquet(d / "x.parquet"),
    "parquet as text": lambda d: str(write_parquet(d / "x.parquet")),
    "pq": lambda d: write_parquet(d / "x.pq"),
    "folder of parts": lambda d: write_parts(d / "parts"),
    "glob": lambda d: f"{write_parts(d / 'parts')}/*.parquet",
    "csv": lambda d: write_csv(d / "x.csv"),
    "csv with semicolons": lambda d: write_csv(d / "x.csv", sep=";"),
    "csv with windows lines": lambda d: write_csv(d / "x.csv", lineterminator="\r\n"),
    "csv with a byte order mark": lambda d: write_csv(d / "x.csv", encoding="utf-8-sig"),
    "csv with quotes": lambda d: write_csv(d / "x.csv", quoting=1),
    "csv.gz": lambda d: write_csv(d / "x.csv.gz"),
    "tsv": lambda d: write_csv(d / "x.tsv", sep="\t"),
    "npz": lambda d: write_npz(d / "x.npz"),
    "feather": lambda d: write_feather(d / "x.feather"),
    "arrow stream": lambda d: write_stream(d / "x.arrow"),
    "arrow file": lambda d: write_arrow(d / "x.arrow"),
    "pandas": lambda _: pd.DataFrame(ROWS),
    "pandas with an index": lambda _: pd.DataFrame(ROWS, index=[3, 1, 4, 1, 5]),
    "pandas categories": lambda _: pd.DataFrame(ROWS).astype({"country": "category"}),
    "pandas nullable": lambda _: pd.DataFrame(ROWS).convert_dtypes(),
    "polars": lambda _: pl.DataFrame(ROWS),
    "polars lazy": lambda _: pl.LazyFrame(ROWS),
    "polars categories": lambda _: pl.DataFrame(ROWS).with_columns(pl.col("country").cast(pl.Categorical)),
    "pyarrow": lambda _: pa.table(ROWS),
    "pyarrow dictionary": lambda _: pa.table({**ROWS, "country": pa.array(ROWS["country"]).dictionary_encode()}),
    "lists": lambda _: ROWS,
    "numpy": lambda _: {name: np.array(values) for name, values in ROWS.items()},
    "torch": lambda _: {n: v if n == "country" else torch.tensor(v) for n, v in ROWS.items()},
    "predictions": lambda _: read_predictions(ROWS),
    "a name that looks like a pattern": lambda d: write_parquet(d / "x [1]*{a,b}?'\".parquet"),
    "a csv name that looks like a pattern": lambda d: write_csv(d / "x [1]*{a,b}?'\".csv"),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(form: str, tmp_path: Path) -> None:
    source = FORMS[form](tmp_path)
    assert rows(source) == ROWS
    assert read_predictions(source).rows == 5
    assert read_predictions(source).slices == ("country",)
    assert compare(source, ROWS).churn.value == 0.0  # type: ignore[union-attr]


def test_a_pattern_beside_its_own_matches(tmp_path: Path) -> None:
    """A file named a*.parquet is itself, not all that the pattern matches."""
    write_parquet(tmp_path / "a*.parquet")
    pq.write_table(pa.table({**ROWS, "id": [1, 2, 3, 4, 5]}), tmp_path / "ab.parquet")
    assert rows(tmp_path / "a*.parquet") == ROWS
    assert compare(tmp_path / "a*.parquet", ROWS).n == 5


def test_folders_named_like_partitions_are_folders(tmp_path: Path) -> None:
    """A Hive reader would take label and split out of these paths."""
    for name in ("label=2", "split=validation"):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name / "x.parquet")
        assert rows(tmp_path / name) == ROWS
        result = compare(tmp_path / name, ROWS)
        assert (result.n, result.error_rate_old) == (5, compare(ROWS, ROWS).error_rate_old)


def csv(folder: Path, text: str) -> Path:
    path = folder / "x.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_keeps_text_as_it_is_written(tmp_path: Path) -> None:
    """The class 01 is not the class 1, the id 2024-01-31 no date, and yes no truth value."""
    found = rows(csv(tmp_path, "id,label,prediction\n2024-01-31,01,1\n2024-02-01,1,01\n"))
    assert found == {"id": ["2024-01-31", "2024-02-01"], "label": ["01", "1"], "prediction": ["1", "01"]}
    found = rows(csv(tmp_path, f"id,label,prediction\n{2**63},true,false\n{2**64 + 1},false,false\n"))
    assert found["id"] == [str(2**63), str(2**64 + 1)]
    assert found["label"] == ["true", "false"]
    found = rows(csv(tmp_path, 'id,label,prediction\n"a, ""b""",Ünü,dog\n"x;y",dog,dog\n'))
    assert found == {"id": ['a, "b"', "x;y"], "label": ["Ünü", "dog"], "prediction": ["dog", "dog"]}


def test_csv_reads_integers_with_gaps_and_spaces(tmp_path: Path) -> None:
    found = rows(csv(tmp_path, "id, label, prediction\n1, 0.0, 2\n2, , 1\n"))
    assert found == {"id": [1, 2], "label": [0, None], "prediction": [2, 1]}


def test_an_id_that_becomes_text_late_is_text_throughout(tmp_path: Path) -> None:
    lines = [f"{i},0,0" for i in range(30_011)]
    found = rows(csv(tmp_path, "id,label,prediction\n" + "\n".join(lines) + "\nlast,0,0\n"))
    assert found["id"][0] == "0"
    assert found["id"][-1] == "last"


@pytest.mark.parametrize("row", ['"[0.5, 2.5]"', '"(0.5; 2.5)"', "0.5 2.5", '"[0.5 2.5]"', '"0.5,2.5"'])
def test_csv_carries_lists_as_text(tmp_path: Path, row: str) -> None:
    found = rows(csv(tmp_path, f"id,label,logits\n1,0,{row}\n2,1,\n"))
    assert found["logits"] == [[0.5, 2.5], None]
    with gzip.open(tmp_path / "x.csv.gz", "wt") as file:
        file.write(f"id,label,logits\n1,0,{row}\n2,1,\n")
    assert rows(tmp_path / "x.csv.gz") == found


def test_npz_with_names_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, label=np.array(["cat", "dog"]), logits=LOGITS[:2, :2], classes=["cat", "dog"], model="tiny")
    found = read_predictions(path)
    assert (found.classes, found.model, found.class_count) == (("cat", "dog"), "tiny", 2)
    assert found.table(["id", "label"]).to_pydict() == {"id": [0, 1], "label": ["cat", "dog"]}
    np.savez(path, **ROWS, version=np.array(list("abcde")))
    assert read_predictions(path).slices == ("country", "version")


def test_columns_named_model_and_version_are_columns() -> None:
    found = read_predictions({**ROWS, "model": list("abcde"), "version": "v7"})
    assert found.slices == ("country", "model")
    assert (found.model, found.version) == (None, "v7")


@pytest.mark.parametrize(
    ("kind", "exact"),
    [(torch.float16, True), (torch.bfloat16, True), (torch.float32, True), (torch.float64, True)],
)
def test_torch_logits_of_every_width(kind: torch.dtype, exact: bool) -> None:
    tensor = torch.tensor(LOGITS).to(kind).requires_grad_()
    found = read_predictions({"logits": tensor, "label": torch.tensor(ROWS["label"])})
    assert (np.array(found.table(["logits"])["logits"].to_pylist()) == LOGITS).all() == exact
    assert found.score_width == 3
    assert compare(found, {"label": ROWS["label"], "prediction": LOGITS.argmax(1)}).churn.value == 0.0  # type: ignore


def test_gaps_in_a_data_frame_are_missing_values() -> None:
    frame = pd.DataFrame({**ROWS, "label": [0, 1, np.nan, 1, 0], "prediction": [0, 1, 1, None, 2]})
    found = rows(frame)
    assert found["label"] == [0, 1, None, 1, 0]
    assert found["prediction"] == [0, 1, 1, None, 2]
    nullable = pd.DataFrame(ROWS).astype({"label": "Int64"})
    nullable.loc[2, "label"] = pd.NA
    assert rows(nullable)["label"] == [0, 1, None, 1, 0]
    categories = pd.DataFrame({**ROWS, "label": pd.Categorical(["a", None, "b", "b", "a"])})
    assert rows(categories)["label"] == ["a", None, "b", "b", "a"]


def test_loose_columns_in_parquet_are_read_as_what_they_mean(tmp_path: Path) -> None:
    pq.write_table(pa.table({**ROWS, "label": [0.0, 1.0, None, 1.0, 0.0], "prediction": [True] * 5}), tmp_path / "x.pq")
    found = rows(tmp_path / "x.pq")
    assert found["label"] == [0, 1, None, 1, 0]
    assert found["prediction"] == [1] * 5
    pq.write_table(pa.table({"id": [1, 2], "logits": ["[1, 2]", "[3, 4]"]}), tmp_path / "y.pq")
    assert rows(tmp_path / "y.pq")["logits"] == [[1.0, 2.0], [3.0, 4.0]]


def test_parts_may_differ_in_width_and_order_of_columns(tmp_path: Path) -> None:
    table = pa.table(ROWS)
    pq.write_table(table.slice(0, 2), tmp_path / "a.parquet")
    narrow = table.slice(2).set_column(1, "label", table["label"].slice(2).cast(pa.int8()))
    pq.write_table(narrow.select(["country", "prediction", "label", "id"]), tmp_path / "b.parquet")
    pq.write_table(table.slice(0, 0), tmp_path / "c.parquet")
    found = read_predictions(tmp_path)
    assert found.table().to_pydict() == ROWS
    assert found.table(["label", "id"]).column_names == ["label", "id"]
    batches = list(found.batches(["label", "id"], size=2))
    assert [b.schema.names for b in batches] == [["label", "id"]] * 3
    assert [v for b in batches for v in b.column(1).to_pylist()] == ROWS["id"]
    assert compare(tmp_path, ROWS).churn.value == 0.0  # type: ignore[union-attr]


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda d: d / "none.parquet", "none.parquet does not exist"),
    "empty": (lambda d: touch(d / "x.parquet", b""), r"is empty \(0 bytes\)"),
    "garbage": (lambda d: touch(d / "x.parquet", b"hello" * 99), "no readable Parquet file.*written to the end"),
    "garbage arrow": (lambda d: touch(d / "x.arrow", b"hello" * 99), "no readable Arrow file"),
    "garbage npz": (lambda d: touch(d / "x.npz", b"hello" * 99), "is no NPZ file"),
    "npy": (lambda d: save_npy(d / "x.npz"), "is no NPZ file"),
    "truncated": (lambda d: truncate(write_parquet(d / "x.parquet")), "no readable Parquet file"),
    "truncated npz": (lambda d: truncate(write_npz(d / "x.npz")), "is no NPZ file"),
    "pickled": (lambda d: pickled(d / "x.npz"), "Save strings as a NumPy string array"),
    "no rows": (lambda _: {"id": [], "prediction": []}, "is empty: a prediction file needs at least one row"),
    "no parquet rows": (lambda d: no_rows(d / "x.parquet"), "is empty: a prediction file needs at least one row"),
    "only a header": (lambda d: csv(d, "id,label,prediction\n"), "is empty"),
    "no header": (lambda d: csv(d, "1,0,0\n2,1,1\n"), "has no column 'id'.*needs a header line"),
    "lines of other lengths": (lambda d: csv(d, "id,label,prediction\n1,0,0\n2,1\n3,1,1,1\n"), "as many cells"),
    "not UTF-8": (lambda d: touch(d / "x.csv", "id,prediction\n1,é\n".encode("latin-1")), "no readable CSV file"),
    "one name twice in CSV": (lambda d: csv(d, "id,label,label,prediction\n1,0,0,0\n"), "two columns named 'label'"),
    "one name twice": (
        lambda _: pa.table([[1], [0], [0], [0]], ["id", "label", "label", "prediction"]),
        "two columns named 'label'",
    ),
    "one name twice in Parquet": (lambda d: twice(d / "x.parquet"), "two columns named 'label'"),
    "one name twice in pandas": (
        lambda _: pd.concat([pd.DataFrame(ROWS), pd.DataFrame(ROWS)[["label"]]], axis=1),
        "cannot be read as a table.*'label' 2 times",
    ),
    "names that differ in case": (lambda _: {**ROWS, "ID": [1] * 5}, "'id' and 'ID' differ only in case"),
    "a column without a name": (lambda _: {**ROWS, "": [1] * 5}, "column 5 has no name"),
    "no id": (lambda _: pd.DataFrame({"label": [1], "prediction": [1]}), "has no column 'id'"),
    "no prediction": (lambda _: {"id": [1], "label": [1]}, "neither 'prediction' nor 'logits' nor 'probabilities'"),
    "float ids": (lambda _: {**ROWS, "id": [1.5, 2, 3, 4, 5]}, "column 'id' must hold whole numbers"),
    "float labels": (lambda _: {**ROWS, "label": [1.5, 2, 3, 4, 5]}, "column 'label' must hold whole numbers"),
    "ids beyond 64 bits": (lambda _: {**ROWS, "id": [2**70, 1, 2, 3, 4]}, "beyond 64 bits: pass them as text"),
    "dates as labels": (
        lambda _: {**ROWS, "label": np.array(["2024-01-01"] * 5, "datetime64[D]")},
        "column 'label' must hold class indices or class names",
    ),
    "lists as labels": (lambda _: {**ROWS, "label": LOGITS}, "column 'label' must hold class indices"),
    "a number as logits": (lambda _: {**ROWS, "logits": [1.0] * 5}, "column 'logits' must hold a list"),
    "words as logits": (
        lambda _: {**ROWS, "logits": ["[1, 2]", "[1, x]", "", "", ""]},
        r"row 2 of column 'logits' is no list of numbers: it holds 'x'. Write one number per class, such as",
    ),
    "percentages as text": (
        lambda _: {**ROWS, "probabilities": ["[10.1%, 89.9%]"] * 5},
        r"row 1 of column 'probabilities' is no list of numbers: it holds '10.1%'. Write shares: 10.1% is 0.101.$",
    ),
    "a long word as logits": (
        lambda _: {**ROWS, "logits": ["y" * 99] * 5},
        f"it holds '{'y' * 40}…'. Write one number",
    ),
    "three axes": (lambda _: {**ROWS, "logits": np.zeros((5, 2, 2))}, r"it has shape \(5, 2, 2\)"),
    "other lengths": (lambda _: {**ROWS, "label": [1, 2]}, "the columns differ in length.*label 2"),
    "other lengths in NPZ": (lambda d: uneven(d / "x.npz"), "arrays differ in length"),
    "mixed values": (lambda _: {**ROWS, "label": [0, "a", 1, 1, 1]}, "'s label cannot be read as a column"),
    "mixed values in pandas": (
        lambda _: pd.DataFrame({**ROWS, "label": [0, "a", 1, 1, 1]}),
        "cannot be read as a table",
    ),
    "no classes": (lambda _: {**ROWS, "classes": []}, "its list of classes is empty"),
    "one class twice": (lambda _: {**ROWS, "classes": ["a", "b", "a"]}, "the class name 'a' stands twice"),
    "weights as text": (lambda _: {**ROWS, "weight": list("abcde")}, "column 'weight' must hold numbers"),
    "numbers as splits": (lambda _: {**ROWS, "split": [1] * 5}, "column 'split' must hold names"),
    "nothing": (lambda _: None, "cannot be read from a NoneType"),
    "a list": (lambda _: [1, 2], "cannot be read from a list"),
    "an empty dict": (lambda _: {}, "has no columns"),
    "an unknown ending": (lambda d: touch(d / "x.xyz", b"1"), "unknown ending '.xyz'"),
    "a folder without parts": (lambda d: d, "a folder without"),
    "a pattern without matches": (lambda d: str(d / "*.parquet"), "matches no file"),
    "parts with other columns": (lambda d: other_parts(d, {"id": [1], "label": [0]}), "differ in country, prediction"),
    "parts with other types": (
        lambda d: other_parts(d, {**{n: v[:1] for n, v in ROWS.items()}, "label": ["a"]}),
        "column 'label' holds int64 in a.parquet and string in b.parquet",
    ),
    "foreign metadata": (lambda d: metadata(d / "x.parquet", b"{"), "its flipguard metadata is not readable"),
    "repeated classes in metadata": (
        lambda d: metadata(d / "x.parquet", b'{"classes": ["a", "a", "b"]}'),
        "the class name 'a' stands twice",
    ),
}


def touch(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def truncate(path: Path) -> Path:
    content = path.read_bytes()
    return touch(path, content[: len(content) // 2])


def save_npy(path: Path) -> Path:
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    return path


def pickled(path: Path) -> Path:
    np.savez(path, id=np.arange(2), prediction=np.array(["a", "b"], object))
    return path


def uneven(path: Path) -> Path:
    np.savez(path, id=np.arange(2), prediction=np.arange(3))
    return path


def no_rows(path: Path) -> Path:
    pq.write_table(pa.table(ROWS).slice(0, 0), path)
    return path


def twice(path: Path) -> Path:
    pq.write_table(pa.table([[1], [0], [0], [0]], ["id", "label", "label", "prediction"]), path)
    return path


def other_parts(folder: Path, second: dict[str, Any]) -> Path:
    write_parquet(folder / "a.parquet")
    pq.write_table(pa.table(second), folder / "b.parquet")
    return folder


def metadata(path: Path, content: bytes) -> Path:
    pq.write_table(pa.table(ROWS).replace_schema_metadata({b"flipguard": content}), path)
    return path


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_read_is_one_line(case: str, tmp_path: Path) -> None:
    make, message = BAD[case]
    source = make(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        read_predictions(source)
    assert "\n" not in str(caught.value)
