"""What transmission does to an image: contrast, stretching, coarse pixels, JPEG."""

import importlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import ndimage

from flipguard.data.corruptions.draws import Draws, Floats, Images
from flipguard.types import MissingExtra


def contrast(x: Images, severity: int, draws: Draws) -> Images:
    """Every channel drawn towards its own mean."""
    kept = np.float32((0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1])
    mean = x.mean(axis=(1, 2), keepdims=True)
    result: Images = (x - mean) * kept + mean
    return result


def elastic_transform(x: Images, severity: int, draws: Draws) -> Images:
    """Three points moved, the image with them, and then each pixel by a smooth random field; in shares of its side."""
    amplitude, smoothness, shift = (
        (0.0, 0.0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[severity - 1]
    height, width = x.shape[1:3]
    side = min(height, width)
    moved = _affine(x, draws.uniform(3, 2, low=-shift * side, high=shift * side))
    if not amplitude:
        return moved
    fields = draws.uniform(2, height, width, low=-1, high=1)
    sigma = smoothness * side
    smooth = ndimage.gaussian_filter(fields, (0, 0, sigma, sigma), mode="reflect", truncate=3) * (amplitude * side)
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    return _sampled(moved, rows + smooth[:, 0], columns + smooth[:, 1])


def _affine(x: Images, moves: Floats) -> Images:
    """The image stretched so that three points of its middle go where `moves` (B, 3, 2) takes them."""
    height, width = x.shape[1:3]
    middle, reach = np.array([height // 2, width // 2]), min(height, width) // 3
    points = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]], float)
    goals = np.concatenate([points + moves, np.ones((len(x), 3, 1))], axis=2)
    # From where a pixel goes back to where it came from: one linear map per image.
    back = np.linalg.solve(goals, np.broadcast_to(points, (len(x), 3, 2)))
    rows, columns = np.mgrid[:height, :width]
    places = np.stack([rows, columns, np.ones_like(rows)], axis=-1) @ back[:, None]
    return _sampled(x, places[..., 0], places[..., 1])


def _sampled(x: Images, rows: Floats, columns: Floats) -> Images:
    """Pixels at places (B, H, W) between others, by straight lines; the image is mirrored beyond its edge."""
    image = np.arange(len(x))[:, None, None]
    (top, down), (left, right) = (np.divmod(part, 1) for part in (rows, columns))
    total = np.zeros_like(x)
    for row, row_share in ((top, 1 - down), (top + 1, down)):
        for column, column_share in ((left, 1 - right), (left + 1, right)):
            share = (row_share * column_share)[..., None].astype(np.float32)
            total += share * x[image, _mirrored(row, x.shape[1]), _mirrored(column, x.shape[2])]
    return total


def _mirrored(place: Floats, size: int) -> Any:
    """Whole places brought into 0 … size-1 by reflection, the edge pixel not repeated."""
    around = np.abs(place.astype(np.int64)) % (2 * size - 2)
    return np.where(around < size, around, 2 * size - 2 - around)


def pixelate(x: Images, severity: int, draws: Draws) -> Images:
    """Made smaller and large again, each pixel the mean of what it covers."""
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    box = _pillow().Resampling.BOX

    def coarse(image: Any) -> Any:
        small = image.resize([int(size * share) for size in image.size], box)
        return small.resize(image.size, box)

    return _through_pillow(x, coarse)


def jpeg_compression(x: Images, severity: int, draws: Draws) -> Images:
    """Written as JPEG at a low quality, and read again."""
    quality = (80, 65, 58, 50, 40)[severity - 1]
    pillow = _pillow()

    def compressed(image: Any) -> Any:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return pillow.open(file)

    return _through_pillow(x, compressed)


def _through_pillow(x: Images, change: Callable[[Any], Any]) -> Images:
    grey = x.shape[-1] == 1
    values = np.rint(x * 255).astype(np.uint8)
    pillow = _pillow()
    done = [np.asarray(change(pillow.fromarray(image[..., 0] if grey else image))) for image in values]
    result: Images = np.stack(done).reshape(x.shape).astype(np.float32) / np.float32(255)
    return result


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise MissingExtra("pixelate and jpeg_compression need Pillow: pip install 'flipguard[images]'") from error
