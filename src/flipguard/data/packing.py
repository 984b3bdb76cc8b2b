"""Images into WebDataset shards, made smaller on the way where that is wanted: written once, decoded in every epoch.

Photographs of 500 × 375 pixels take a core three milliseconds each, of which most is unpacking pixels that a part of
224 × 224 then averages away. With a shorter side of 320 there is a quarter less of them to unpack, with 256 half.
"""

import hashlib
import io
import json
import multiprocessing
import os
import signal
import tarfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

from flipguard.data.dataset import DataSet, Split
from flipguard.data.files import ImageFiles, open_image, pillow
from flipguard.data.folders import load_image_folder
from flipguard.data.shards import CLASSES, LABEL, OWN, load_webdataset
from flipguard.files import whole_file
from flipguard.types import InputError

FORMS = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n": "png", b"BM": "bmp", b"P6": "ppm"}
"""How files begin that shards may hold as they are (and RIFF….WEBP); any other becomes a JPEG."""
AT_A_TIME = 64
NAMED = 20
"""How many damaged images an error names."""


@dataclass(frozen=True)
class Packing:
    """How images are kept: those to train on with a shorter side of at most `short` pixels, and so many to a shard."""

    short: int | None = None
    quality: int = 90
    per_shard: int = 5000

    def __post_init__(self) -> None:
        if self.short is not None and self.short < 1:
            raise InputError(f"the shorter side must have at least one pixel, not {self.short}.")
        if not 1 <= self.quality <= 95:
            raise InputError(f"the quality of a JPEG lies between 1 and 95, it is {self.quality}.")
        if self.per_shard < 1:
            raise InputError(f"a shard holds at least one image, not {self.per_shard}.")


@dataclass(frozen=True)
class Packed:
    """What there is now."""

    images: int
    shards: int
    bytes: int


def images_in(folder: Path) -> DataSet:
    """A folder of images by class (train/CLASS/…), or of shards, whichever it is."""
    if (folder / "train").is_dir():
        return load_image_folder(folder, allow_missing_classes=True)
    shards = sorted(path.name for path in folder.glob("*.tar"))
    if shards and not (folder / OWN).is_file():
        for name in shards:
            if "train" not in name and "val" not in name:
                raise InputError(
                    f"{folder / name} is neither for train nor for val, by its name: rename it, or move it."
                )
    if shards:
        return load_webdataset(folder)
    raise InputError(f"{folder} has neither a folder train with one folder per class nor shards (*train*.tar).")


