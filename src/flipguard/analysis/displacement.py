"""How far logits move between two ensembles, and the normal law that says how far (ELODI, Eq. 2 and 4)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flipguard.analysis.members import Members
from flipguard.analysis.plots import Panel, Plot, Series, floats, histogram
from flipguard.types import InputError

Floats = npt.NDArray[np.float64]
_SIMULATED = 4000
_BINS = 30


def drawn_norms(old: Floats, new: Floats, size: int, draws: int, seed: int = 0) -> Floats:
    """(M, C), (M', C) -> (draws,): norms of the displacement between random `size`-ensembles of each half."""
    rng = np.random.default_rng(seed)
    means = [
        np.stack([half[rng.choice(len(half), size, replace=False)].mean(axis=0) for _ in range(draws)])
        for half in (old, new)
    ]
    norms: Floats = np.linalg.norm(means[0] - means[1], axis=1)
    return norms


def simulated_norms(old: Floats, new: Floats, size: int, *, centred: bool, draws: int, seed: int = 0) -> Floats:
    r"""(M, C), (M', C) -> (draws,): norms of $\mathcal N(\Delta\mu, (\Sigma_1 + \Sigma_2)/m)$.

    Mean and covariance are those of the single models; `size` 1 is the fit, a larger one the extrapolation of ELODI
    (Zhao et al. 2024), Fig. 5. `centred` takes the mean for 0, as it is between models of one architecture (Eq. 4).
    A sum of the deviations, weighted by normal numbers, has that covariance: no matrix is made, none need be regular.
    Where the mean is that of the members themselves, an ensemble drawn from them without replacement spreads around it
    by the share 1 - m/M less, which the paper's 128 members make negligible and a dozen do not.
    """
    rng = np.random.default_rng(seed)
    shift = 0.0 if centred else old.mean(axis=0) - new.mean(axis=0)
    spread = np.zeros((draws, old.shape[1]))
    for half in (old, new):
        deviation = half - half.mean(axis=0)
        left = 1.0 if centred else 1.0 - size / len(half)
        spread += rng.normal(size=(draws, len(half))) @ deviation * np.sqrt(left / ((len(half) - 1) * size))
    norms: Floats = np.linalg.norm(shift + spread, axis=1)
    return norms


def law_distance(
    old: Floats, new: Floats, size: int, *, centred: bool, law_size: int | None = None, seed: int = 0
) -> float:
    """(M, N, C), (M', N, C): the Kolmogorov–Smirnov distance between the law and real ensembles, over all samples.

    Members are dealt into disjoint ensembles of `size`, so that no pair shares one. Where a pair's norm stands among
    the simulated norms of its sample is uniform under the law, whatever the sample's own scale; the distance is that of
    all these places from the uniform distribution. 0 is perfect, 1 is the worst. `law_size` is what the law divides the
    covariance by: another number than `size` is another law, which the ensembles can refute.
    """
    pairs = min(len(old), len(new)) // size
    if pairs < 1:
        raise InputError(f"ensembles of {size} need as many members on each side, there are {len(old)} and {len(new)}.")
    places = []
    for sample in range(old.shape[1]):
        first, second = old[:, sample], new[:, sample]
        divisor = law_size or size
        law = simulated_norms(first, second, divisor, centred=centred, draws=_SIMULATED, seed=seed + sample)
        law.sort()
        means = [half[: pairs * size].reshape(pairs, size, -1).mean(axis=1) for half in (first, second)]
        places.append(np.searchsorted(law, np.linalg.norm(means[0] - means[1], axis=1)) / _SIMULATED)
    ordered = np.sort(np.concatenate(places))
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(ordered - steps[1:]).max(), np.abs(ordered - steps[:-1]).max()))


def displacement_norms(
    old: Members,
    new: Members,
    *,
    samples: Sequence[int] = (0,),
    sizes: Sequence[int] = (1, 4),
    centred: bool = False,
    of: str = "logit",
    seed: int = 0,
) -> Plot:
    """Norms of a sample's displacement between random ensembles, with the fitted and the extrapolated law.

    ELODI (Zhao et al. 2024), Fig. 5, 9 and 10; on features that BCT has aligned, Fig. 12. `old` and `new` are two
    halves of one architecture's members (`centred`), or members of two architectures: then a line stands at the norm of
    the means' displacement, which no ensemble's size takes away. A panel for each sample.
    """
    largest = min(len(old.logits), len(new.logits))
    if largest < 2:
        raise InputError("the law is fitted to how members differ: it needs at least two on each side.")
    for size in sizes:
        if size > largest:
            raise InputError(
                f"an ensemble of {size} cannot be drawn from {largest} members: give more, or smaller sizes."
            )
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for sample in samples:
        series, found = _norms(old.logits[:, sample], new.logits[:, sample], sizes, centred=centred, seed=seed)
        name = str(old.ids[sample])
        panels.append(Panel(f"norm of the {of} displacement", "share of draws", series, name))
        facts |= {fact if len(samples) == 1 else f"{fact}, {name}": value for fact, value in found.items()}
    title = f"{of.capitalize()} displacement between random ensembles"
    source = "ELODI Fig. 12" if of == "feature" else f"ELODI Fig. {'5a, 9' if centred else '5b, 10'}"
    return Plot("displacement-norms", title, source, tuple(panels), facts)


def _norms(
    first: Floats, second: Floats, sizes: Sequence[int], *, centred: bool, seed: int
) -> tuple[tuple[Series, ...], dict[str, float]]:
    series, facts = [], {}
    top = simulated_norms(first, second, min(sizes), centred=centred, draws=_SIMULATED, seed=seed).max()
    edges = np.linspace(0, top, _BINS + 1)
    for colour, size in enumerate(sizes):
        real = drawn_norms(first, second, size, 1000, seed)
        law = simulated_norms(first, second, size, centred=centred, draws=_SIMULATED, seed=seed)
        middles, density = floats((edges[1:] + edges[:-1]) / 2), histogram("", law, edges).y
        kind = "fitted" if size == 1 else "extrapolated"
        series += [
            histogram(f"{size}× drawn", real, edges, colour=colour, faint=True),
            Series(f"{size}× {kind}", middles, density, colour=colour, dashed=size != 1),
        ]
        facts[f"mean norm, {size}× drawn"] = float(real.mean())
        facts[f"mean norm, {size}× law"] = float(law.mean())
    if not centred:
        rest = float(np.linalg.norm(first.mean(axis=0) - second.mean(axis=0)))
        facts["norm of the means' displacement"] = rest
        series.append(Series("of the means", (rest, rest), (0.0, max(series[-1].y)), colour=6, dashed=True))
    return tuple(series), facts
