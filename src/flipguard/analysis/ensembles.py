"""What becomes of error and flips as ensembles grow, and which samples flip."""

from collections.abc import Sequence

import numpy as np

from flipguard.analysis.members import Logits, Members
from flipguard.analysis.plots import Panel, Plot, Series, floats, histogram
from flipguard.metrics.scores import predictive_entropy_per_sample, rank_per_sample
from flipguard.types import InputError


def _dealt(members: Members, size: int) -> Logits:
    """(K, N, C): the mean logits of K disjoint ensembles of a size."""
    count = len(members.logits) // size
    if not count:
        raise InputError(f"an ensemble of {size} needs as many members, there are {len(members.logits)}.")
    found: Logits = members.logits[: count * size].reshape(count, size, *members.logits.shape[1:]).mean(axis=1)
    return found


def ensemble_size(old: Members, new: Members, *, sizes: Sequence[int] = (1, 2, 4)) -> Plot:
    """Error and negative flip rate against the number of members, both sides being ensembles.

    ELODI (Zhao et al. 2024), Fig. 2; PCT (Yan et al. 2021), Fig. 3. Members are dealt into disjoint ensembles; the
    marks span all pairs of an old and a new one.
    """
    rates: dict[str, list[tuple[float, float, float]]] = {"error, old": [], "error, new": [], "negative flip rate": []}
    for size in sizes:
        wrong_old, wrong_new = (members.errors(_dealt(members, size)) for members in (old, new))
        flips = (~wrong_old[:, None] & wrong_new[None]).mean(axis=2)
        for name, values in zip(rates, (wrong_old.mean(axis=1), wrong_new.mean(axis=1), flips), strict=True):
            rates[name].append((float(values.mean()), float(values.min()), float(values.max())))
    series = []
    for name, found in rates.items():
        mean, low, high = (tuple(column) for column in zip(*found, strict=True))
        series.append(Series(name, floats(sizes), mean, "line", low, high, dashed=name == "error, old"))
    facts = {f"NFR, {size}×": found[0] for size, found in zip(sizes, rates["negative flip rate"], strict=True)}
    return Plot(
        "ensemble-size",
        "Error and flips against the size of the ensembles",
        "ELODI Fig. 2; PCT Fig. 3",
        (
            Panel("members", "error", tuple(series[:2])),
            Panel("members", "negative flip rate", tuple(series[2:])),
        ),
        facts,
    )


def wrong_class_ranks(old: Members, new: Members, *, sizes: Sequence[int] = (1, 4), most: int = 10) -> Plot:
    """Where the new, wrong class of a negative flip stood in the old logits: ELODI (Zhao et al. 2024), Fig. 4."""
    series, facts = [], {}
    for size in sizes:
        ranks = []
        for before, after in zip(_dealt(old, size), _dealt(new, size), strict=False):
            flipped = ~old.errors(before) & new.errors(after)
            ranks.append(rank_per_sample(before[flipped], after[flipped].argmax(axis=1)))
        found = np.concatenate(ranks)
        share = [float((found == rank).mean()) if len(found) else 0.0 for rank in range(2, most + 1)]
        series.append(Series(f"{size}×", floats(range(2, most + 1)), tuple(share)))
        facts[f"second, {size}×"] = share[0]
    return Plot(
        "wrong-class-ranks",
        "Rank of the flips' wrong class in the old model",
        "ELODI Fig. 4",
        (Panel("rank", "share of negative flips", tuple(series)),),
        facts,
    )


def uncertainty_of_flips(old: Members, new: Members) -> Plot:
    """Uncertainty of the samples that flip between two singles, and of all others: PCT (Yan et al. 2021), Fig. 4.

    The uncertainty is the entropy of the mean prediction of all other members, who have no part in the flips.
    """
    rest = np.concatenate([old.logits[1:], new.logits[1:]])
    if not len(rest):
        raise InputError("the uncertainty comes from further members: pass at least two on one side.")
    shifted = np.exp(rest - rest.max(axis=2, keepdims=True))
    mean = (shifted / shifted.sum(axis=2, keepdims=True)).mean(axis=0)
    entropy = predictive_entropy_per_sample(np.log(np.maximum(mean, np.finfo(np.float64).tiny)))
    flipped = ~old.errors(old.logits[0]) & new.errors(new.logits[0])
    edges = np.linspace(0, np.log(mean.shape[1]), 21)
    parts = {"negative flips": entropy[flipped], "other samples": entropy[~flipped]}
    return Plot(
        "uncertainty-of-flips",
        "Uncertainty of the samples that flip",
        "PCT Fig. 4",
        (
            Panel(
                "entropy of the mean prediction",
                "share",
                tuple(histogram(name, values, edges) for name, values in parts.items()),
                y_log=True,
            ),
        ),
        {f"mean, {name}": float(values.mean()) for name, values in parts.items() if len(values)},
    )


def logit_arrows(old: Members, new: Members, *, sizes: Sequence[int] = (1, 3), most: int = 120) -> Plot:
    """Where the logits of two-class samples go from an old to a new model: ELODI (Zhao et al. 2024), Fig. 3a and 3b.

    Without two classes the two are taken that old and new confuse most, and only their samples are shown.
    """
    first, second = _two_classes(old, new)
    rows = np.flatnonzero((old.label == first) | (old.label == second))[:most]
    panels, facts = [], {}
    for size in sizes:
        before, after = (_dealt(members, size)[0][rows][:, [first, second]] for members in (old, new))
        label = (old.label[rows] == second).astype(np.int64)
        right = [logits.argmax(axis=1) == label for logits in (before, after)]
        kinds = {
            "consistent": right[0] == right[1],
            "positive flips": ~right[0] & right[1],
            "negative flips": right[0] & ~right[1],
        }
        arrows = [
            Series(
                name,
                floats(before[k, 0]),
                floats(before[k, 1]),
                "arrows",
                x2=floats(after[k, 0]),
                y2=floats(after[k, 1]),
            )
            for name, k in kinds.items()
            if k.any()
        ]
        panels.append(
            Panel(f"logit of class {first}", f"logit of class {second}", tuple(arrows), f"{size}×", equal=True)
        )
        facts[f"negative flips, {size}×"] = float(kinds["negative flips"].sum())
        facts[f"mean displacement, {size}×"] = float(np.linalg.norm(after - before, axis=1).mean())
    return Plot("logit-arrows", "Two-class logits, old to new", "ELODI Fig. 3a, 3b", tuple(panels), facts)


def _two_classes(old: Members, new: Members) -> tuple[int, int]:
    classes = old.logits.shape[2]
    if classes == 2:
        return 0, 1
    mixed = np.zeros((classes, classes), np.int64)
    for members in (old, new):
        said = members.logits.argmax(axis=2)
        np.add.at(mixed, (np.broadcast_to(members.label, said.shape), said), 1)
    both = np.triu(mixed + mixed.T, 1)
    pair = np.unravel_index(int(both.argmax()), both.shape)
    return int(pair[0]), int(pair[1])