def pack(
    data: DataSet,
    out: Path,
    how: Packing | None = None,
    *,
    workers: int | None = None,
    on_shard: Callable[[int, int, str], None] | None = None,
) -> Packed:
    """Every part of a data set of image files as shards in a folder.

    Only images to train on are made smaller. One that is small enough is taken byte for byte, unless it is of a form
    that shards do not hold (GIF, TIFF), which becomes a JPEG. Shards are written whole or not at all, and the same call
    goes on where it was cut off. Damaged images are told of in the end, all at once; the shards that would hold them
    are not written. Samples keep their ids, without the file's extension and dots. `on_shard` hears how
    many shards are there, of how many, and the name of the last.
    """
    how = how or Packing()
    parts = {"train": data.train, "val" if data.validation is None else "test": data.test}
    parts |= {} if data.validation is None else {"validation": data.validation}
    for name, split in parts.items():
        if not isinstance(split.x, ImageFiles):
            raise InputError(f"the {name} part of {data.name} has no image files to pack.")
    keys = {name: _keys(split) for name, split in parts.items()}
    names = [" ".join(name.split()) for name in data.classes]
    _check_names([*names, *(key for each in keys.values() for key in each)])
    if len(set(names)) < len(names):
        raise InputError(f"two classes of {data.name} have the same name but for spaces: rename one of them.")
    total = sum(-(-len(split) // how.per_shard) for split in parts.values())
    _adopt(out, {**vars(how), "samples": _digest(keys, parts), "classes": len(data.classes), "shards": total})
    with whole_file(out / CLASSES) as beside:
        beside.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    written: list[Path] = []
    damaged: list[str] = []
    with _pool(workers) as several:
        for name, split in parts.items():
            for number, first in enumerate(range(0, len(split), how.per_shard)):
                path = out / f"{name}-{number:06d}.tar"
                if not path.exists():
                    rows = range(first, min(first + how.per_shard, len(split)))
                    # Models are judged on what they will meet: other parts stay as they are.
                    own = how if name == "train" else replace(how, short=None)
                    try:
                        _write(path, split, keys[name], rows, own, several)
                    except _Damaged as found:
                        damaged += found.images
                        continue
                written.append(path)
                if on_shard is not None:
                    on_shard(len(written), total, path.name)
    images = sum(len(split) for split in parts.values())
    if damaged:
        raise InputError(_told_of(damaged, images))
    return Packed(images, len(written), sum(path.stat().st_size for path in written))


def _adopt(out: Path, facts: dict[str, Any]) -> None:
    """The folder is ours: new, or begun with the same images in the same way."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        there = json.loads((out / OWN).read_text(encoding="utf-8")) if (out / OWN).exists() else None
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{out / OWN} cannot be read: give an empty folder as --out.") from error
    if there is None and any(out.iterdir()):
        raise InputError(f"{out} holds other things: give an empty folder as --out.")
    if there is not None and there != facts:
        raise InputError(f"{out} was begun with other images or in another way: give an empty folder as --out.")
    for left in out.glob(".*.part"):
        # By a process that was killed.
        left.unlink(missing_ok=True)
    with whole_file(out / OWN) as beside:
        beside.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _keys(split: Split) -> list[str]:
    """Names as shards have them: they end at the first dot, so that others become underscores."""
    keys = []
    for name in split.ids.tolist():
        folder, slash, file = str(name).rpartition("/")
        stem = file.rpartition(".")[0] or file
        keys.append(f"{folder}{slash}{stem.replace('.', '_')}")
    twice = next((key for key, times in Counter(keys).items() if times > 1), None)
    if twice is not None:
        raise InputError(f"two images would both be called {twice} in a shard: rename one of them.")
    return keys


def _check_names(names: Iterable[str]) -> None:
    """Refuses what a shard, or the list of classes, could not be read back with."""
    for name in names:
        if not name or any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
            raise InputError(f"{name!a} is empty, not UTF-8, or has control characters: rename it.")


def _digest(keys: dict[str, list[str]], parts: dict[str, Split]) -> str:
    found = hashlib.sha256()
    for name, split in parts.items():
        found.update(json.dumps([name, keys[name], split.y.tolist()]).encode())
    return found.hexdigest()


class _Damaged(Exception):
    """What is wrong with the images that keep a shard from being written."""

    def __init__(self, images: list[str]) -> None:
        super().__init__(*images)
        self.images = images


def _told_of(damaged: list[str], images: int) -> str:
    """
    >>> print(_told_of(["a.jpg cannot be read."], 7).partition(". ")[0])
    1 of 7 images cannot be packed: a.jpg cannot be read
    """
    named = [each.rstrip(".") for each in damaged[:NAMED]]
    named += [f"{len(damaged) - NAMED:,} more"] if len(damaged) > NAMED else []
    return (
        f"{len(damaged):,} of {images:,} images cannot be packed: {'; '.join(named)}. Put whole ones in their place "
        "and call again, or remove them and give an empty folder as --out."
    )


Ready = tuple[str, bytes] | str
"""An image's extension and bytes, or what is wrong with it."""
Several = Callable[[list[ImageFiles], Packing], Iterator[list[Ready]]]


@contextmanager
def _pool(workers: int | None) -> Iterator[Several]:
    """Within, images are made ready by so many processes, by default one for each core."""
    number = (os.cpu_count() or 1) if workers is None else workers
    if number <= 1:
        yield lambda chunks, how: map(_told, chunks, repeat(how))
        return
    spawned = multiprocessing.get_context("spawn")
    # Ctrl-C is for the parent, which lets them go.
    with ProcessPoolExecutor(number, spawned, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield lambda chunks, how: pool.map(_told, chunks, repeat(how))


def _write(path: Path, split: Split, keys: list[str], rows: range, how: Packing, several: Several) -> None:
    files = split.x
    assert isinstance(files, ImageFiles)
    chunks = [rows[i : i + AT_A_TIME] for i in range(0, len(rows), AT_A_TIME)]
    ready = several([files.select(chunk) for chunk in chunks], how)
    damaged: list[str] = []
    with whole_file(path) as beside, tarfile.open(beside, "w", format=tarfile.PAX_FORMAT) as tar:
        for chunk, done in zip(chunks, ready, strict=True):
            for row, image in zip(chunk, done, strict=True):
                if isinstance(image, str):
                    damaged.append(image)
                    continue
                extension, content = image
                for end, data in ((extension, content), (LABEL, str(int(split.y[row])).encode())):
                    member = tarfile.TarInfo(f"{keys[row]}.{end}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        if damaged:
            raise _Damaged(damaged)


def _told(files: ImageFiles, how: Packing) -> list[Ready]:
    """What a worker gives back: an exception that crosses processes would bring its traceback along."""
    ready: list[Ready] = []
    for row in range(len(files)):
        try:
            ready.append(_small(files, row, how))
        except InputError as error:
            ready.append(str(error))
    return ready


def _small(files: ImageFiles, row: int, how: Packing) -> tuple[str, bytes]:
    """An image's extension and bytes: as they are, unless it is too large or of a form that shards do not hold.

    Each is unpacked once, so that a damaged one is found now and not in the middle of training.
    """
    content = files.content(row)
    image = open_image(io.BytesIO(content), name=files.place(row), max_pixels=files.max_pixels)
    width, height = image.size
    factor = 1.0 if how.short is None else min(1.0, how.short / min(width, height))
    extension = _extension(content)
    if factor == 1 and extension is not None:
        return extension, content
    if factor < 1:
        size = (max(1, round(width * factor)), max(1, round(height * factor)))
        image = image.resize(size, resample=pillow().Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=how.quality)
    return "jpg", file.getvalue()


def _extension(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "webp"
    return next((extension for begin, extension in FORMS.items() if content.startswith(begin)), None)
