"""SVHN, IDX, AG News, NPZ and tables, on small files in the real formats."""

import csv
import gzip
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.io
import torch

from flipguard.data import encode_text, load_data, normalise
from flipguard.types import InputError

RNG = np.random.default_rng(0)


def write_mat(path: Path, n: int, **changes: Any) -> tuple[Any, Any]:
    x, y = RNG.integers(0, 256, (32, 32, 3, n), dtype=np.uint8), np.arange(n)[:, None] % 10 + 1
    scipy.io.savemat(path, {"X": x, "y": y.astype(np.uint8)} | changes, do_compression=True)
    return x, y


def test_svhn(tmp_path: Path) -> None:
    folder = tmp_path / "svhn"
    folder.mkdir()
    x, _ = write_mat(folder / "train_32x32.mat", 23)
    write_mat(folder / "test_32x32.mat", 11)
    write_mat(folder / "extra_32x32.mat", 5)
    data = load_data({"name": "svhn", "verify": False, "extra": True}, folder=tmp_path)
    assert isinstance(data.train.x, torch.Tensor)
    for i in range(23):
        for c in range(3):
            assert np.array_equal(data.train.x[i, c].numpy(), x[:, :, c, i])
    # Label 10 stands for the digit 0.
    assert data.train.y.tolist()[:11] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert data.classes[0] == "0"
    assert {name: len(part) for name, part in data.parts().items()} == {"train": 23, "test": 11, "extra": 5}


