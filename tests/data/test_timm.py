"""timm's data sets and its evaluation transform against our folders: the same files, the same pixels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flipguard
from flipguard.data import Augmentation, ImageFiles, from_timm, load_data
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.types import InputError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
timm_data = pytest.importorskip("timm.data", reason="timm is not installed: pip install 'flipguard[timm]'")
RNG = np.random.default_rng(0)


def write_jpeg(path: Path, width: int, height: int, *, smooth: bool = False) -> None:
    """Noise, which shows any difference in where and how pixels are taken; or waves of a hundred pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if smooth:
        y, x = np.mgrid[:height, :width]
        waves = [np.sin(2 * np.pi * (x * c + y * (2 - c)) / 100) for c in range(3)]
        pixels = np.stack([127 + 120 * wave for wave in waves], -1).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=95)


def both(path: Path, size: int, resize: int) -> tuple[Any, Any]:
    """The image as we decode it and as timm's evaluation transform does, both int (3, size, size)."""
    transform = timm_data.create_transform(
        (3, size, size), is_training=False, interpolation="bilinear", crop_pct=size / resize, use_prefetcher=True
    )
    ours = ImageFiles(path.parent, (path.name,), size, resize).decode(0)
    with Image.open(path) as image:
        return ours.astype(int), np.asarray(transform(image.convert("RGB"))).astype(int)


@pytest.mark.parametrize(
    ("width", "height", "size", "resize"), [(480, 320, 224, 256), (96, 96, 28, 32), (60, 100, 24, 30)]
)
def test_evaluation_pixels_are_those_of_timm(width: int, height: int, size: int, resize: int, tmp_path: Path) -> None:
    """Where both sides come to whole pixels when the shorter one is scaled, and as many are cut on each side."""
    write_jpeg(tmp_path / "a.jpg", width, height)
    ours, theirs = both(tmp_path / "a.jpg", size, resize)
    assert ours.std() > 10
    assert np.abs(ours - theirs).max() <= 1


def test_other_sizes_are_off_by_less_than_a_pixel(tmp_path: Path) -> None:
    """500 × 375: timm takes 341 of 341.3 pixels and cuts at 58 of 58.7, we cut where it is exact."""
    write_jpeg(tmp_path / "a.jpg", 500, 375, smooth=True)
    ours, theirs = both(tmp_path / "a.jpg", 224, 256)
    # What moving by a pixel changes, anywhere in the image.
    a_pixel = max(np.abs(np.diff(theirs, axis=axis)).max() for axis in (1, 2))
    assert 0 < np.abs(ours - theirs).max() <= a_pixel + 1


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part, number in (("train", 7), ("val", 3)):
        for i in range(2 * number):
            write_jpeg(tmp_path / "set" / part / ("bee", "ant")[i % 2] / f"{i}.jpg", 40, 30 + i)
    return tmp_path / "set"


def of_timm(folder: Path, **options: Any) -> Any:
    parts = [timm_data.create_dataset("", root=str(folder), split=part) for part in ("train", "validation")]
    return from_timm(*parts, **options)


def test_a_data_set_of_timm_is_the_folder(folder: Path) -> None:
    data, own = of_timm(folder, size=16), load_data({"name": "image-folder", "size": 16}, folder=folder)
    assert (data.name, data.classes, data.normalisation) == (own.name, own.classes, own.normalisation)
    for one, other in ((data.train, own.train), (data.test, own.test)):
        # timm orders by number where we order by letter: 2.jpg comes before 10.jpg.
        rows = [other.ids.tolist().index(name) for name in one.ids.tolist()]
        assert sorted(rows) == list(range(len(other)))
        assert one.y.tolist() == other.y[rows].tolist()
        assert torch.equal(one.x.batch(range(len(one))), other.x.batch(rows))


def test_a_network_is_trained_on_it(folder: Path) -> None:
    data = of_timm(folder, size=16)
    model, recipe = ModelSpec("mlp", {"input_size": 3 * 16 * 16, "hidden": (5,)}), Recipe(epochs=1, batch_size=5)
    network = train_network(model, data, NoTreatment(), recipe, seeds=Seeds.of(1), augmentation=Augmentation())
    assert network(torch.zeros(3, 3, 16, 16)).shape == (3, 2)


# timm leaves closing its files to Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loader_of_timm_trains_and_predicts(folder: Path) -> None:
    """In a notebook, where any loader is taken."""
    dataset = timm_data.create_dataset("", root=str(folder), split="train")
    loader = timm_data.create_loader(dataset, (3, 16, 16), batch_size=5, use_prefetcher=False, num_workers=0)
    network = flipguard.fit(ModelSpec("mlp", {"input_size": 3 * 16 * 16, "hidden": (5,)}).build(2, 1), loader, epochs=1)
    assert flipguard.predict(network, loader, classes=["ant", "bee"]).rows == len(dataset)


def test_what_is_no_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    train = timm_data.create_dataset("", root=str(folder), split="train")
    with pytest.raises(InputError, match=r"those over folders of images can be used; for tar files: webdataset\."):
        from_timm(train, [1, 2])
    write_jpeg(tmp_path / "other/val/cat/1.jpg", 40, 40)
    other = timm_data.create_dataset("", root=str(tmp_path / "other"), split="validation")
    with pytest.raises(InputError, match="have different classes: give both the same class_map"):
        from_timm(train, other)


def test_a_class_folder_may_be_a_link(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    (folder / "train" / "bee").rename(elsewhere)
    (folder / "train" / "bee").symlink_to(elsewhere, target_is_directory=True)
    assert {name.split("/")[1] for name in of_timm(folder, size=16).train.ids.tolist()} == {"ant", "bee"}
