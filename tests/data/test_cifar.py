"""CIFAR in all its forms, on small files written as the official ones are."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import DataSet, load_data
from flipguard.data.cifar import CIFAR10_BINARY, CIFAR10_PYTHON, CIFAR100_BINARY, CIFAR100_PYTHON
from flipguard.types import InputError

RNG = np.random.default_rng(0)
FINE = [f"fine{i}" for i in range(13)]
COARSE = [f"coarse{i}" for i in range(5)]
TEN = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SIZES = {
    "data_batch_1": 3,
    "data_batch_2": 5,
    "data_batch_3": 2,
    "data_batch_4": 7,
    "data_batch_5": 1,
    "test_batch": 11,
}
IMAGES = {
    name: RNG.integers(0, 256, (n, 3072), dtype=np.uint8) for name, n in {**SIZES, "train": 17, "test": 7}.items()
}
LABELS = {name: RNG.integers(0, 10, len(x)).tolist() for name, x in IMAGES.items()}
GROUPS = {name: RNG.integers(0, 5, len(x)).tolist() for name, x in IMAGES.items()}

Files = dict[str, bytes]


def dump(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


def ten_python() -> Files:
    files = {name: dump({b"data": IMAGES[name], b"labels": LABELS[name], b"filenames": [b"x.png"]}) for name in SIZES}
    return files | {"batches.meta": dump({b"label_names": [name.encode() for name in TEN], b"num_vis": 3072})}


def ten_binary() -> Files:
    files = {
        f"{name}.bin": np.column_stack([np.array(LABELS[name], np.uint8), IMAGES[name]]).tobytes() for name in SIZES
    }
    return files | {"batches.meta.txt": "\n".join([*TEN, "", ""]).encode()}


def hundred_python() -> Files:
    files = {
        name: dump({b"data": IMAGES[name], b"fine_labels": LABELS[name], b"coarse_labels": GROUPS[name]})
        for name in ("train", "test")
    }
    names = {b"fine_label_names": [n.encode() for n in FINE], b"coarse_label_names": [n.encode() for n in COARSE]}
    return files | {"meta": dump(names)}


def hundred_binary() -> Files:
    files = {
        f"{name}.bin": np.column_stack(
            [np.array(GROUPS[name], np.uint8), np.array(LABELS[name], np.uint8), IMAGES[name]]
        ).tobytes()
        for name in ("train", "test")
    }
    return files | {
        "fine_label_names.txt": ("\n".join(FINE) + "\n").encode(),
        "coarse_label_names.txt": ("\n".join(COARSE) + "\n").encode(),
    }


FORMS = {
    "cifar10-python": ("cifar10", CIFAR10_PYTHON, ten_python),
    "cifar10-binary": ("cifar10", CIFAR10_BINARY, ten_binary),
    "cifar100-python": ("cifar100", CIFAR100_PYTHON, hundred_python),
    "cifar100-binary": ("cifar100", CIFAR100_BINARY, hundred_binary),
}


def write_folder(folder: Path, files: Files) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def write_tar(path: Path, folder: str, files: Files) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def check(data: DataSet, name: str) -> None:
    batches = {"cifar10": [f"data_batch_{i}" for i in range(1, 6)], "cifar100": ["train"]}[name]
    test = {"cifar10": "test_batch", "cifar100": "test"}[name]
    for split, parts in ((data.train, batches), (data.test, [test])):
        expected = np.concatenate([IMAGES[part] for part in parts]).reshape(-1, 3, 32, 32)
        assert isinstance(split.x, torch.Tensor)
        assert np.array_equal(split.x.numpy(), expected)
        assert split.y.tolist() == [label for part in parts for label in LABELS[part]]
        if name == "cifar100":
            assert split.slices["superclass"].tolist() == [COARSE[g] for part in parts for g in GROUPS[part]]
    assert data.classes == tuple(TEN if name == "cifar10" else FINE)
    assert data.train.ids[:2].tolist() == ["train_00000", "train_00001"]
    assert data.test.ids[0] == "test_00000"
    assert data.kind == "image"
    assert data.normalisation is not None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", ["folder", "itself", "archive"])
def test_every_form_in_every_place(form: str, place: str, tmp_path: Path) -> None:
    name, layout, files = FORMS[form]
    if place == "archive":
        write_tar(tmp_path / layout.archive, layout.folder, files())
    else:
        write_folder(tmp_path / layout.folder if place == "folder" else tmp_path, files())
    before = sorted(tmp_path.rglob("*"))
    check(load_data({"name": name, "verify": False}, folder=tmp_path), name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_archive_is_refused_with_both_sums(form: str, tmp_path: Path) -> None:
    name, layout, files = FORMS[form]
    path = tmp_path / layout.archive
    write_tar(path, layout.folder, files())
    found = hashlib.md5(path.read_bytes()).hexdigest()
    with pytest.raises(
        InputError, match=f"{layout.archive} has MD5 {found}, and the published file {layout.archive_md5}"
    ):
        load_data(name, folder=tmp_path)


@pytest.mark.parametrize("form", ["cifar10-python", "cifar100-python"])
def test_a_wrong_extracted_file_is_refused(form: str, tmp_path: Path) -> None:
    name, layout, files = FORMS[form]
    write_folder(tmp_path / layout.folder, files())
    first = layout.train[0]
    with pytest.raises(InputError, match=f"{first} has MD5 .* published file {dict(layout.md5)[first]}.*verify=False"):
        load_data(name, folder=tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_missing_file_is_named(form: str, tmp_path: Path) -> None:
    name, layout, files = FORMS[form]
    kept = {file: data for file, data in files().items() if file != layout.test[0]}
    write_folder(tmp_path / "a" / layout.folder, kept)
    with pytest.raises(InputError, match=f"{layout.folder}/{layout.test[0]} does not exist"):
        load_data({"name": name, "verify": False}, folder=tmp_path / "a")
    (tmp_path / "b").mkdir()
    write_tar(tmp_path / "b" / layout.archive, layout.folder, kept)
    with pytest.raises(InputError, match=f"{layout.archive} has no member {layout.folder}/{layout.test[0]}"):
        load_data({"name": name, "verify": False}, folder=tmp_path / "b")


@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_file_is_named(form: str, tmp_path: Path) -> None:
    name, layout, files = FORMS[form]
    written = files()
    written[layout.train[0]] = written[layout.train[0]][:-5]
    write_folder(tmp_path / layout.folder, written)
    with pytest.raises(InputError, match=f"{layout.train[0]} (has|cannot)"):
        load_data({"name": name, "verify": False}, folder=tmp_path)


def test_a_truncated_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / CIFAR10_PYTHON.archive
    write_tar(path, CIFAR10_PYTHON.folder, ten_python())
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"cifar-10-python.tar.gz cannot be read as a tar\.gz archive"):
        load_data({"name": "cifar10", "verify": False}, folder=tmp_path)


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / CIFAR100_BINARY.archive
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("cifar-100-binary/train.bin")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(InputError, match=r"cifar-100-binary/train\.bin is not a plain file"):
        load_data({"name": "cifar100", "verify": False}, folder=tmp_path)


def test_a_pickle_that_runs_code_is_refused(tmp_path: Path) -> None:
    files = ten_python() | {"data_batch_1": b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."}
    write_folder(tmp_path / CIFAR10_PYTHON.folder, files)
    with pytest.raises(InputError, match=r"data_batch_1: the pickle asks for os\.system, which is refused"):
        load_data({"name": "cifar10", "verify": False}, folder=tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({b"data": [1]}, "has no 'data' of bytes"),
        ({b"labels": [1]}, "has no 'labels' with 3 whole numbers"),
        ({b"labels": [0, 1, 10]}, "label 10 is not one of the 10 labels"),
        ({b"labels": [0, 1, -1]}, "negative label -1"),
    ],
)
def test_wrong_contents_are_named(change: dict[bytes, Any], message: str, tmp_path: Path) -> None:
    good = {b"data": IMAGES["data_batch_1"], b"labels": LABELS["data_batch_1"]}
    write_folder(tmp_path / CIFAR10_PYTHON.folder, ten_python() | {"data_batch_1": dump(good | change)})
    with pytest.raises(InputError, match=f"data_batch_1.*{message}"):
        load_data({"name": "cifar10", "verify": False}, folder=tmp_path)


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds none of cifar-10-batches-py, .*cifar-10-binary\.tar\.gz"):
        load_data("cifar10", folder=tmp_path)