def test_svhn_errors(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    spec = {"name": "svhn", "verify": False}
    with pytest.raises(InputError, match=r"train_32x32\.mat does not exist"):
        load_data(spec, folder=tmp_path)
    write_mat(path, 5)
    with pytest.raises(InputError, match=r"MD5 .* published file e26dedcc434d2e4c54c9b2d4a06d8373"):
        load_data("svhn", folder=tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match=r"train_32x32\.mat cannot be read as a MATLAB file"):
        load_data(spec, folder=tmp_path)
    write_mat(path, 5, y=np.arange(4))
    with pytest.raises(InputError, match="has 5 images and 4 labels"):
        load_data(spec, folder=tmp_path)
    write_mat(path, 5, y=np.array([1, 2, 3, 4, 11]))
    with pytest.raises(InputError, match="labels from 1 to 11"):
        load_data(spec, folder=tmp_path)
    write_mat(path, 5, X=np.zeros((5, 3)))
    with pytest.raises(InputError, match="does not hold X, bytes"):
        load_data(spec, folder=tmp_path)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n" * 50)
    with pytest.raises(InputError, match=r"MATLAB 7\.3"):
        load_data(spec, folder=tmp_path)


def idx(array: Any) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IDX_NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
IDX_ARRAYS = (
    RNG.integers(0, 256, (13, 5, 7), dtype=np.uint8),
    np.arange(13, dtype=np.uint8) % 3,
    RNG.integers(0, 256, (11, 5, 7), dtype=np.uint8),
    np.arange(11, dtype=np.uint8) % 3,
)


def write_idx(folder: Path, *, zipped: bool = False) -> None:
    for name, array in zip(IDX_NAMES, IDX_ARRAYS, strict=True):
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
        else:
            (folder / name).write_bytes(idx(array))


@pytest.mark.parametrize("zipped", [False, True])
def test_idx(zipped: bool, tmp_path: Path) -> None:
    write_idx(tmp_path, zipped=zipped)
    data = load_data({"name": "mnist-idx", "classes": ["a", "b", "c"]}, folder=tmp_path)
    assert data.train.x.shape == (13, 1, 5, 7)  # type: ignore[union-attr]
    assert np.array_equal(data.test.x[:, 0].numpy(), IDX_ARRAYS[2])  # type: ignore[index,call-overload]
    assert data.train.y.tolist() == IDX_ARRAYS[1].tolist()
    assert data.classes == ("a", "b", "c")
    assert load_data("mnist-idx", folder=tmp_path).classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"\x00\x00\x0d\x03" + data[4:], "starts with 00000d03; an IDX file of this kind with 00000803"),
        (lambda data: b"", "starts with nothing"),
        (lambda data: data[:9], "ends inside its header"),
        (lambda data: data[:-1], "is truncated: it has 454 of the 455 bytes"),
        (lambda data: data + b"x", "has more than the 455 bytes"),
        (lambda data: data[:4] + b"\xff" * 12 + data[16:], "are refused"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_errors(damage: Callable[[bytes], bytes], message: str, zipped: bool, tmp_path: Path) -> None:
    write_idx(tmp_path, zipped=zipped)
    data = damage(idx(IDX_ARRAYS[0]))
    path = tmp_path / (IDX_NAMES[0] + (".gz" if zipped else ""))
    path.write_bytes(gzip.compress(data) if zipped else data)
    with pytest.raises(InputError, match=f"{path.name} .*{message}"):
        load_data("mnist-idx", folder=tmp_path)


def test_idx_other_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no train-images-idx3-ubyte \(or train-images-idx3-ubyte.gz\)"):
        load_data("mnist-idx", folder=tmp_path)
    write_idx(tmp_path, zipped=True)
    path = tmp_path / f"{IDX_NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"idx3-ubyte\.gz cannot be read"):
        load_data("mnist-idx", folder=tmp_path)
    path.write_bytes(gzip.compress(idx(IDX_ARRAYS[2])))
    with pytest.raises(InputError, match="has 11 images, and its labels file 13 labels"):
        load_data("mnist-idx", folder=tmp_path)


NEWS = [("3", 'Wall St. "Bears" Claw', "Short-sellers\\are seeing green, again."), ("1", "Talks", "résumé")]


def write_news(folder: Path, rows: list[tuple[str, ...]]) -> None:
    for part in ("train", "test"):
        with (folder / f"{part}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)


def test_ag_news(tmp_path: Path) -> None:
    folder = tmp_path / "ag_news_csv"
    folder.mkdir()
    write_news(folder, NEWS)
    data = load_data("ag-news", folder=tmp_path)
    assert data.train.x == ('Wall St. "Bears" Claw Short-sellers are seeing green, again.', "Talks résumé")
    assert data.train.y.tolist() == [2, 0]
    assert data.classes == ("World", "Sports", "Business", "Sci/Tech")
    assert data.kind == "text"
    (folder / "classes.txt").write_text("Top News\nSport\nMoney\n")
    assert load_data("ag-news", folder=tmp_path).classes == ("Top News", "Sport", "Money")


@pytest.mark.parametrize("row", [("5", "a", "b"), ("0", "a", "b"), ("x", "a", "b"), ("1", "a")])
def test_ag_news_errors(row: tuple[str, ...], tmp_path: Path) -> None:
    write_news(tmp_path, [*NEWS, row])
    with pytest.raises(InputError, match=r"train\.csv, row 3: expected a class from 1 to 4, a title, a description"):
        load_data("ag-news", folder=tmp_path)


def test_ag_news_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train\.csv cannot be read"):
        load_data("ag-news", folder=tmp_path)
    (tmp_path / "train.csv").write_bytes(b'"1","\xff\xfe","b"\n')
    with pytest.raises(InputError, match=r"train\.csv cannot be read"):
        load_data("ag-news", folder=tmp_path)
    (tmp_path / "train.csv").write_text("")
    with pytest.raises(InputError, match=r"train\.csv has no rows"):
        load_data("ag-news", folder=tmp_path)


def test_texts_become_tensors_by_an_encoder(tmp_path: Path) -> None:
    write_news(tmp_path, NEWS)
    data = load_data("ag-news", folder=tmp_path)
    encoded = encode_text(data, lambda texts: {"length": torch.tensor([len(text) for text in texts])})
    assert isinstance(encoded.train.x, dict)
    assert encoded.train.x["length"].tolist() == [len(text) for text in data.train.x]  # type: ignore[arg-type]
    assert encoded.fingerprint() == data.fingerprint()
    with pytest.raises(InputError, match="only raw texts can be encoded"):
        encode_text(encoded, lambda texts: {})


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path / "set.npz", **arrays)
    return path


NPZ = {"name": "npz", "file": "set.npz"}
Y = {"y_train": np.array([0, 1, 2, 1, 0]), "y_test": np.array([2, 0, 1])}


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((3, 7, 11), None, (3, 7, 11)),
        ((7, 11, 3), None, (3, 7, 11)),
        ((7, 11), None, (1, 7, 11)),
        ((3, 11, 3), "NHWC", (3, 3, 11)),
        ((5, 7, 11), "NCHW", (5, 7, 11)),
    ],
)
def test_npz_images(shape: tuple[int, ...], layout: str | None, expected: tuple[int, ...], tmp_path: Path) -> None:
    x = RNG.integers(0, 256, (5, *shape), dtype=np.uint8)
    data = load_data({**NPZ, "layout": layout}, folder=write_npz(tmp_path, x_train=x, x_test=x[:3], **Y))
    assert data.kind == "image"
    assert isinstance(data.train.x, torch.Tensor)
    assert data.train.x.shape == (5, *expected)
    moved = x if expected == shape or x.ndim == 3 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(data.train.x.numpy().reshape(moved.shape), moved)
    assert data.classes == ("0", "1", "2")


