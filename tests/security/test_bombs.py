"""Small files that would fill a memory, and texts that nobody writes: refused in one line, before they are unpacked."""

import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from flipguard import compare
from flipguard.comparison.classes import read_class_map
from flipguard.data import DataSet, Split, encode_text
from flipguard.data.encoders import WordEncoder
from flipguard.data.files import open_image
from flipguard.data.npz import read_npz
from flipguard.data.text import MOST_CHARACTERS, load_clinc150
from flipguard.predictions import Predictions, read_predictions
from flipguard.releases.folder import read_json
from flipguard.releases.yaml_text import parse_yaml
from flipguard.spec import read_training_spec
from flipguard.types import InputError

BILLION = 2 * 10**9


def bomb(path: Path) -> Path:
    """An NPZ archive of 2 MB whose one array has 2 GB of zeros, made without holding them."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": "|u1", "fortran_order": False, "shape": (BILLION,)},  # type: ignore[arg-type]
    )
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("id.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue())
        for _ in range(BILLION // 10**7):
            file.write(bytes(10**7))
    return path


@pytest.mark.slow
def test_an_archive_of_zeros(tmp_path: Path) -> None:
    path = bomb(tmp_path / "zeros.npz")
    assert path.stat().st_size < 10**7
    for read in (read_npz, read_predictions):
        with pytest.raises(InputError, match=r"zeros\.npz has .* bytes and unpacks to over 2,000,000,"):
            read(path)


@pytest.mark.parametrize("column", ["id", "label", "prediction", "slice"])
def test_a_small_file_with_a_gigantic_name(column: str, tmp_path: Path) -> None:
    """Refused before anything is written, and not printed."""
    gigantic = "x" * 2_000_000
    rows: dict[str, list[Any]] = {"id": ["a", "b"], "label": ["u", "v"], "prediction": ["u", "u"], "slice": ["s", "t"]}
    for name in ("old", "new"):
        own = {**rows, column: [rows[column][0], gigantic]}
        pq.write_table(pa.table(own), tmp_path / f"{name}.parquet", compression="zstd")
    assert (tmp_path / "old.parquet").stat().st_size < 10**5
    with pytest.raises(InputError, match=r"2,000,000 characters; names of more than 100,000 are refused") as refused:
        compare(tmp_path / "old.parquet", tmp_path / "new.parquet", by=["slice"])
    assert len(str(refused.value)) < 300


def test_a_list_of_classes_with_a_gigantic_name(tmp_path: Path) -> None:
    for name in ("old", "new"):
        said = Predictions.from_arrays(label=[0, 1], prediction=[0, 0], classes=["u", "x" * 200_000])
        said.write(tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"a class has 200,000 characters; names of more than 100,000 are refused"):
        compare(tmp_path / "old.parquet", tmp_path / "new.parquet")


def test_a_table_of_zeros(tmp_path: Path) -> None:
    path = tmp_path / "zeros.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(120):
            file.write(b"0" * 10**7)
    with pytest.raises(InputError, match=r"zeros\.csv\.gz has .* and unpacks to over 1,0"):
        read_predictions(path)


def test_a_header_that_claims_more_than_there_is(tmp_path: Path) -> None:
    """NumPy would reserve the memory before it looks for the data."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header,
        {"descr": "<f8", "fortran_order": False, "shape": (2**50,)},  # type: ignore[arg-type]
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("id.npy", header.getvalue())
    for read in (read_npz, read_predictions):
        with pytest.raises(InputError, match=r"huge\.npz"):
            read(tmp_path / "huge.npz")


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [9_000, 10_000, 30_000])
def test_an_image_of_many_pixels(side: int, tmp_path: Path) -> None:
    """Above our limit, above Pillow's warning, above Pillow's error: one line each, and no warning beside it."""
    (tmp_path / "x.png").write_bytes(png(side, side))
    with pytest.raises(InputError, match=r"x\.png (has .* pixels are refused|cannot be read as an image)") as caught:
        open_image(tmp_path / "x.png")
    assert "\n" not in str(caught.value)


def test_aliases_of_aliases() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12))
    with pytest.raises(InputError, match=r"written out, it has more than 100,000 values"):
        parse_yaml(text, "spec.yaml")
    with pytest.raises(InputError, match="an alias stands for a value that holds it"):
        parse_yaml("a: &a {b: *a}", "spec.yaml")
    assert parse_yaml("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a", "spec.yaml")["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "? " * 100_000, "!!python/object/apply:os.system ['true']", "? [a]\n: b"]
)
def test_yaml_that_is_no_spec(text: str) -> None:
    with pytest.raises(InputError, match=r"spec\.yaml is not valid YAML") as caught:
        parse_yaml(text, "spec.yaml")
    assert "\n" not in str(caught.value)


def test_a_gigantic_spec(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("x" * 5_000_000)
    with pytest.raises(InputError, match=r"5,000,000 bytes; a spec of more than"):
        read_training_spec(tmp_path / "s.yaml")
    with pytest.raises(InputError, match=r"2,000,000 characters; YAML of more than"):
        parse_yaml("x" * 2_000_000, "spec.yaml")


def test_json_nested_without_end(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 200_000)
    for read in (read_class_map, read_json, lambda p: load_clinc150(p.parent, file=p.name)):
        with pytest.raises(InputError, match=r"deep\.json"):
            read(path)


def test_a_gigantic_text() -> None:
    part = Split(("a", "b" * (MOST_CHARACTERS + 1)), torch.tensor([0, 1]), np.arange(2))
    data = DataSet("toy", part, part, ("x", "y"), "text")
    with pytest.raises(InputError, match=r"a text has 1,000,001 characters"):
        encode_text(data, WordEncoder(("a",), 3))


def test_a_cell_of_megabytes(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(f"id,label,prediction\n{'a' * 30_000_000},0,0\n")
    with pytest.raises(InputError, match=r"x\.csv is no readable CSV file"):
        read_predictions(tmp_path / "x.csv")


def test_metadata_that_is_no_metadata(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"id": [1], "prediction": [0]})
    for raw in ("[" * 200_000, json.dumps([1]), json.dumps({"classes": 3}), "\udcff"):
        encoded = raw.encode("utf-8", "surrogateescape")
        pq.write_table(table.replace_schema_metadata({b"flipguard": encoded}), tmp_path / "m.parquet")
        with pytest.raises(InputError, match=r"m\.parquet: its flipguard metadata is not readable"):
            read_predictions(tmp_path / "m.parquet")
