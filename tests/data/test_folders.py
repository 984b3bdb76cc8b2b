"""Image folders and Tiny-ImageNet, streamed and in memory. Needs Pillow."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import Augmentation, Batches, ImageFiles, in_memory, load_data
from flipguard.data.files import _room, _whole, open_image, random_box
from flipguard.types import InputError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

RNG = np.random.default_rng(0)
SIZE = 16


def write_image(path: Path, *, shape: tuple[int, int] = (SIZE, SIZE)) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def write_set(root: Path, parts: tuple[str, ...] = ("train", "test")) -> dict[str, Any]:
    names = [f"{part}/{name}/{i}.png" for part in parts for name in ("ant", "bee", "cat") for i in range(3)]
    return {name: write_image(root / name) for name in names}


SPEC = {"name": "image-folder", "size": SIZE, "resize": SIZE}


def test_classes_ids_and_pixels(tmp_path: Path) -> None:
    pixels = write_set(tmp_path)
    (tmp_path / "train" / "ant" / "notes.txt").write_text("not an image")
    data = load_data(SPEC, folder=tmp_path)
    assert data.classes == ("ant", "bee", "cat")
    assert data.train.ids.tolist() == sorted(name for name in pixels if name.startswith("train"))
    assert data.test.y.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert isinstance(data.train.x, ImageFiles)
    loaded = in_memory(data, batch_size=2)
    for split in (loaded.train, loaded.test):
        for name, image in zip(split.ids, split.x, strict=True):  # type: ignore[arg-type]
            assert np.array_equal(image.numpy(), pixels[name].transpose(2, 0, 1))
    assert loaded.normalisation != data.normalisation
    assert loaded.fingerprint() == data.fingerprint()


def test_a_validation_folder_is_the_test_part_only_when_alone(tmp_path: Path) -> None:
    write_set(tmp_path / "one", ("train", "val"))
    alone = load_data(SPEC, folder=tmp_path / "one")
    assert alone.validation is None
    assert alone.test.ids[0] == "val/ant/0.png"
    write_set(tmp_path / "two", ("train", "val", "test"))
    both = load_data(SPEC, folder=tmp_path / "two")
    assert both.validation is not None
    assert both.validation.ids[0] == "val/ant/0.png"
    assert both.test.ids[0] == "test/ant/0.png"


def test_centre_crop_of_a_larger_image(tmp_path: Path) -> None:
    pixels = write_image(tmp_path / "wide.png", shape=(20, 30))
    files = ImageFiles(tmp_path, ("wide.png",), size=10, resize=20)
    assert np.array_equal(files.decode(0), pixels[5:15, 10:20].transpose(2, 0, 1))


def test_a_grey_image_gets_three_channels(tmp_path: Path) -> None:
    Image.fromarray(np.full((5, 5), 77, np.uint8)).save(tmp_path / "grey.png")
    assert ImageFiles(tmp_path, ("grey.png",), size=5, resize=5).decode(0).tolist() == np.full((3, 5, 5), 77).tolist()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_streams_the_same_batches_with_and_without_workers_and_after_a_resume(tmp_path: Path) -> None:
    write_set(tmp_path)
    train = load_data(SPEC, folder=tmp_path).train
    options: dict[str, Any] = {
        "order_seed": 1,
        "augment_seed": 2,
        "epoch": 1,
        "epochs": 3,
        "augmentation": Augmentation(crop_padding=0),
    }
    torch.manual_seed(0)
    before = torch.get_rng_state()
    whole = list(Batches(train, 4, **options))
    working = list(Batches(train, 4, **options, workers=2))
    rest = list(Batches(train, 4, **options, start_step=1))
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(batch.y) for batch in whole] == [4, 4, 1]
    for found, expected in ((working, whole), (rest, whole[1:])):
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a.x, b.x)  # type: ignore[arg-type]
            assert torch.equal(a.index, b.index)
    other = list(Batches(train, 4, **(options | {"augment_seed": 3})))
    assert torch.equal(other[0].index, whole[0].index)
    assert not torch.equal(other[0].x, whole[0].x)  # type: ignore[arg-type]


def test_without_augmentation_images_are_not_cropped_at_random(tmp_path: Path) -> None:
    pixels = write_set(tmp_path)
    test = load_data(SPEC, folder=tmp_path).test
    batch = next(iter(Batches(test, 5, augment_seed=3)))
    for row, image in zip(batch.index.tolist(), batch.x, strict=True):  # type: ignore[arg-type]
        expected = pixels[test.ids[row]].transpose(2, 0, 1) / 255
        np.testing.assert_allclose(image.numpy(), expected, rtol=1e-6)


def test_random_boxes_lie_inside_and_have_the_asked_area() -> None:
    areas = []
    for u in RNG.random((500, 4)):
        left, top, right, bottom = random_box(200, 200, u.tolist(), scale=(0.25, 0.5))
        assert 0 <= left < right <= 200 + 1e-9
        assert 0 <= top < bottom <= 200 + 1e-9
        assert 3 / 4 - 1e-9 <= (right - left) / (bottom - top) <= 4 / 3 + 1e-9
        areas.append((right - left) * (bottom - top) / 200**2)
    assert 0.25 <= min(areas) < 0.27
    assert 0.48 < max(areas) <= 0.5 + 1e-9


def test_random_parts_are_those_that_pillow_would_cut(tmp_path: Path) -> None:
    waves = np.add.outer(np.arange(150), np.arange(200))[..., None] * (1, 2, 3) % 256
    Image.fromarray(waves.astype(np.uint8)).resize((400, 300), Image.Resampling.BICUBIC).save(tmp_path / "a.png")
    files = ImageFiles(tmp_path, ("a.png",), size=64, resize=64, scale=(0.1, 1.0))
    picture = open_image(tmp_path / "a.png")
    for u in RNG.random((40, 4)).tolist():
        part = picture.crop([round(edge) for edge in random_box(400, 300, u, scale=(0.1, 1.0))])
        expected = np.asarray(part.resize((64, 64), Image.Resampling.BILINEAR)).transpose(2, 0, 1)
        assert np.abs(files.random_part(0, u).numpy().astype(int) - expected).max() <= 2


def test_a_part_of_the_wanted_size_is_that_part(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    files = ImageFiles(tmp_path, ("a.png",), size=20, resize=20, scale=(1.0, 1.0))
    # The middle of the range of aspects is a square.
    assert np.array_equal(files.random_part(0, (0.5, 0.5, 0.0, 0.0)).numpy(), pixels.transpose(2, 0, 1))


def test_parts_of_a_small_image_lie_inside_and_keep_their_area(tmp_path: Path) -> None:
    """Beyond an image Pillow paints black; edges that were always rounded outwards would enlarge small parts."""
    Image.new("RGB", (32, 24), "white").save(tmp_path / "white.png")
    files = ImageFiles(tmp_path, ("white.png",), size=8, resize=8, scale=(0.08, 1.0))
    drawn = RNG.random((500, 4)).tolist()
    assert all(int(files.random_part(0, u).min()) == 255 for u in drawn)
    wanted = [random_box(32, 24, u, scale=(0.08, 1.0)) for u in drawn]
    cut = [(*_whole(left, right, 32), *_whole(top, bottom, 24)) for left, top, right, bottom in wanted]
    area = np.mean([(right - left) * (bottom - top) for left, right, top, bottom in cut])
    assert area == pytest.approx(np.mean([(r - le) * (b - t) for le, t, r, b in wanted]), rel=0.03)


@pytest.mark.parametrize(("low", "high"), [(8.6, 9.6), (8.6, 9.0000001), (9.0, 9.0), (0.0, 0.2), (-0.0, 9.4)])
def test_a_part_has_a_pixel_and_ends_with_its_image(low: float, high: float) -> None:
    first, last = _whole(low, high, 9)
    assert 0 <= first < last <= 9


class _Rooms:
    """What a worker finds of the place that it writes a batch to."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, step: int) -> bool:
        return _room((3, 2)).is_shared()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_writes_its_batches_where_they_are_read(workers: int) -> None:
    loader = torch.utils.data.DataLoader(_Rooms(), batch_size=None, num_workers=workers)  # type: ignore[arg-type]
    assert list(loader) == [workers > 0] * 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_images_are_one_line_that_names_the_file(workers: int, tmp_path: Path) -> None:
    write_set(tmp_path)
    bad = tmp_path / "train" / "bee" / "1.png"
    for content in (b"", b"not an image", bad.read_bytes()[:200]):
        bad.write_bytes(content)
        with pytest.raises(InputError, match=r"train/bee/1\.png cannot be read as an image \(.*\)\.$") as error:
            load_data({**SPEC, "memory": True, "workers": workers}, folder=tmp_path)
        assert "\n" not in str(error.value)


