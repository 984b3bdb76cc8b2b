"""Validation splits and subsets: stratified, nested, by their own seed."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.data import DataSet, Split, split_validation, subset
from flipguard.data.splits import proportional_counts
from flipguard.predictions import fingerprint
from flipguard.types import InputError

NAMES = ("ant", "bee", "cat", "dog", "emu")


def toy(counts: tuple[int, ...] = (30, 41, 50, 29, 37)) -> DataSet:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    x = torch.arange(len(y), dtype=torch.float32)[:, None].repeat(1, 3)
    train = Split(x, torch.from_numpy(y), np.array([f"t{i}" for i in range(len(y))]), {"row": np.arange(len(y))})
    test = Split(torch.zeros(10, 3), torch.arange(10) % len(counts), np.array([f"e{i}" for i in range(10)]))
    return DataSet("toy", train, test, NAMES[: len(counts)], "features")


def counts_of(split: Split | None) -> list[int]:
    assert split is not None
    return torch.bincount(split.y, minlength=5).tolist()


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.data())
def test_proportional_counts_add_up_and_stay_within_one(available: list[int], data: st.DataObject) -> None:
    total = sum(available)
    size = data.draw(st.integers(0, total))
    counts = proportional_counts(np.array(available), size)
    assert int(counts.sum()) == size
    exact = np.array(available) * size / max(1, total)
    assert np.all(np.abs(counts - exact) < 1 + 1e-9)
    assert np.all(counts <= available)


@pytest.mark.parametrize("size", [19, 0.1, 40.0])
def test_validation_is_stratified_and_disjoint(size: float) -> None:
    data = toy()
    found = split_validation(data, size=size, seed=7)
    wanted = 40 if size == 40.0 else 19
    assert found.validation is not None
    assert len(found.validation) == wanted
    assert sorted([*found.train.ids, *found.validation.ids]) == sorted(data.train.ids)
    exact = np.array(counts_of(data.train)) * wanted / 187
    assert np.all(np.abs(counts_of(found.validation) - exact) < 1)
    assert found.test is data.test


def test_columns_move_together() -> None:
    found = split_validation(toy(), size=19, seed=7)
    for split in (found.train, found.validation):
        assert split is not None
        assert isinstance(split.x, torch.Tensor)
        rows = split.slices["row"]
        assert split.x[:, 0].tolist() == rows.tolist()
        assert split.ids.tolist() == [f"t{row}" for row in rows]
        assert torch.equal(split.y, toy().train.y[rows])


def test_the_seed_alone_decides() -> None:
    torch.manual_seed(0)
    first = split_validation(toy(), size=19, seed=7)
    torch.manual_seed(1)
    again, other = split_validation(toy(), size=19, seed=7), split_validation(toy(), size=19, seed=8)
    assert first.validation is not None
    assert again.validation is not None
    assert other.validation is not None
    assert first.validation.ids.tolist() == again.validation.ids.tolist()
    assert first.validation.ids.tolist() != other.validation.ids.tolist()


def test_validation_errors() -> None:
    with pytest.raises(InputError, match="already has a validation part of 19 samples"):
        split_validation(split_validation(toy(), size=19, seed=7), size=5, seed=7)
    with pytest.raises(InputError, match="187 training samples: 187 for validation leave none"):
        split_validation(toy(), size=187, seed=7)
    with pytest.raises(InputError, match=r"whole number of samples or a fraction below 1, not 2\.5"):
        split_validation(toy(), size=2.5, seed=7)
    with pytest.raises(InputError, match="not 0"):
        split_validation(toy(), size=0, seed=7)
    with pytest.raises(InputError, match="too few samples per class: class 'ant' has 1 and"):
        split_validation(toy((1, 2)), size=2, seed=7)


def test_samples_per_class_by_number_and_by_fraction() -> None:
    assert counts_of(subset(toy(), per_class=11).train) == [11] * 5
    assert counts_of(subset(toy(), per_class=0.5).train) == [15, 20, 25, 14, 18]
    assert counts_of(subset(toy(), per_class=1.0).train) == [30, 41, 50, 29, 37]
    assert len(subset(toy(), per_class=11).test) == 10


def test_draws_by_one_seed_are_nested() -> None:
    small, large = (set(subset(toy(), per_class=k, seed=7).train.ids.tolist()) for k in (7, 23))
    assert small < large
    assert small != set(subset(toy(), per_class=7, seed=8).train.ids.tolist())
    few, many = (set(subset(toy(), classes=k, seed=7).classes) for k in (2, 4))
    assert few < many


def test_class_subsets_renumber_every_part() -> None:
    data = split_validation(toy(), size=19, seed=7)
    found = subset(data, classes=["emu", "bee"])
    assert found.classes == ("bee", "emu")
    for name, part in found.parts().items():
        whole = data.part(name)
        kept = [i for i, code in enumerate(whole.y.tolist()) if code in (1, 4)]
        assert part.ids.tolist() == whole.ids[kept].tolist()
        assert [found.classes[code] for code in part.y] == [NAMES[code] for code in whole.y[kept]]
    assert found.normalisation == data.normalisation


def test_class_counts_and_fractions() -> None:
    assert len(subset(toy(), classes=3).classes) == 3
    assert len(subset(toy(), classes=0.4).classes) == 2
    assert subset(toy(), classes=1.0).classes == NAMES
    assert len({subset(toy(), classes=2, seed=seed).classes for seed in range(20)}) > 3


def test_rows_without_a_class_survive_a_class_subset() -> None:
    oos = Split(torch.zeros(3, 3), torch.full((3,), -1), np.arange(3))
    data = toy()
    data = DataSet(data.name, data.train, data.test, data.classes, data.kind, extra={"oos": oos})
    assert subset(data, classes=["emu"]).part("oos").y.tolist() == [-1, -1, -1]


def test_subset_errors() -> None:
    with pytest.raises(InputError, match="too few samples per class: class 'dog' has 29 and per_class=30 asks for 30"):
        subset(toy(), per_class=30)
    with pytest.raises(InputError, match="too few samples per class"):
        subset(toy((3, 30)), per_class=0.1)
    with pytest.raises(InputError, match="per_class is a whole number from 1"):
        subset(toy(), per_class=1.5)
    with pytest.raises(InputError, match="has no class 'fox'"):
        subset(toy(), classes=["ant", "fox"])
    with pytest.raises(InputError, match="5 classes: classes=6 cannot be drawn"):
        subset(toy(), classes=6)
    with pytest.raises(InputError, match="a number, a fraction or a list of names, not 'ant'"):
        subset(toy(), classes="ant")


def test_fingerprint_is_that_of_ids_and_names() -> None:
    data = toy()
    names = [data.classes[code] for code in data.test.y]
    assert data.fingerprint() == fingerprint(pa.array(data.test.ids.tolist()), pa.array(names))
    shuffled = DataSet(data.name, data.train, data.test.select(torch.arange(9, -1, -1)), data.classes, data.kind)
    assert shuffled.fingerprint() == data.fingerprint()
    assert data.fingerprint("train") != data.fingerprint("test")


def test_splits_and_data_sets_refuse_what_does_not_fit() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(InputError, match=r"differ in length: {'x': 3, 'y': 3, 'ids': 2}"):
        Split(x, y, np.arange(2))
    with pytest.raises(InputError, match="sample ids must be unique; b occurs 2 times"):
        Split(x, y, np.array(["a", "b", "b"]))
    with pytest.raises(InputError, match="inputs of a split differ in length"):
        Split({"a": x, "b": x[:2]}, y, np.arange(3))
    split = Split(x, y, np.arange(3))
    with pytest.raises(InputError, match="train has class codes 0 to 1, but there are 1 classes"):
        DataSet("toy", split, split, ("cat",), "features")
    with pytest.raises(InputError, match="class names must be unique; 'cat'"):
        DataSet("toy", split, split, ("cat", "cat"), "features")
