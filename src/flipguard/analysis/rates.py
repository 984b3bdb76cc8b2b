"""Figures of whole comparisons: candidates, a zoo of models, and a parameter that varies."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.comparison.chain import matrix
from flipguard.comparison.result import Figure, Matrix
from flipguard.comparison.run import compare
from flipguard.types import InputError

Pairs = Sequence[tuple[Any, Any]]
"""Predictions of an old and of a new model, for each of the pairs."""


def _known(figure: Figure | None) -> Figure:
    if figure is None or figure.value is None:
        raise InputError("the figure needs labels, and the files have none.")
    return figure


def _with_interval(name: str, x: Sequence[float], figures: Sequence[Figure], **options: Any) -> Series:
    values = [float(figure) for figure in figures]
    low = tuple(value if f.low is None else f.low for value, f in zip(values, figures, strict=True))
    high = tuple(value if f.high is None else f.high for value, f in zip(values, figures, strict=True))
    return Series(name, floats(x), floats(values), low=low, high=high, **options)


def _mean(name: str, x: Sequence[float], figures: Sequence[Sequence[Figure | None]], **options: Any) -> Series:
    """At each x the figures of one or several pairs.

    The interval of a single pair is that of its test samples; several pairs give their mean, the smallest and the
    largest.
    """
    known = [[_known(figure) for figure in each] for each in figures]
    if all(len(each) == 1 for each in known):
        return _with_interval(name, x, [each[0] for each in known], **options)
    values = [[float(figure) for figure in each] for each in known]
    low, high = floats(map(min, values)), floats(map(max, values))
    return Series(name, floats(x), floats(map(fmean, values)), low=low, high=high, **options)


def error_against_flips(updates: Mapping[str, Pairs]) -> Plot:
    """Error against negative flip rate of several ways to update: ELODI (Zhao et al. 2024), Fig. 1b.

    Each has a name and its pairs of an old and a new model: one, or runs by several seeds.
    """
    points: list[Series] = []
    facts: dict[str, float] = {}
    for name, pairs in updates.items():
        found = [compare(old, new, by=()) for old, new in pairs]
        error = fmean(float(_known(c.error_rate_new)) for c in found)
        points.append(_mean(name, [error], [[c.negative_flip_rate for c in found]], kind="points"))
        facts |= {f"NFR of {name}": points[-1].y[0], f"error of {name}": error}
    return Plot(
        "error-against-flips",
        "Error against negative flips",
        "ELODI Fig. 1b",
        (Panel("error of the new model", "negative flip rate", tuple(points)),),
        facts,
    )


def gain_against_flips(zoo: Sequence[Any], **options: Any) -> Plot:
    """Accuracy gained and negative flip rate of every update in a zoo of models: PCT (Yan et al. 2021), Fig. 2.

    Two tables, from the model of a row to that of a column, and both against each other for the updates whose new model
    errs no more than the old one. An update that gains nothing is there, too: the same network trained twice. The
    options are as in `flipguard.matrix`.
    """
    found = matrix(zoo, **options)
    cells = [(i, j) for i in range(len(found.versions)) for j in range(len(found.versions)) if i != j]
    gains = [float(found.error_rate[i]) - float(found.error_rate[j]) for i, j in cells]
    rates = [float(found.negative_flip_rate[i][j]) for i, j in cells]
    updates = sorted((gain, rate, f"{i + 1}→{j + 1}") for gain, rate, (i, j) in zip(gains, rates, cells, strict=True))
    x, y, names = zip(*(update for update in updates if update[0] >= 0), strict=True)
    facts = {f"error of {i + 1}: {name}": float(found.error_rate[i]) for i, name in enumerate(found.versions)}
    facts |= {"smallest NFR": min(rates), "largest NFR of an update that gains": max(y)}
    return Plot(
        "gain-against-flips",
        "What an update gains and what it breaks",
        "PCT Fig. 2",
        (
            _table("accuracy gained, %", found.versions, cells, gains),
            _table("negative flip rate, %", found.versions, cells, rates),
            Panel("accuracy gained", "negative flip rate", (Series("updates", x, y, "points", text=names),)),
        ),
        facts,
    )


def _table(title: str, names: Sequence[str], cells: Sequence[tuple[int, int]], values: Sequence[float]) -> Panel:
    texts = tuple(f"{100 * value:.1f}" for value in values)
    rows, columns = zip(*cells, strict=True)
    series = Series(title, floats(columns), floats(rows), "cells", z=floats(values), text=texts)
    return Panel("new", "old", (series,), title, ticks=tuple(f"{i + 1} {name}" for i, name in enumerate(names)))


def over_the_chain(chain: Matrix) -> Plot:
    """Error of each version, and its negative flip rate against every earlier one: ELODI's Table 5 as a picture."""
    places = range(len(chain.versions))
    names = tuple(f"{place} {version}" for place, version in enumerate(chain.versions, start=1))
    errors = _with_interval("error", [float(place + 1) for place in places], chain.error_rate, text=names)
    against = [
        _with_interval(
            f"against {names[old]}",
            [float(new + 1) for new in places[old + 1 :]],
            [chain.negative_flip_rate[old][new] for new in places[old + 1 :]],
        )
        for old in places[:-1]
    ]
    return Plot(
        "over-the-chain",
        f"A chain of {len(places)} versions: {chain.sum_negative_flips:,} negative flips along it",
        "ELODI Table 5",
        (
            Panel("version", "error", (errors,), x_whole=True),
            Panel("version", "negative flip rate", tuple(against), x_whole=True),
        ),
        {
            "negative flips along the chain": float(chain.sum_negative_flips),
            "mean pairwise NFR": float(chain.mean_pairwise_negative_flip_rate or 0.0),
        },
    )


def against_parameter(updates: Mapping[float, Pairs], *, name: str = "parameter") -> Plot:
    """Error, flips, churn and entropy of updates against a number that sets them apart.

    A loss weight (ELODI, Fig. 6a) or an ensemble's size (Fig. 6b): each value has its pairs of an old and a new model.
    The last panel is the trade-off of accuracy and churn, from old to new.
    """
    values = sorted(updates)
    found = [[compare(old, new, by=()) for old, new in updates[value]] for value in values]

    def series(title: str, field: str, **options: Any) -> Series:
        return _mean(title, values, [[getattr(c, field) for c in each] for each in found], **options)

    errors = (series("new", "error_rate_new"), series("old", "error_rate_old", dashed=True))
    panels = [Panel(name, "error", errors)]
    wanted = {"negative flip rate": "negative_flip_rate", "churn": "churn"}
    if all(c.predictive_entropy_new is not None for each in found for c in each):
        wanted["entropy of the new model"] = "predictive_entropy_new"
    panels += [Panel(name, title, (series(title, field),)) for title, field in wanted.items()]
    churn = panels[2].series[0].y
    accuracy = floats(1 - error for error in errors[0].y)
    trade = Series("models", churn, accuracy, "points", text=tuple(f"{value:g}" for value in values))
    panels.append(Panel("churn", "accuracy", (trade,)))
    facts = {f"NFR at {value:g}": rate for value, rate in zip(values, panels[1].series[0].y, strict=True)}
    facts |= {f"error at {value:g}": error for value, error in zip(values, errors[0].y, strict=True)}
    return Plot("against-parameter", f"What {name} does", "ELODI Fig. 6", tuple(panels), facts)
