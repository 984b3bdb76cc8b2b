"""Figures of whole comparisons: candidates, a zoo of models, and a parameter that varies."""

from collections.abc import Mapping, Sequence
from typing import Any

from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.comparison.chain import matrix
from flipguard.comparison.result import Comparison, Figure
from flipguard.comparison.run import compare
from flipguard.types import InputError


def _title(comparison: Comparison) -> str:
    return " ".join(filter(None, (comparison.new.model, comparison.new.version))) or comparison.new.name


def _known(figure: Figure | None) -> Figure:
    if figure is None or figure.value is None:
        raise InputError("the figure needs labels, and the files have none.")
    return figure


def _with_interval(name: str, x: Sequence[float], figures: Sequence[Figure], **options: Any) -> Series:
    values = [float(figure) for figure in figures]
    low = tuple(value if f.low is None else f.low for value, f in zip(values, figures, strict=True))
    high = tuple(value if f.high is None else f.high for value, f in zip(values, figures, strict=True))
    return Series(name, floats(x), floats(values), low=low, high=high, **options)


def error_against_flips(old: Any, candidates: Sequence[Any]) -> Plot:
    """Error against negative flip rate of several new models: ELODI (Zhao et al. 2024), Fig. 1b."""
    found = [compare(old, candidate, by=()) for candidate in candidates]
    points = [
        _with_interval(_title(c), [float(_known(c.error_rate_new))], [_known(c.negative_flip_rate)], kind="points")
        for c in found
    ]
    return Plot(
        "error-against-flips",
        "Error against negative flips",
        "ELODI Fig. 1b",
        (Panel("error of the new model", "negative flip rate", tuple(points)),),
        {f"NFR of {_title(c)}": float(_known(c.negative_flip_rate)) for c in found},
    )


def gain_against_flips(zoo: Sequence[Any]) -> Plot:
    """Accuracy gained against negative flip rate over all updates in a zoo of models: PCT (Yan et al. 2021), Fig. 2.

    An update is a pair whose second model errs no more than its first.
    """
    found = matrix(zoo)
    points = []
    for i, before in enumerate(found.error_rate):
        for j, after in enumerate(found.error_rate):
            gain = float(before) - float(after)
            if i != j and gain >= 0:
                points.append((gain, float(found.negative_flip_rate[i][j]), f"{i + 1}→{j + 1}"))
    points.sort()
    gains, rates, names = (tuple(column) for column in zip(*points, strict=True))
    names_of = {f"error of {i + 1}: {name}": float(found.error_rate[i]) for i, name in enumerate(found.versions)}
    return Plot(
        "gain-against-flips",
        "What an update gains and what it breaks",
        "PCT Fig. 2",
        (Panel("accuracy gained", "negative flip rate", (Series("updates", gains, rates, "points", text=names),)),),
        names_of,
    )


def against_parameter(old: Any, values: Mapping[float, Any], *, name: str = "parameter") -> Plot:
    """Error, flips, churn and entropy of new models against a number that set them apart.

    A loss weight (ELODI, Fig. 6a), an ensemble's size (Fig. 6b), an epoch (PCT, Fig. 5), α or β (churn paper, Fig. 1
    and 3); the last panel is the trade-off of accuracy and churn (churn paper, Fig. 2).
    """
    ordered = sorted(values)
    found = [compare(old, values[value], by=()) for value in ordered]
    panels = [
        Panel(name, title, (_with_interval(title, ordered, [_known(getattr(c, field)) for c in found]),))
        for title, field in (
            ("error of the new model", "error_rate_new"),
            ("negative flip rate", "negative_flip_rate"),
            ("churn", "churn"),
        )
    ]
    entropies = [c.predictive_entropy_new for c in found]
    if all(entropy is not None for entropy in entropies):
        panels.append(Panel(name, "entropy", (_with_interval("entropy", ordered, [_known(e) for e in entropies]),)))
    accuracy = [1 - float(_known(c.error_rate_new)) for c in found]
    texts = tuple(f"{value:g}" for value in ordered)
    trade = Series("models", floats(accuracy), floats(float(_known(c.churn)) for c in found), "points", text=texts)
    panels.append(Panel("accuracy", "churn", (trade,)))
    facts = {f"NFR at {value:g}": float(_known(c.negative_flip_rate)) for value, c in zip(ordered, found, strict=True)}
    source = "ELODI Fig. 6; PCT Fig. 5; churn Fig. 1–3"
    return Plot("against-parameter", f"What {name} does", source, tuple(panels), facts)
