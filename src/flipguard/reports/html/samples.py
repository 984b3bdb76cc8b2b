"""What a flipped sample looks like: a thumbnail, a text, or some of its columns."""

import base64
import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flipguard.predictions import Predictions
from flipguard.reports.html.assets import needed
from flipguard.types import InputError

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".JPEG", ".JPG", ".PNG")
THUMBNAIL = 96
"""The longer side of a thumbnail, in pixels; smaller images stay as they are."""
_LOSSLESS = 16
MOST_TEXT = 600
_MOST_NUMBERS = 12
_MOST_PIXELS = 80_000_000


@dataclass(frozen=True)
class Samples:
    """Of each flip in order: a picture as a data URI, and further columns as text. None where there is none."""

    pictures: Sequence[str | None] = ()
    columns: dict[str, list[str | None]] = field(default_factory=dict)


def thumbnail(image: Any) -> str:
    """A Pillow image as a small data URI. A handful of pixels is kept exactly, more are compressed."""
    image = image.convert("RGBA" if image.mode in ("RGBA", "LA", "PA") else "RGB")
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    file = io.BytesIO()
    image.save(file, "WEBP", lossless=max(image.size) <= _LOSSLESS, quality=85, method=4)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"


def pictures_in(folder: str | Path, ids: Sequence[Any]) -> list[str | None]:
    """A thumbnail of each id's file: FOLDER/ID, FOLDER/ID.png and the like, or a file of that name further down.

    An id that leads out of the folder finds nothing.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"--images {folder}: there is no such folder.")
    find = _finder(root.resolve())
    found = [find(str(id_)) for id_ in ids]
    if ids and not any(found):
        raise InputError(
            f"--images {folder}: no file there is named after an id, such as {ids[0]} or {ids[0]}.png. "
            "An id is looked up as a path in the folder, and by its name alone in the folders below."
        )
    opened = needed("PIL.Image").open
    return [None if path is None else _read(opened, path) for path in found]


def _finder(root: Path) -> Callable[[str], Path | None]:
    below: dict[str, Path] | None = None

    def find(name: str) -> Path | None:
        nonlocal below
        for ending in ("", *ENDINGS):
            try:
                path = (root / f"{name}{ending}").resolve()
                if path.is_relative_to(root) and path.is_file():
                    return path
            except (OSError, ValueError):
                # A name too long for the system, or with a NUL in it, is no file's.
                return None
        if below is None:
            images = (p for p in sorted(root.rglob("*")) if p.suffix in ENDINGS and p.is_file())
            below = {key: path for path in images for key in (path.name, path.stem)}
        return below.get(name)

    return find


def _read(opened: Callable[[Path], Any], path: Path) -> str | None:
    """None for a file that cannot be read: one damaged image is no reason to have no report."""
    try:
        # Pillow warns of sizes near its own limit; here they are left out.
        with warnings.catch_warnings(action="ignore"), opened(path) as image:
            return thumbnail(image) if image.width * image.height <= _MOST_PIXELS else None
    except Exception:
        # Pillow's decoders raise OSError, SyntaxError, ValueError, struct.error and more on damaged files.
        return None


def columns_of(sides: Sequence[Predictions], ids: pa.Array, names: Sequence[str]) -> dict[str, list[str | None]]:
    """Columns of the prediction files by id, as text; the new file's where both have one."""
    found: dict[str, list[str | None]] = {}
    for name in names:
        holder = next((p for p in reversed(sides) if name in p.columns), None)
        if holder is None:
            raise InputError(f"--show {name}: neither file has a column '{name}'.")
        table = holder.table(["id", name])
        place = pc.index_in(ids.cast(pa.string()), value_set=table["id"].combine_chunks().cast(pa.string()))
        found[name] = [None if value is None else as_text(value) for value in table[name].take(place).to_pylist()]
    return found


def as_text(value: Any) -> str:
    """A value on one screen: long texts are cut, of a row of numbers the first are shown.

    >>> as_text([0.12345, 2.0]), as_text(list(range(20)))
    ('0.123, 2', '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … (20)')
    """
    if isinstance(value, list | tuple):
        shown = ", ".join(as_text(v) for v in value[:_MOST_NUMBERS])
        return shown if len(value) <= _MOST_NUMBERS else f"{shown}, … ({len(value)})"
    if isinstance(value, float):
        return f"{value:.3g}"
    text = str(value)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def samples_of(data: Any, ids: Sequence[Any]) -> Samples:
    """The samples of a `DataSet` by id, whichever part they are in."""
    place: dict[str, tuple[Any, int]] = {}
    for split in reversed(data.parts().values()):
        place |= {str(id_): (split, row) for row, id_ in enumerate(split.ids.tolist())}
    found = [place.get(str(id_)) for id_ in ids]
    if ids and not any(found):
        first = next(iter(place), "none")
        raise InputError(f"--data: {data.name} has none of the flips' ids, such as {ids[0]}; its own are like {first}.")
    if data.kind == "image":
        return Samples(pictures=list(_images(found)))
    name = "text" if data.kind == "text" else "features"
    return Samples(columns={name: [None if f is None else as_text(_row(*f)) for f in found]})


def _images(found: Sequence[tuple[Any, int] | None]) -> Iterator[str | None]:
    convert = needed("PIL.Image").fromarray
    for sample in found:
        if sample is None:
            yield None
            continue
        split, row = sample
        pixels = split.x.decode(row) if hasattr(split.x, "decode") else split.x[row].numpy()
        yield thumbnail(convert(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)))


def _row(split: Any, row: int) -> Any:
    if isinstance(split.x, tuple):
        return split.x[row]
    if isinstance(split.x, dict):
        return "; ".join(f"{name}: {as_text(values[row].flatten().tolist())}" for name, values in split.x.items())
    return split.x[row].tolist()
