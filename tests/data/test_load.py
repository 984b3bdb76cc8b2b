"""Loading by name: digits, where the folder comes from, what a spec may say."""

from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import torch

from flipguard.data import DATA, load_data
from flipguard.types import InputError


def test_digits_are_those_of_scikit_learn() -> None:
    data = load_data("digits")
    images, target = sklearn.datasets.load_digits(return_X_y=True)
    seen = []
    for split in (data.train, data.test):
        assert isinstance(split.x, torch.Tensor)
        assert split.x.dtype == torch.uint8
        rows = [int(name.removeprefix("digit_")) for name in split.ids]
        seen += rows
        restored = np.rint(split.x.numpy().reshape(-1, 64) * (16 / 255))
        assert np.array_equal(restored, images[rows])
        assert split.y.tolist() == target[rows].tolist()
    assert sorted(seen) == list(range(1797))
    assert data.kind == "image"
    assert data.classes == tuple("0123456789")


def test_digits_split_is_stratified_and_fixed() -> None:
    data = load_data("digits")
    assert len(data.test) == round(0.3 * 1797)
    share = torch.bincount(data.test.y) / (torch.bincount(data.test.y) + torch.bincount(data.train.y))
    assert float((share - 0.3).abs().max()) < 0.01
    torch.manual_seed(12345)
    assert load_data("digits").fingerprint() == data.fingerprint() == "fg1-539-7108e299d87ee681"


def test_the_folder_comes_from_the_spec_then_the_argument_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLIPGUARD_DATA", raising=False)
    with pytest.raises(InputError, match=r"^ag-news needs a folder: pass one, or set .* FLIPGUARD_DATA\.$"):
        load_data("ag-news")
    for name in ("spec", "argument", "environment"):
        (tmp_path / name).mkdir()
        for part in ("train", "test"):
            (tmp_path / name / f"{part}.csv").write_text(f'"1","{name}","x"\n')
    monkeypatch.setenv("FLIPGUARD_DATA", str(tmp_path / "environment"))
    assert load_data("ag-news").train.x == ("environment x",)
    assert load_data("ag-news", folder=tmp_path / "argument").train.x == ("argument x",)
    spec = {"name": "ag-news", "folder": str(tmp_path / "spec")}
    assert load_data(spec, folder=tmp_path / "argument").train.x == ("spec x",)
    assert load_data(f"ag-news:{tmp_path / 'spec'}").train.x == ("spec x",)


def test_spec_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown data set 'digit'; did you mean digits"):
        load_data("digit")
    with pytest.raises(InputError, match="unknown data set None"):
        load_data({"test_size": 0.5})
    with pytest.raises(InputError, match="digits has no option 'seed'; it has test_size"):
        load_data({"name": "digits", "seed": 1})
    with pytest.raises(InputError, match="npz needs the option 'file'"):
        load_data("npz", folder=tmp_path)
    with pytest.raises(InputError, match="nowhere does not exist"):
        load_data("cifar10", folder=tmp_path / "nowhere")


def test_every_loader_but_the_bundled_ones_takes_a_folder(tmp_path: Path) -> None:
    needed = {"npz": {"file": "x.npz"}, "table": {"train": "a.csv", "test": "b.csv"}, "mosaic": {"set": "svhn"}}
    for name in sorted(set(DATA) - {"digits", "sklearn"}):
        with pytest.raises(InputError, match=str(tmp_path)):
            load_data({"name": name, **needed.get(name, {})}, folder=tmp_path)
