"""The mosaics: small ones written here, and the real ones where they are."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from flipguard.data import DataSet, load_data, split_validation
from flipguard.types import InputError

REAL = Path(os.environ.get("FLIPGUARD_DATA") or Path(__file__).parents[2].parent / "shared" / "data")
needs_texts = pytest.mark.skipif(not (REAL / "clinc150.npz").is_file(), reason=f"no real data under {REAL}")


@pytest.fixture(scope="module")
def cifar100() -> DataSet:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    if not (REAL / "cifar100" / "labels.npz").is_file():
        pytest.skip(f"no real data under {REAL}")
    return load_data("mosaic:cifar100", folder=REAL)


def write_mosaic(root: Path, n: int, *, files: int) -> np.ndarray:  # type: ignore[type-arg]
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 256, (files * 200, 32, 32, 3), dtype=np.uint8)
    folder = root / "cifar100"
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        for i, some in enumerate(np.split(tiles, files)):
            picture = some.reshape(2, 100, 32, 32, 3).swapaxes(1, 2).reshape(64, 3200, 3)
            image.fromarray(picture).save(folder / f"{part}_{i}.webp", lossless=True, method=0)
    y = (np.arange(n) % 7).astype(np.uint8)
    np.savez(
        folder / "labels.npz",
        y_train=y,
        y_test=y,
        classes=np.array([f"c{i}" for i in range(7)]),
        y_coarse_train=y % 2,
        y_coarse_test=y % 2,
        coarse_classes=np.array(["even", "odd"]),
    )
    return tiles


def test_small_mosaics_give_back_their_tiles(tmp_path: Path) -> None:
    tiles = write_mosaic(tmp_path, 393, files=2)
    for spec in ("mosaic:cifar100", "cifar100"):
        data = load_data(spec, folder=tmp_path)
        assert isinstance(data.train.x, torch.Tensor)
        assert np.array_equal(data.train.x.numpy(), tiles[:393].transpose(0, 3, 1, 2))
        assert data.train.y.tolist() == [i % 7 for i in range(393)]
        assert data.test.slices["superclass"].tolist() == [("even", "odd")[i % 7 % 2] for i in range(393)]
        assert data.train.ids[0] == "mosaic_train_00000"


def test_mosaic_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unknown mosaic set 'mnist'; known: cifar100, svhn, ag_news, clinc150"):
        load_data("mosaic:mnist", folder=tmp_path)
    with pytest.raises(InputError, match=r"cifar100/labels\.npz does not exist"):
        load_data("mosaic:cifar100", folder=tmp_path)
    write_mosaic(tmp_path, 150, files=2)
    with pytest.raises(InputError, match=r"the train mosaics hold 400 tiles, and labels\.npz 150 labels"):
        load_data("mosaic:cifar100", folder=tmp_path)
    path = tmp_path / "cifar100" / "train_0.webp"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"train_0\.webp cannot be read as an image"):
        load_data("mosaic:cifar100", folder=tmp_path)
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((33, 3200, 3), np.uint8)).save(path)
    with pytest.raises(InputError, match=r"train_0\.webp is 3200 × 33; a mosaic is 3200 wide and whole tiles high"):
        load_data("mosaic:cifar100", folder=tmp_path)
    for file in path.parent.glob("train_*.webp"):
        file.unlink()
    with pytest.raises(InputError, match=r"has no train_0\.webp"):
        load_data("mosaic:cifar100", folder=tmp_path)


def test_real_cifar100_is_whole(cifar100: DataSet) -> None:
    assert (len(cifar100.train), len(cifar100.test), len(cifar100.classes)) == (50_000, 10_000, 100)
    assert torch.bincount(cifar100.train.y).tolist() == [500] * 100
    assert torch.bincount(cifar100.test.y).tolist() == [100] * 100
    assert len(set(cifar100.train.slices["superclass"].tolist())) == 20


def test_real_cifar100_pixels_have_the_published_statistics(cifar100: DataSet) -> None:
    assert isinstance(cifar100.train.x, torch.Tensor)
    assert cifar100.normalisation is not None
    pixels = cifar100.train.x[::10].float() / 255
    for found, published in (
        (pixels.mean((0, 2, 3)), cifar100.normalisation.mean),
        (pixels.std((0, 2, 3)), cifar100.normalisation.std),
    ):
        torch.testing.assert_close(found, torch.tensor(published), rtol=0, atol=0.005)
    # Tiles cut at the wrong places would break neighbourhoods: in photographs, neighbouring pixels resemble each other.
    assert float((pixels[..., 1:] - pixels[..., :-1]).abs().mean()) < 0.06


def test_real_cifar100_validation_split(cifar100: DataSet) -> None:
    data = split_validation(cifar100, size=5000, seed=0)
    assert data.validation is not None
    assert torch.bincount(data.validation.y).tolist() == [50] * 100
    assert torch.bincount(data.train.y).tolist() == [450] * 100


@needs_texts
def test_real_texts() -> None:
    news = load_data("mosaic:ag-news", folder=REAL)
    assert (len(news.train), len(news.test)) == (54_172, 7_600)
    assert torch.bincount(news.test.y).tolist() == [1900] * 4
    clinc = load_data({"name": "mosaic", "set": "clinc150"}, folder=REAL)
    sizes = {name: len(part) for name, part in clinc.parts().items()}
    assert sizes == {
        "train": 15_000,
        "test": 4_500,
        "validation": 3_000,
        "oos_train": 100,
        "oos_val": 100,
        "oos_test": 1_000,
    }
    assert all(isinstance(text, str) and text for text in clinc.test.x)
    assert clinc.part("oos_test").y.unique().tolist() == [-1]


def test_real_svhn_has_only_a_test_part() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    if not (REAL / "svhn" / "labels.npz").is_file():
        pytest.skip(f"no real data under {REAL}")
    data = load_data("mosaic:svhn", folder=REAL)
    assert (len(data.train), len(data.test)) == (0, 10_000)
    assert data.name == "svhn-recropped"
