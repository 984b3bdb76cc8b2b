"""Where a sample's displacement falls in a plane, as a density: of single models and of ensembles."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flipguard.analysis.members import Members
from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.types import InputError

Floats = npt.NDArray[np.float64]
_DRAWS = 1000
_GRID = 33
_MARGIN = 0.15
_RIDGE = 1e-3


def displacement_density(
    old: Members,
    new: Members,
    *,
    samples: Sequence[int] = (0,),
    sizes: Sequence[int] = (1, 3),
    of: str = "logit",
    seed: int = 0,
) -> Plot:
    """The density of a sample's displacement in two numbers, between singles and between ensembles.

    ELODI (Zhao et al. 2024), Fig. 3d and 8; on two-dimensional features, Fig. 11d. A panel for each sample and size, a
    sample's panels over the same plane. Of logits the two classes are taken that have the largest mean. `spread` is the
    mean standard deviation of the two numbers, which the law lets shrink by the root of the size.
    """
    largest = min(len(old.logits), len(new.logits))
    for size in sizes:
        if size > largest:
            raise InputError(f"an ensemble of {size} cannot be drawn from {largest} members.")
    if min(old.logits.shape[2], new.logits.shape[2]) < 2:
        raise InputError(f"a plane needs at least 2 {of}s.")
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for sample in samples:
        first, second = old.logits[:, sample], new.logits[:, sample]
        pair = np.argsort(-(first.mean(axis=0) + second.mean(axis=0)))[:2] if of == "logit" else np.arange(2)
        moved = {size: _moved(first[:, pair], second[:, pair], size, seed) for size in sizes}
        grid = _plane(np.concatenate(list(moved.values())))
        axis, name = "class" if of == "logit" else of, str(old.ids[sample])
        for size, draws in moved.items():
            found = kernel_density(draws, *grid)
            series = Series(f"{size}×", floats(grid[0]), floats(grid[1]), "density", z=floats(found.flat))
            across, up = (f"displacement, {axis} {number}" for number in pair)
            panels.append(Panel(across, up, (series,), f"{name}, {size}×", equal=True))
            fact = f"spread, {size}×" if len(samples) == 1 else f"spread, {size}×, {name}"
            facts[fact] = float(draws.std(axis=0).mean())
    title = f"Density of a sample's {of} displacement"
    source = "ELODI Fig. 3d, 8" if of == "logit" else "ELODI Fig. 11d"
    columns = len(sizes) * (2 if len(samples) > 1 and len(sizes) < 3 else 1)
    return Plot("displacement-density", title, source, tuple(panels), facts, columns)


def _moved(first: Floats, second: Floats, size: int, seed: int) -> Floats:
    """(M, 2), (M', 2) -> (draws, 2): displacements between random `size`-ensembles of each side."""
    rng = np.random.default_rng(seed)
    picks = [
        np.stack([half[rng.choice(len(half), size, replace=False)].mean(axis=0) for _ in range(_DRAWS)])
        for half in (first, second)
    ]
    moved: Floats = picks[1] - picks[0]
    return moved


def _plane(points: Floats) -> tuple[Floats, Floats]:
    """Both axes of a square grid around the points."""
    low, high = points.min(axis=0), points.max(axis=0)
    reach = max((0.5 + _MARGIN) * float((high - low).max()), 1e-6)
    across, up = (np.linspace(middle - reach, middle + reach, _GRID) for middle in (low + high) / 2)
    return across, up


def kernel_density(points: Floats, across: Floats, up: Floats) -> Floats:
    r"""(N, 2) points, (K,) and (L,) axes of a grid -> (L, K): a Gaussian kernel estimate of their density.

    $\hat f(u) = \frac1N \sum_i \mathcal N(u; x_i, h^2\hat\Sigma)$ with $h = N^{-1/6}$, Scott's rule in two dimensions,
    as the paper estimates its densities (section 3.3). Two classes' logits can move along one line: a thousandth of the
    variance keeps the kernel regular there.
    """
    count = len(points)
    covariance = np.cov(points.T) * count ** (-1 / 3)
    covariance += np.eye(2) * (_RIDGE * np.trace(covariance) / 2 + 1e-12)
    root = np.linalg.inv(np.linalg.cholesky(covariance))
    plane = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    white, centres = plane @ root.T, points @ root.T
    apart = (white**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * white @ centres.T
    density: Floats = np.exp(-np.maximum(apart, 0) / 2).mean(axis=1) * np.linalg.det(root) / (2 * np.pi)
    return density.reshape(len(up), len(across))
