"""WebDataset shards in the real format: the images of a folder, found again by key, in any order, from any step."""

import gzip
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import Augmentation, Batches, ShardImages, load_data
from flipguard.data.tar import plain_files
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.types import InputError

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
RNG = np.random.default_rng(0)
SIZE = 16
SPEC = {"name": "webdataset", "size": SIZE, "resize": SIZE}


def picture(shape: tuple[int, int] = (SIZE, SIZE), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(file, form)
    return file.getvalue()


def write_shard(path: Path, files: dict[str, bytes], *, form: int = tarfile.PAX_FORMAT, **facts: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for fact, value in facts.items():
                setattr(member, fact, value)
            tar.addfile(member, io.BytesIO(content))


def sample(key: str, code: int, image: bytes | None = None, extension: str = "png") -> dict[str, bytes]:
    return {f"{key}.{extension}": image or picture(), f"{key}.cls": f"{code}".encode()}


def write_set(root: Path) -> dict[str, bytes]:
    """Two training shards of seven samples each, one of five for validation, three classes. Returns images by key."""
    images = {f"n{shard}_{i}": picture() for shard in range(3) for i in range(7 if shard < 2 else 5)}
    for shard, name in enumerate(("set-train-000000.tar", "set-train-000001.tar", "set-val-000000.tar")):
        files: dict[str, bytes] = {}
        for number, (key, image) in enumerate(images.items()):
            if key.startswith(f"n{shard}_"):
                files |= sample(key, number % 3, image) | {f"{key}.json": b"{}"}
        # webdataset's own writer gives times with fractions, for which tarfile writes a further header.
        write_shard(root / name, files, mtime=1_700_000_000.25)
    return images


def test_ids_classes_and_pixels(tmp_path: Path) -> None:
    images = write_set(tmp_path)
    (tmp_path / "names.txt").write_text("ant\nbee\ncat\n")
    data = load_data({**SPEC, "classes": "names.txt"}, folder=tmp_path)
    assert data.classes == ("ant", "bee", "cat")
    assert data.train.ids.tolist() == [key for key in images if not key.startswith("n2")]
    assert data.test.ids.tolist() == [key for key in images if key.startswith("n2")]
    assert data.train.y.tolist() == [i % 3 for i in range(14)]
    assert isinstance(data.train.x, ShardImages)
    for split in (data.train, data.test, data.train.select([11, 2, 7])):
        assert isinstance(split.x, ShardImages)
        for row, key in enumerate(split.ids.tolist()):
            expected = np.asarray(Image.open(io.BytesIO(images[key]))).transpose(2, 0, 1)
            assert np.array_equal(split.x.decode(row), expected)
    assert load_data(SPEC, folder=tmp_path).classes == ("0", "1", "2")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_streams_the_same_batches_with_workers_and_from_the_middle_of_an_epoch(tmp_path: Path) -> None:
    write_set(tmp_path)
    options: dict[str, Any] = {"order_seed": 1, "augment_seed": 2, "epoch": 1, "epochs": 3}
    options["augmentation"] = Augmentation(crop_padding=0)
    whole = list(Batches(load_data(SPEC, folder=tmp_path).train, 4, **options))
    two = load_data({**SPEC, "workers": 2}, folder=tmp_path).train
    assert isinstance(two.x, ShardImages)
    assert two.x.workers == 2
    for found, expected in ((Batches(two, 4, **options), whole), (Batches(two, 4, **options, start_step=2), whole[2:])):
        for a, b in zip(found, expected, strict=True):
            assert torch.equal(a.x, b.x)  # type: ignore[arg-type]
            assert torch.equal(a.index, b.index)
    # Two shards are mixed in one batch.
    assert len({int(row) // 7 for row in whole[0].index}) == 2


def test_training_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    write_set(tmp_path)
    data, model = load_data(SPEC, folder=tmp_path), ModelSpec("cnn", {"in_channels": 3})
    recipe, shift = Recipe(epochs=2, batch_size=3, learning_rate=0.01), Augmentation(crop_padding=0)
    steps: list[int] = []

    class Stop(Exception):
        pass

    def stopping(student: Any, references: Any, batch: Any) -> Any:
        steps.append(int(batch.step))
        if len(steps) == 7:
            raise Stop
        return NoTreatment()(student, references, batch)

    arguments: dict[str, Any] = {"seeds": Seeds.of(1), "augmentation": shift, "checkpoint_every": 1}
    whole = train_network(model, data, NoTreatment(), recipe, seeds=Seeds.of(1), augmentation=shift)
    state = tmp_path / "state.safetensors"
    with pytest.raises(Stop):
        train_network(model, data, stopping, recipe, checkpoint=state, **arguments)
    again = train_network(model, data, stopping, recipe, checkpoint=state, **arguments)
    # Four steps an epoch: the third of the second epoch broke, and is the first to be done again.
    assert steps == [0, 1, 2, 3, 4, 5, 6, 6, 7]
    found = again.state_dict()
    assert all(torch.equal(value, found[name]) for name, value in whole.state_dict().items())


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_places_are_those_that_tarfile_finds(form: int, tmp_path: Path) -> None:
    """Short names, names with a prefix, and, in the forms that have them, names beyond any field."""
    names = ["a.jpg", f"{'folder/' * 17}b.jpg", "ü.cls", f"{'d' * 99}/{'e' * 95}.jpg"]
    names += [] if form == tarfile.USTAR_FORMAT else [f"{'f' * 300}.jpg"]
    path = tmp_path / "x.tar"
    write_shard(path, {name: RNG.bytes(37 * i) for i, name in enumerate(names)}, form=form)
    with tarfile.open(path) as tar:
        expected = [(member.name, member.offset_data, member.size) for member in tar]
    assert len(expected) == len(names)
    assert list(plain_files(path)) == expected


def write_link(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)


def write_field(path: Path, field: slice, value: bytes) -> None:
    """A header that was written by hand, its sum included."""
    write_shard(path, {"a.png": b"x"}, form=tarfile.USTAR_FORMAT)
    header = bytearray(path.read_bytes())
    header[field] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    path.write_bytes(header)


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


ONE = {**sample("a", 0), **sample("b", 1)}
BAD: dict[str, tuple[Any, str]] = {
    "no label": ({**ONE, "c.png": b"x"}, r"has no \.cls for the key c\."),
    "no image": ({**ONE, "c.cls": b"1"}, r"has no image for the key c\."),
    "twice": ({**ONE, "a.jpg": b"x"}, r"has two files of the kind \.jpg for the key a\."),
    "a word": ({"a.png": b"x", "a.cls": b"cat"}, r"a\.cls must hold the number of a class, it holds 'cat'\."),
    "long": ({"a.png": b"x", "a.cls": b"1" * 100}, r"a\.cls must hold the number of a class, it holds ''\."),
    "a million classes": ({"a.png": b"x", "a.cls": b"1000000"}, r"classes from 1,000,000 on are refused\."),
    "beyond any number": ({"a.png": b"x", "a.cls": b"9" * 60}, r"classes from 1,000,000 on are refused\."),
    "two lines": ({"a\nb.png": b"x", "a.cls": b"1"}, r"a name with control characters: 'a\\nb\.png'\."),
    "a negative length": (
        lambda path: write_field(path, slice(124, 136), b"-0000001000\0"),
        r"is damaged: b'-0000001000\\x00' is no length\.",
    ),
    "a length without end": (
        lambda path: write_shard(path, ONE, pax_headers={"size": "1" * 5000}),
        r"is damaged: a pax header cannot be read\.",
    ),
    "nothing": ({"readme": b"x"}, r"has no samples: files KEY\.jpg and KEY\.cls were expected\."),
    "a link": (write_link, r"a\.jpg is no plain file\."),
    "empty": (lambda path: path.write_bytes(b""), r"is empty\."),
    "no tar": (lambda path: path.write_bytes(b"hello" * 300), r"is no tar file, or a compressed one"),
}


@pytest.mark.parametrize("kind", BAD)
def test_shards_that_cannot_be_used(kind: str, tmp_path: Path) -> None:
    content, expected = BAD[kind]
    write_set(tmp_path)
    shard = tmp_path / "set-train-000001.tar"
    if callable(content):
        content(shard)
    else:
        write_shard(shard, content)
    with pytest.raises(InputError, match=expected) as error:
        load_data(SPEC, folder=tmp_path)
    assert str(shard) in str(error.value)
    assert "\n" not in str(error.value)


def test_damage_and_compression(tmp_path: Path) -> None:
    write_set(tmp_path)
    shard = tmp_path / "set-train-000001.tar"
    content = shard.read_bytes()
    cases = {
        "damaged: there is no header at byte": flipped(content, content.index(b"n1_3.png") + 2),
        "is cut off": content[:5000],
        "no tar file, or a compressed one": gzip.compress(content),
    }
    for expected, changed in cases.items():
        shard.write_bytes(changed)
        with pytest.raises(InputError, match=expected):
            load_data(SPEC, folder=tmp_path)
    shard.unlink()
    (tmp_path / "set-train-000000.tar").unlink()
    with pytest.raises(
        InputError, match=r"has no shards for train: nothing there is called \*train\*\.tar\. Set train\."
    ):
        load_data(SPEC, folder=tmp_path)


def test_any_damage_is_one_line(tmp_path: Path) -> None:
    """Every byte of the headers of a small shard, changed."""
    path = tmp_path / "x.tar"
    write_shard(path, {"a.png": b"x", f"{'f' * 120}.png": b"y"}, mtime=3.5)
    content, refused = path.read_bytes(), 0
    for place in range(0, 4096, 3):
        path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
        said = ""
        try:
            assert all(start + length <= len(content) for _, start, length in plain_files(path))
        except InputError as error:
            said = str(error)
        refused += bool(said)
        assert "\n" not in said
    assert refused > 500


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_shard(tmp_path / "train.tar", {**ONE, "c.png": b"no image", "c.cls": b"0"})
    write_shard(tmp_path / "val.tar", ONE)
    data = load_data(SPEC, folder=tmp_path)
    with pytest.raises(InputError, match=r"train\.tar: c cannot be read as an image"):
        list(Batches(data.train, 3))
    (tmp_path / "names.txt").write_text("ant\n")
    with pytest.raises(InputError, match=r"names\.txt names 1 classes, and the shards have the class 1"):
        load_data({**SPEC, "classes": "names.txt"}, folder=tmp_path)