def png_of_size(width: int, height: int) -> bytes:
    """A PNG whose header announces a size that its few bytes of data do not have."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_image_bombs_are_refused_before_decoding(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_of_size(9000, 9000))
    with pytest.raises(
        InputError, match=r"bomb\.png has 9000 × 9000 pixels; images over 80,000,000 pixels are refused"
    ):
        open_image(path)
    path.write_bytes(png_of_size(60_000, 60_000))
    with pytest.raises(InputError, match=r"bomb\.png cannot be read as an image"):
        open_image(path)
    path.write_bytes(png_of_size(30, 30))
    with pytest.raises(InputError, match="30 × 30 pixels; images over 899 pixels"):
        open_image(path, max_pixels=899)


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs a folder train and a folder test or val"):
        load_data(SPEC, folder=tmp_path)
    write_set(tmp_path)
    (tmp_path / "test" / "bee").rename(tmp_path / "hidden")
    with pytest.raises(InputError, match="test has no images of class 'bee'"):
        load_data(SPEC, folder=tmp_path)
    assert len(load_data({**SPEC, "allow_missing_classes": True}, folder=tmp_path).test) == 6
    (tmp_path / "hidden").rename(tmp_path / "test" / "fox")
    with pytest.raises(InputError, match="test/fox is not one of the 3 training classes"):
        load_data(SPEC, folder=tmp_path)
    (tmp_path / "train" / "dog").mkdir()
    with pytest.raises(InputError, match="train has no images of class 'dog'"):
        load_data({**SPEC, "allow_missing_classes": True}, folder=tmp_path)
    with pytest.raises(InputError, match="at least 1 and at most resize, not 16 of 8"):
        load_data({**SPEC, "resize": 8}, folder=tmp_path)


def write_tiny(root: Path) -> dict[str, Any]:
    folder = root / "tiny-imagenet-200"
    pixels = {}
    for wnid in ("n02", "n01"):
        for i in range(3):
            name = f"train/{wnid}/images/{wnid}_{i}.JPEG"
            write_image(folder / name, shape=(64, 64))
            pixels[name] = np.asarray(Image.open(folder / name))
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("x\t0\t0\t1\t1\n")
    lines = []
    for i, wnid in enumerate(("n01", "n02", "n01")):
        write_image(folder / "val" / "images" / f"val_{i}.JPEG", shape=(64, 64))
        lines.append(f"val_{i}.JPEG\t{wnid}\t0\t0\t62\t57\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn02\tbullfrog\nn03\tother\n")
    return pixels


def test_tiny_imagenet(tmp_path: Path) -> None:
    pixels = write_tiny(tmp_path)
    data = load_data("tiny-imagenet", folder=tmp_path)
    assert data.classes == ("n02", "n01")
    assert data.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test.y.tolist() == [1, 0, 1]
    assert data.test.ids.tolist() == [f"val/images/val_{i}.JPEG" for i in range(3)]
    for name, image in zip(data.train.ids, data.train.x, strict=True):  # type: ignore[arg-type]
        assert np.array_equal(image.numpy(), pixels[name].transpose(2, 0, 1))
    named = load_data({"name": "tiny-imagenet", "words": True, "memory": False}, folder=tmp_path)
    assert named.classes == ("n02 bullfrog", "n01 goldfish, Carassius auratus")
    assert isinstance(named.train.x, ImageFiles)


@pytest.mark.parametrize("line", ["val_0.JPEG", "val_0.JPEG\tn09", "../wnids.txt\tn01", "missing.JPEG\tn01"])
def test_tiny_imagenet_annotations_are_checked(line: str, tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "tiny-imagenet-200" / "val" / "val_annotations.txt").write_text(line + "\n")
    with pytest.raises(InputError, match=r"val_annotations\.txt, line 1: "):
        load_data("tiny-imagenet", folder=tmp_path)


def test_it_reads_folders_as_torchvision_does(tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets", reason="torchvision is not installed")
    write_set(tmp_path)
    write_image(tmp_path / "train" / "bee" / "deep" / "10.jpg")
    theirs, ours = datasets.ImageFolder(tmp_path / "train"), load_data(SPEC, folder=tmp_path)
    assert ours.classes == tuple(theirs.classes)
    named = {Path(path).relative_to(tmp_path).as_posix(): code for path, code in theirs.samples}
    assert dict(zip(ours.train.ids.tolist(), ours.train.y.tolist(), strict=True)) == named
    assert isinstance(ours.train.x, ImageFiles)
    for row, name in enumerate(ours.train.x.names):
        if name.endswith(".png"):
            image, _ = theirs[next(i for i, (path, _) in enumerate(theirs.samples) if path.endswith(name))]
            assert np.array_equal(ours.train.x.decode(row), np.asarray(image).transpose(2, 0, 1))


def test_it_reads_folders_as_timm_does(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm.data", reason="timm is not installed")
    write_set(tmp_path)
    theirs, ours = timm.create_dataset("", tmp_path, split="train"), load_data(SPEC, folder=tmp_path)
    named = {Path(path).relative_to(tmp_path).as_posix(): code for path, code in theirs.reader.samples}
    assert dict(zip(ours.train.ids.tolist(), ours.train.y.tolist(), strict=True)) == named
