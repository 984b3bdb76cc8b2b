"""Weather: snow, frost, fog, and a bright day."""

import numpy as np

from flipguard.data.corruptions.blurs import smeared, zoomed
from flipguard.data.corruptions.draws import Draws, Floats, Images

_GREY = np.array([0.299, 0.587, 0.114], np.float32)


def snow(x: Images, severity: int, draws: Draws) -> Images:
    """Flakes, blurred as they fall, over a whitened image; the layer and its half turn."""
    mean, spread, zoom, threshold, radius, sigma, kept = (
        (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
        (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
    )[severity - 1]
    flakes = (mean + spread * draws.normal(*x.shape[1:3], 1)).astype(np.float32)
    flakes = zoomed(flakes, zoom)
    flakes = np.clip(np.where(flakes < threshold, np.float32(0), flakes), 0, 1)
    layer = smeared(flakes, radius, sigma, draws.uniform(low=-135, high=-45))
    grey = x @ _GREY[:, None] if x.shape[-1] == 3 else x
    white = kept * x + (1 - kept) * np.maximum(x, 1.5 * grey + 0.5)
    result: Images = white + layer + layer[:, ::-1, ::-1]
    return result


def frost(x: Images, severity: int, draws: Draws) -> Images:
    """A weakened image under bright crystals."""
    image, ice = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    return np.float32(image) * x + np.float32(ice) * _crystals(x, draws)


def _crystals(x: Images, draws: Draws) -> Images:
    """Ridges of fractal noise, smeared into needles, over a pale ground: (B, H, W, 1)."""
    height, width = x.shape[1:3]
    ridges = 1 - np.abs(2 * plasma(draws, height, width, 1.5) - 1)
    needles = smeared((ridges**2)[..., None].astype(np.float32), 4, 3.0, draws.uniform(low=0, high=180))
    needles /= np.maximum(needles.max(axis=(1, 2, 3), keepdims=True), np.float32(1e-6))
    result: Images = np.float32(0.3) + np.float32(0.7) * needles
    return result


def fog(x: Images, severity: int, draws: Draws) -> Images:
    """Fractal clouds added, and the whole scaled back to the image's own brightest value."""
    thickness, decay = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))[severity - 1]
    top = x.max(axis=(1, 2, 3), keepdims=True)
    clouds = plasma(draws, x.shape[1], x.shape[2], decay)[..., None].astype(np.float32)
    result: Images = (x + np.float32(thickness) * clouds) * top / (top + np.float32(thickness))
    return result


def brightness(x: Images, severity: int, draws: Draws) -> Images:
    """More value at the same hue and saturation, by which all channels grow in proportion; black becomes grey."""
    more = np.float32((0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1])
    value = x.max(axis=-1, keepdims=True)
    brighter = np.minimum(value + more, 1)
    result: Images = np.where(value > 0, x * brighter / np.where(value > 0, value, 1), brighter)
    return result


def plasma(draws: Draws, height: int, width: int, decay: float) -> Floats:
    """Clouds in [0, 1], (B, H, W), by diamonds and squares on a torus: Fournier et al. 1982.

    Each point half-way between four known ones is their mean and a random step; both the step's range and its scale
    shrink by `decay` from one grid to the next finer one.
    """
    size = 1 << max(height - 1, width - 1, 1).bit_length()
    grid = np.zeros((len(draws), size, size))
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2
        squares = _around(grid[:, ::step, ::step], ((0, 0), (-1, 0), (0, -1), (-1, -1)))
        grid[:, half::step, half::step] = _wobbled(squares, wobble, draws)
        corners, centres = grid[:, ::step, ::step], grid[:, half::step, half::step]
        across = _around(corners, ((0, 0), (0, -1))) + _around(centres, ((0, 0), (1, 0)))
        grid[:, ::step, half::step] = _wobbled(across, wobble, draws)
        along = _around(corners, ((0, 0), (-1, 0))) + _around(centres, ((0, 0), (0, 1)))
        grid[:, half::step, ::step] = _wobbled(along, wobble, draws)
        step, wobble = half, wobble / decay
    cut = grid[:, :height, :width]
    low = grid.min(axis=(1, 2), keepdims=True)
    result: Floats = (cut - low) / (grid.max(axis=(1, 2), keepdims=True) - low)
    return result


def _around(grid: Floats, shifts: tuple[tuple[int, int], ...]) -> Floats:
    """The sum of a point and its neighbours, on a torus."""
    return np.sum([np.roll(grid, shift, axis=(1, 2)) for shift in shifts], axis=0)


def _wobbled(sums: Floats, wobble: float, draws: Draws) -> Floats:
    """Means of four, and a random step."""
    return sums / 4 + wobble * draws.uniform(*sums.shape[1:], low=-wobble, high=wobble)
