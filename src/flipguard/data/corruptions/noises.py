"""Noise in the sensor: Gaussian, Poisson, salt and pepper."""

import numpy as np
from scipy.special import pdtr

from flipguard.data.corruptions.draws import Draws, Images


def gaussian_noise(x: Images, severity: int, draws: Draws) -> Images:
    """x + σ·n, as in poor light."""
    sigma = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return x + np.float32(sigma) * draws.normal(*x.shape[1:]).astype(np.float32)


def shot_noise(x: Images, severity: int, draws: Draws) -> Images:
    """Poisson(c·x) / c: light comes in c photons at most.

    By the inverse of the distribution function. Pixels have 256 values, so a table of as many rows serves them all.
    """
    photons = (500, 250, 100, 75, 50)[severity - 1]
    value = np.rint(x * 255).astype(np.int64)
    most = photons + 12 * int(np.ceil(np.sqrt(photons))) + 1
    table = pdtr(np.arange(most), photons * np.arange(256)[:, None] / 255)
    # Row v of the table holds v to v + 1, so that the rows one after the other are one sorted list.
    below = np.searchsorted((table + np.arange(256)[:, None]).ravel(), draws.uniform(*x.shape[1:]) + value, "right")
    result: Images = ((below - value * most) / photons).astype(np.float32)
    return result


def impulse_noise(x: Images, severity: int, draws: Draws) -> Images:
    """A share of the values black or white, each as often, as dead pixels or lost bits make them."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    drawn = draws.uniform(*x.shape[1:])
    result: Images = np.where(drawn < share / 2, np.float32(0), np.where(drawn < share, np.float32(1), x))
    return result
