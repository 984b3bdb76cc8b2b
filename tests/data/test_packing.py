"""Image folders and shards into shards: the same samples, the same pixels where nothing is made smaller."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import load_data
from flipguard.data.packing import AT_A_TIME, NAMED, Packed, Packing, images_in, pack
from flipguard.types import InputError
from one_process import in_turn

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
RNG = np.random.default_rng(3)
SHAPES = ((31, 47, "jpeg"), (64, 40, "png"), (40, 40, "JPG"), (90, 120, "jpg"), (33, 90, "gif"))


def write_folder(root: Path, parts: tuple[str, ...] = ("train", "val")) -> Path:
    """Two classes; sides from 31 to 120; names with dots."""
    for part in parts:
        for code, name in enumerate(("cat", "dog.brown")):
            home = root / part / name
            home.mkdir(parents=True)
            for number, (height, width, end) in enumerate(SHAPES[code:]):
                coarse = RNG.integers(0, 256, (4, 4, 3), dtype=np.uint8)
                image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
                image.save(home / f"a.{number}.{end}", {"jpg": "jpeg"}.get(end.lower(), end))
    return root


def packed(source: Path, out: Path, how: Packing | None = None, **options: int) -> Packed:
    return pack(images_in(source), out, how, workers=options.get("workers", 0))


def loaded(folder: Path) -> Any:
    return load_data({"name": "webdataset", "folder": str(folder), "size": 32, "resize": 32})


def test_nothing_is_made_smaller_unless_wanted(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "images")
    found = packed(source, tmp_path / "shards", Packing(per_shard=4))
    assert (found.images, found.shards) == (18, 6)
    data, expected = (
        loaded(tmp_path / "shards"),
        load_data({"name": "image-folder", "folder": str(source), "size": 32, "resize": 32}),
    )
    assert data.classes == expected.classes == ("cat", "dog.brown")
    for part in ("train", "test"):
        ours, theirs = getattr(data, part), getattr(expected, part)
        assert torch.equal(ours.y, theirs.y)
        assert [key.replace("a_", "a.") for key in ours.ids] == [name.rpartition(".")[0] for name in theirs.ids]
        for row, name in enumerate(theirs.ids):
            if not name.endswith("gif"):
                assert ours.x.content(row) == (source / name).read_bytes()
                assert (ours.x.decode(row) == theirs.x.decode(row)).all()
            else:
                assert np.abs(ours.x.decode(row).astype(int) - theirs.x.decode(row)).mean() < 12


def test_the_shorter_side_is_what_was_asked_for(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "images")
    found = packed(source, tmp_path / "shards", Packing(short=36, quality=95))
    expected = load_data({"name": "image-folder", "folder": str(source), "size": 32, "resize": 32})
    x, theirs = loaded(tmp_path / "shards").train.x, expected.train.x
    for row, name in enumerate(theirs.names):
        width, height = theirs.open(row).size
        factor = min(1.0, 36 / min(width, height))
        assert x.open(row).size == (round(width * factor), round(height * factor))
        if factor == 1 and not name.endswith("gif"):
            assert x.content(row) == (source / name).read_bytes()
        assert np.abs(x.decode(row).astype(int) - theirs.decode(row)).mean() < 12
    # Models are judged on what there was.
    judged, before = loaded(tmp_path / "shards").test.x, expected.test.x
    assert [judged.open(row).size for row in range(9)] == [before.open(row).size for row in range(9)]
    assert found.bytes == sum(path.stat().st_size for path in (tmp_path / "shards").glob("*.tar"))


@pytest.mark.parametrize("workers", [0, 2])
def test_more_images_than_are_made_ready_at_a_time(workers: int, tmp_path: Path) -> None:
    for part, number in (("train", 2 * AT_A_TIME + 5), ("val", 3)):
        for i in range(number):
            home = tmp_path / "images" / part / f"c{i * i % 3}"
            home.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((9, 8, 3), i, np.uint8)).save(home / f"{i:03d}.png")
    packed(tmp_path / "images", tmp_path / "shards", Packing(per_shard=AT_A_TIME + 20), workers=workers)
    train, source = loaded(tmp_path / "shards").train, images_in(tmp_path / "images").train
    assert len(train) == 2 * AT_A_TIME + 5
    assert train.ids.tolist() == [name.removesuffix(".png") for name in source.ids]
    assert torch.equal(train.y, source.y)
    for row, key in enumerate(train.ids):
        assert (train.x.decode(row) == int(key[-3:])).all()


def test_it_goes_on_where_it_stopped(tmp_path: Path) -> None:
    source, out = write_folder(tmp_path / "images"), tmp_path / "shards"
    how = Packing(short=36, per_shard=3)
    packed(source, out, how)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    kept = (out / "train-000000.tar").stat().st_mtime_ns
    for name in ("train-000001.tar", "val-000002.tar"):
        (out / name).unlink()
    (out / ".train-000001.tar.7.part").touch()
    packed(source, out, how)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert (out / "train-000000.tar").stat().st_mtime_ns == kept
    with pytest.raises(InputError, match="was begun with other images or in another way"):
        packed(source, out, Packing(short=35, per_shard=3))
    (source / "train/cat/new.png").write_bytes((source / "train/cat/a.1.png").read_bytes())
    with pytest.raises(InputError, match="was begun with other images or in another way"):
        packed(source, out, how)


def test_shards_can_be_packed_again_and_a_validation_part_goes_along(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "images", ("train", "val", "test"))
    packed(source, tmp_path / "shards")
    data = loaded(tmp_path / "shards")
    assert (len(data.train), len(data.test), len(data.validation)) == (9, 9, 9)
    packed(tmp_path / "shards", tmp_path / "small", Packing(short=20))
    small = loaded(tmp_path / "small")
    assert small.classes == ("cat", "dog.brown")
    for part in ("train", "test", "validation"):
        assert getattr(small, part).ids.tolist() == getattr(data, part).ids.tolist()
    assert {min(small.train.x.open(row).size) for row in range(9)} == {20}
    # As others name them: what is for validation stands for the test, and nothing is passed over.
    for name in ("classes.txt", "shards.json"):
        (tmp_path / "shards" / name).unlink()
    with pytest.raises(InputError, match=r"test-000000\.tar is neither for train nor for val, by its name"):
        images_in(tmp_path / "shards")
    (tmp_path / "shards/test-000000.tar").unlink()
    others = images_in(tmp_path / "shards")
    assert others.classes == ("0", "1")
    assert others.test.ids.tolist() == data.validation.ids.tolist()


def test_bad_input(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "images")
    with pytest.raises(InputError, match="neither a folder train"):
        images_in(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter").touch()
    with pytest.raises(InputError, match="holds other things"):
        packed(source, tmp_path / "full")
    for options, message in (
        ({"short": 0}, "at least one pixel"),
        ({"quality": 96}, "between 1 and 95"),
        ({"per_shard": 0}, "at least one image"),
    ):
        with pytest.raises(InputError, match=message):
            Packing(**options)
    with pytest.raises(InputError, match="has no image files to pack"):
        pack(load_data("digits"), tmp_path / "digits")
    (source / "train/cat/a_1.png").write_bytes((source / "train/cat/a.1.png").read_bytes())
    with pytest.raises(InputError, match="both be called train/cat/a_1 in a shard"):
        packed(source, tmp_path / "twice")
    (source / "train/cat/a_1.png").unlink()
    whole = (source / "train/cat/a.3.jpg").read_bytes()
    (source / "train/cat/a.3.jpg").write_bytes(whole[: len(whole) // 2])
    for workers in (0, 2):
        with pytest.raises(InputError, match=r"train/cat/a\.3\.jpg cannot be read as an image"):
            packed(source, tmp_path / f"damaged{workers}", workers=workers)
        assert [path.name for path in (tmp_path / f"damaged{workers}").glob("*tar*")] == ["val-000000.tar"]


def test_damaged_images_are_all_named_and_replaced_ones_go_on(tmp_path: Path) -> None:
    source, out, how = write_folder(tmp_path / "images"), tmp_path / "shards", Packing(per_shard=3)
    spoilt = {name: (source / name).read_bytes() for name in ("train/cat/a.3.jpg", "val/dog.brown/a.0.png")}
    (source / "train/cat/a.3.jpg").write_bytes(spoilt["train/cat/a.3.jpg"][:200])
    (source / "val/dog.brown/a.0.png").write_bytes(b"no image")
    with pytest.raises(InputError) as refused:
        packed(source, out, how)
    said = str(refused.value)
    assert said.startswith("2 of 18 images cannot be packed: ")
    assert all(f"{name} cannot be read as an image (" in said for name in spoilt)
    assert " object at 0x" not in said
    assert "\n" not in said
    whole = {path.name: path.stat().st_mtime_ns for path in out.glob("*.tar")}
    assert len(whole) == 4
    with pytest.raises(InputError, match="has 4 of its 6 shards: the same flipguard shards command writes the others"):
        loaded(out)
    for name, content in spoilt.items():
        (source / name).write_bytes(content)
    assert packed(source, out, how) == packed(source, tmp_path / "at_once", how)
    for name in ("train-000001.tar", "val-000001.tar", *whole):
        assert (out / name).read_bytes() == (tmp_path / "at_once" / name).read_bytes()
    assert all((out / name).stat().st_mtime_ns == when for name, when in whole.items())


def test_of_many_damaged_images_some_are_named(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "images")
    for number in range(NAMED + 3):
        (source / "train/cat" / f"b{number:02d}.jpg").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"^23 of 41 images .*; 3 more\. Put whole ones") as refused:
        packed(source, tmp_path / "shards")
    assert str(refused.value).count("of no known format") == NAMED


@pytest.mark.parametrize(
    ("folders", "files", "message"),
    [
        (("a", "b"), ("tab\tx.png", "y.png"), "has control characters: rename it"),
        (("a", "b"), (os.fsdecode(b"caf\xe9.png"), "y.png"), "not UTF-8"),
        ((os.fsdecode(b"caf\xe9"), "b"), ("x.png",), "not UTF-8"),
        (("a b", "a  b"), ("x.png",), "the same name but for spaces"),
    ],
)
def test_names_that_could_not_be_read_back(
    folders: tuple[str, ...], files: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    for part in ("train", "val"):
        for folder in folders:
            (tmp_path / "images" / part / folder).mkdir(parents=True)
            for name in files:
                Image.fromarray(np.zeros((9, 8, 3), np.uint8)).save(tmp_path / "images" / part / folder / name)
    with pytest.raises(InputError, match=message):
        packed(tmp_path / "images", tmp_path / "shards")
    assert not (tmp_path / "shards").exists()


def test_as_a_user_meets_it(tmp_path: Path) -> None:
    write_folder(tmp_path / "images")
    used = "data: {name: webdataset, folder: packed}"
    spec = f"{used}\nnew: {{model: {{name: resnet10, width: 2}}}}\ntrain: {{epochs: 1, batch_size: 3}}\n"
    (tmp_path / "spec.yaml").write_text(spec)
    done, trained, refused = in_turn(
        tmp_path,
        ("shards", "images", "--out", "packed", "--short", "36", "--per-shard", "5", "--workers", "0"),
        ("train", "spec.yaml", "data.size=32", "--out", "run"),
        ("shards", "images", "--out", "images/packed", "--workers", "0"),
    )
    assert done.code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "1 of 4  train-000000.tar"
    assert lines[-2].startswith("18 images in 4 shards, 0.00 GB. Use them by")
    assert lines[-1] == used
    assert trained.code == 0, trained.stderr
    assert json.loads((tmp_path / "run/versions/new/model.json").read_text())["classes"] == ["cat", "dog.brown"]
    assert (refused.code, refused.stderr.count("\n")) == (2, 1)
    assert "lies in images" in refused.stderr
    with io.BytesIO((tmp_path / "packed/classes.txt").read_bytes()) as file:
        assert file.read() == b"cat\ndog.brown\n"