def test_npz_features_ids_names_and_validation(tmp_path: Path) -> None:
    x = RNG.normal(3, 2, (5, 7))
    names = {part: np.array(["cat", "ant", "bee"])[codes] for part, codes in Y.items()}
    folder = write_npz(
        tmp_path, x_train=x, x_test=x[:3], x_val=x[:3], y_val=names["y_test"], ids_train=np.arange(5) * 7, **names
    )
    data = load_data(NPZ, folder=folder)
    assert data.kind == "features"
    assert data.classes == ("ant", "bee", "cat")
    assert [data.classes[code] for code in data.train.y] == names["y_train"].tolist()
    assert data.train.ids.tolist() == [0, 7, 14, 21, 28]
    assert data.validation is not None
    assert isinstance(data.train.x, torch.Tensor)
    assert torch.allclose(normalise(data.train.x, data.normalisation).mean(0), torch.zeros(7), atol=1e-6)


def test_npz_texts_as_strings_and_packed(tmp_path: Path) -> None:
    texts = ["eins", "zwei", "drei", "vier", "fünf"]
    data = "".join(texts).encode()
    offsets = np.cumsum([0] + [len(text.encode()) for text in texts])
    folder = write_npz(
        tmp_path,
        text_train=np.frombuffer(data, np.uint8),
        offsets_train=offsets,
        x_test=np.array(["a", "b", "c"]),
        **Y,
    )
    found = load_data(NPZ, folder=folder)
    assert found.kind == "text"
    assert found.train.x == tuple(texts)
    assert found.test.x == ("a", "b", "c")


def test_npz_errors(tmp_path: Path) -> None:
    x = np.zeros((5, 7))
    with pytest.raises(InputError, match=r"set\.npz does not exist"):
        load_data(NPZ, folder=tmp_path)
    with pytest.raises(InputError, match=r"set\.npz has no array 'x_test'; it has x_train, y_test, y_train"):
        load_data(NPZ, folder=write_npz(tmp_path, x_train=x, **Y))
    with pytest.raises(InputError, match=r"x_test has values that are not finite"):
        load_data(NPZ, folder=write_npz(tmp_path, x_train=x, x_test=np.full((3, 7), np.nan), **Y))
    images = np.zeros((5, 5, 7, 11), np.uint8)
    with pytest.raises(InputError, match=r"no axis of .* looks like channels; say layout"):
        load_data(NPZ, folder=write_npz(tmp_path, x_train=images, x_test=images[:3], **Y))
    objects = np.array([{}] * 5, dtype=object)
    with pytest.raises(InputError, match="cannot be read as an NPZ archive"):
        load_data(NPZ, folder=write_npz(tmp_path, x_train=objects, x_test=objects, **Y))
    with pytest.raises(InputError, match="parts are of different kinds: features, text"):
        load_data(NPZ, folder=write_npz(tmp_path, x_train=x, x_test=np.array(["a", "b", "c"]), **Y))
    named = {"y_train": np.array(["ant"] * 5), "y_test": np.array(["ant", "fox", "ant"])}
    with pytest.raises(InputError, match="y_test has the class 'fox'"):
        load_data(NPZ, folder=write_npz(tmp_path, x_train=x, x_test=x[:3], **named))
    packed = {"text_train": np.zeros(3, np.uint8), "offsets_train": np.array([0, 2, 1, 3, 3, 9])}
    with pytest.raises(InputError, match="the offsets do not rise"):
        load_data(NPZ, folder=write_npz(tmp_path, **packed, x_test=np.array(["a"] * 3), **Y))
    path = tmp_path / "set.npz"
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="cannot be read as an NPZ archive"):
        load_data(NPZ, folder=tmp_path)


