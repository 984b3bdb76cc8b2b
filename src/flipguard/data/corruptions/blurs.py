"""Blurs: out of focus, behind frosted glass, in motion, zooming."""

import numpy as np
from scipy import ndimage

from flipguard.data.corruptions.draws import Draws, Floats, Images


def defocus_blur(x: Images, severity: int, draws: Draws) -> Images:
    """The mean over a disk of radius r, the disk's edge softened by a Gaussian of width σ."""
    radius, sigma = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))[severity - 1]
    rows, columns = np.mgrid[-2:3, -2:3]
    disk = ((rows**2 + columns**2) <= radius**2).astype(np.float64)
    soft = np.exp(-(np.array([-1.0, 0.0, 1.0]) ** 2) / (2 * sigma**2))
    soft /= soft.sum()
    kernel = ndimage.correlate(disk / disk.sum(), np.outer(soft, soft), mode="constant")
    result: Images = ndimage.correlate(x, kernel[None, :, :, None].astype(np.float32), mode="mirror")
    return result


def glass_blur(x: Images, severity: int, draws: Draws) -> Images:
    """Blurred, then pixels replaced by a neighbour, above or to the left or both or itself, then blurred again.

    The paper speaks of a shuffle; the released code's swap writes one of the two values into both places, and CIFAR-C's
    images are made by it. It leaves the first two rows and columns alone, and so does this.
    """
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    mixed = gaussian(x, sigma)
    height, width = x.shape[1:3]
    image, rows, columns = np.ogrid[: len(x), 2:height, 2:width]
    for _ in range(rounds):
        up, left = (draws.uniform(2, height - 2, width - 2) < 0.5).astype(np.int64).swapaxes(0, 1)
        mixed[:, 2:, 2:] = mixed[image, rows - up, columns - left]
    return gaussian(mixed, sigma)


def motion_blur(x: Images, severity: int, draws: Draws) -> Images:
    """Smeared along a direction within 45° of the horizontal."""
    radius, sigma = ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))[severity - 1]
    return smeared(x, radius, sigma, draws.uniform(low=-45, high=45))


def zoom_blur(x: Images, severity: int, draws: Draws) -> Images:
    """The mean of the image and of its enlargements by 0%, 1%, 2%, … about the centre."""
    steps = (7, 12, 16, 21, 26)[severity - 1]
    total = x.copy()
    for step in range(steps):
        total += zoomed(x, 1 + 0.01 * step)
    return total / np.float32(steps + 1)


def gaussian(x: Images, sigma: float) -> Images:
    """(B, H, W, channels) smoothed along rows and columns; pixels beyond the edge are as those on it."""
    result: Images = ndimage.gaussian_filter(x, (0, sigma, sigma, 0), mode="nearest")
    return result


def smeared(x: Images, radius: int, sigma: float, degrees: Floats) -> Images:
    """Each pixel mixed with those behind it on a line, weights falling off as half a Gaussian: degrees (B,).

    Offsets are whole pixels; pixels beyond the edge are as those on it.
    """
    far = np.arange(2 * radius + 1)
    weights = np.exp(-(far**2) / (2 * sigma**2))
    weights = weights[weights > 1e-6] / weights.sum()
    turned = np.deg2rad(degrees)[:, None]
    down, right = (
        np.ceil(far[: len(weights)] * part - 0.5).astype(np.int64) for part in (np.sin(turned), np.cos(turned))
    )
    image = np.arange(len(x))[:, None, None]
    rows, columns = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])
    total = np.zeros_like(x)
    for place, weight in enumerate(weights):
        row = np.clip(rows + down[:, place, None, None], 0, x.shape[1] - 1)
        column = np.clip(columns + right[:, place, None, None], 0, x.shape[2] - 1)
        total += np.float32(weight) * x[image, row, column]
    return total


def zoomed(x: Images, factor: float) -> Images:
    """The middle 1/factor of each image at the size of the whole, pixels between others by a straight line."""
    vertical, horizontal = (_enlargement(size, factor) for size in x.shape[1:3])
    # (rows, H) · (B, H, W, channels) · (W, columns): both directions are linear maps of one axis.
    result: Images = np.einsum("rh,bhwc,kw->brkc", vertical, x, horizontal, optimize=True)
    return result


def _enlargement(size: int, factor: float) -> Images:
    """(size, size): row i holds the weights of the pixels that pixel i of the enlarged axis lies between."""
    cut = int(np.ceil(size / factor))
    large = round(cut * factor)
    start = (size - cut) // 2
    place = (np.arange(size) + (large - size) // 2) * ((cut - 1) / (large - 1))
    left = np.minimum(place.astype(np.int64), cut - 2)
    matrix = np.zeros((size, size), np.float32)
    matrix[np.arange(size), start + left] = 1 - (place - left)
    matrix[np.arange(size), start + left + 1] = place - left
    return matrix
