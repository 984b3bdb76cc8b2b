"""Growing data: the draw, its record, and an update from few classes to all."""

from pathlib import Path

import numpy as np
import pytest
import torch

from flipguard.comparison.run import compare
from flipguard.data import DataSet, Growth, Split, class_places, draw_growth, grown, load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, as_predictions, predict_logits, train_network
from flipguard.types import InputError

C = 7
NAMES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")
torch.set_num_threads(1)


def a_part(per_class: int, first: int) -> Split:
    y = torch.arange(C).repeat(per_class)
    slices = {"odd": (y % 2).numpy()}
    return Split(torch.arange(len(y))[:, None].float(), y, np.array([f"s{first + i}" for i in range(len(y))]), slices)


@pytest.fixture
def data() -> DataSet:
    return DataSet("zoo", a_part(11, 0), a_part(5, 1000), NAMES, "features")


def test_classes_grow(data: DataSet) -> None:
    old, new = grown(data, kind="classes", share=0.43, seed=5)
    assert new is data
    assert len(old.classes) == 3
    assert set(old.classes) < set(NAMES)
    for part in ("train", "test"):
        whole = {i: NAMES[y] for i, y in zip(data.part(part).ids.tolist(), data.part(part).y.tolist(), strict=True)}
        kept = {i: old.classes[y] for i, y in zip(old.part(part).ids.tolist(), old.part(part).y.tolist(), strict=True)}
        assert kept == {i: name for i, name in whole.items() if name in old.classes}


def test_samples_grow(data: DataSet) -> None:
    old, new = grown(data, kind="samples", share=0.45, seed=5)
    assert old.classes == new.classes
    assert torch.bincount(old.train.y).tolist() == [5] * C
    assert set(old.train.ids.tolist()) < set(new.train.ids.tolist())
    assert old.test is data.test


@pytest.mark.parametrize("kind", ["classes", "samples"])
def test_draws_by_one_seed_are_nested_and_by_another_differ(data: DataSet, kind: str) -> None:
    ids = [
        set(draw_growth(data, kind=kind, share=share, seed=seed).old(data).train.ids.tolist())  # type: ignore[arg-type]
        for share, seed in ((0.3, 5), (0.6, 5), (0.3, 6))
    ]
    assert ids[0] < ids[1]
    assert ids[0] != ids[2]


@pytest.mark.parametrize("kind", ["classes", "samples"])
def test_a_draw_is_kept_as_json(data: DataSet, kind: str, tmp_path: Path) -> None:
    drawn = draw_growth(data, kind=kind, share=0.5, seed=3)  # type: ignore[arg-type]
    drawn.write(tmp_path / "growth.json")
    again = Growth.read(tmp_path / "growth.json")
    assert again == drawn
    assert again.old(data).train.ids.tolist() == drawn.old(data).train.ids.tolist()
    other = DataSet("others", data.test, data.test, NAMES, "features")
    with pytest.raises(InputError, match="other training samples than those of others"):
        again.old(other)
    (tmp_path / "growth.json").write_text('{"kind": "classes"}')
    with pytest.raises(InputError, match="no readable record of grown data"):
        Growth.read(tmp_path / "growth.json")


def test_whole_number_ids_survive_the_file(data: DataSet, tmp_path: Path) -> None:
    train = Split(data.train.x, data.train.y, np.arange(len(data.train)))
    numbered = DataSet("zoo", train, data.test, NAMES, "features")
    drawn = draw_growth(numbered, kind="samples", seed=3)
    drawn.write(tmp_path / "growth.json")
    assert len(Growth.read(tmp_path / "growth.json").old(numbered).train) == len(drawn.ids or ()) == 42


@pytest.mark.parametrize(
    ("kind", "share", "message"),
    [
        ("rows", 0.5, "by 'classes' or by 'samples', not by 'rows'"),
        ("classes", 1.0, "lies between 0 and 1"),
        ("samples", 0.0, "lies between 0 and 1"),
        ("classes", 0.15, "leaves the old model 1 class; it needs at least 2"),
        ("samples", 0.01, "too few samples per class"),
    ],
)
def test_refuses(data: DataSet, kind: str, share: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        grown(data, kind=kind, share=share)  # type: ignore[arg-type]


def test_class_places() -> None:
    assert class_places(NAMES, list(NAMES)) is None
    assert class_places(("bee", "ant"), ("bee", "ant", "cat")) == (0, 1)
    with pytest.raises(InputError, match="knows the class 'yak' and the new one does not"):
        class_places(("ant", "yak"), NAMES)


def test_an_update_to_more_classes_from_training_to_comparison() -> None:
    old_data, new_data = grown(load_data("digits"), kind="classes", seed=1)
    recipe = Recipe(epochs=2, batch_size=61, learning_rate=0.1)
    spec = ModelSpec("mlp", {"hidden": (32,)})
    old = train_network(spec, old_data, build_method("none"), recipe, seeds=Seeds.of(1))
    places = class_places(old_data.classes, new_data.classes)
    reference = NetworkReference("old", [old], classes=places)
    new = train_network(spec, new_data, build_method("kd"), recipe, seeds=Seeds.of(2), references={"old": reference})
    said_old = as_predictions(predict_logits(old, new_data), new_data, classes=old_data.classes)
    said_new = as_predictions(predict_logits(new, new_data), new_data)
    result = compare(said_old, said_new)
    known = np.isin([new_data.classes[y] for y in new_data.test.y.tolist()], old_data.classes)
    assert result.n == len(new_data.test)
    assert result.old_classes is not None
    assert result.old_classes.n == int(known.sum())
    # On what it never saw the old model is always wrong, so every flip lies in its own classes.
    assert float(result.error_rate_old or 0) >= 1 - known.mean()
    assert result.negative_flips == result.old_classes.negative_flips
    assert float(result.old_classes.error_rate_old or 1) < 0.2