TABLE = {
    "key": ["r1", "r2", "r3", "r4"],
    "width": [1.0, 2.0, 3.0, 4.0],
    "legs": [4, 2, 4, 0],
    "note": ["a", "b", "c", "d"],
    "country": ["de", "fr", "de", "fr"],
    "label": ["cat", "bird", "cat", "fish"],
}


def write_tables(folder: Path, ending: str, **changes: Any) -> dict[str, Any]:
    table = pa.table({name: column for name, column in (TABLE | changes).items() if column is not None})
    for part in ("train", "test"):
        if ending == "csv":
            pyarrow.csv.write_csv(table, folder / f"{part}.csv")
        else:
            pyarrow.parquet.write_table(table, folder / f"{part}.parquet")
    return {"name": "table", "train": f"train.{ending}", "test": f"test.{ending}", "id": "key", "slices": ["country"]}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_table_of_features(ending: str, tmp_path: Path) -> None:
    data = load_data(write_tables(tmp_path, ending), folder=tmp_path)
    assert isinstance(data.train.x, torch.Tensor)
    assert data.train.x.tolist() == [[1, 4], [2, 2], [3, 4], [4, 0]]
    assert data.classes == ("bird", "cat", "fish")
    assert data.train.y.tolist() == [1, 0, 1, 2]
    assert data.train.ids.tolist() == TABLE["key"]
    assert data.train.slices["country"].tolist() == TABLE["country"]
    assert data.normalisation is not None
    assert data.normalisation.mean == (2.5, 2.5)
    only = load_data({**write_tables(tmp_path, ending), "features": ["legs"]}, folder=tmp_path)
    assert only.train.x.shape == (4, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_table_of_texts(ending: str, tmp_path: Path) -> None:
    data = load_data({**write_tables(tmp_path, ending), "text": "note"}, folder=tmp_path)
    assert data.kind == "text"
    assert data.test.x == ("a", "b", "c", "d")


def test_table_labels_that_are_numbers_sort_as_numbers(tmp_path: Path) -> None:
    data = load_data(write_tables(tmp_path, "csv", label=[10, 9, 10, 2]), folder=tmp_path)
    assert data.classes == ("2", "9", "10")
    assert data.train.y.tolist() == [2, 1, 2, 0]


def test_table_rows_without_a_label(tmp_path: Path) -> None:
    data = load_data(write_tables(tmp_path, "parquet", label=["cat", None, "cat", "fish"]), folder=tmp_path)
    assert data.train.y.tolist() == [0, -1, 0, 1]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"label": "class"}, r"must have one column 'class'; it has key, width, legs, note, country, label"),
        ({}, {"text": "legs"}, r"the text column 'legs' has type int64"),
        ({}, {"features": ["note"]}, r"the feature column 'note' has type string, not numbers"),
        ({"width": [1.0, None, 3.0, float("nan")]}, {}, r"column 'width' has 2 values that are missing or not finite"),
        ({"key": ["a", None, "b", "c"]}, {}, r"1 rows have no id in column 'key'"),
        ({"key": ["a", "b", "b", "c"]}, {}, r"sample ids must be unique; b occurs 2 times"),
        ({"width": None, "legs": None}, {}, r"has no numeric columns to use as features"),
        ({}, {"train": "train.xlsx"}, r"train\.xlsx: a table ends in \.csv or \.parquet"),
        ({}, {"test": "missing.csv"}, r"missing\.csv does not exist"),
    ],
)
def test_table_errors(changes: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path) -> None:
    spec = write_tables(tmp_path, "parquet", **changes) | options
    with pytest.raises(InputError, match=message):
        load_data(spec, folder=tmp_path)


def test_table_files_that_cannot_be_read(tmp_path: Path) -> None:
    spec = write_tables(tmp_path, "parquet")
    other = pa.table(TABLE | {"label": ["cat", "bird", "cat", "fox"]})
    pyarrow.parquet.write_table(other, tmp_path / "test.parquet")
    with pytest.raises(InputError, match="the label 'fox' does not occur in the training table"):
        load_data(spec, folder=tmp_path)
    (tmp_path / "test.parquet").write_bytes((tmp_path / "train.parquet").read_bytes()[:-9])
    with pytest.raises(InputError, match=r"test\.parquet cannot be read as a table"):
        load_data(spec, folder=tmp_path)
    pyarrow.parquet.write_table(other.slice(0, 0), tmp_path / "test.parquet")
    with pytest.raises(InputError, match=r"test\.parquet has no rows"):
        load_data(spec, folder=tmp_path)
