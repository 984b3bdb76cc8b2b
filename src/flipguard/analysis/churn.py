"""How much runs of one setting disagree, as a coefficient of their training varies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from flipguard.analysis.members import Members
from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.metrics.scores import predictive_entropy_per_sample
from flipguard.types import InputError

Sweep = Mapping[float, Members]
"""A coefficient's values, and the runs that were trained with each."""


def churn_against_coefficient(sweeps: Mapping[str, Sweep]) -> Plot:
    """Entropy, accuracy and churn against a coefficient, a row of panels for each method's sweep.

    Churn paper (Bhojanapalli et al. 2021), Fig. 1 and 3: α of the entropy regulariser, β of co-distillation. Churn is
    the share of samples on which two runs of one setting disagree (Eq. 3), over all pairs of runs; marks span the runs
    or pairs.
    """
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for name, sweep in sweeps.items():
        values = sorted(sweep)
        for title, figure in FIGURES.items():
            found = [figure(sweep[value]) for value in values]
            mean, low, high = (floats(f(each) for each in found) for f in (np.mean, np.min, np.max))
            panels.append(Panel(name, title, (Series(title, floats(values), mean, "line", low, high),)))
            facts |= {f"{title} at {name} {value:g}": at for value, at in zip(values, mean, strict=True)}
    return Plot("churn", "Entropy, accuracy and churn against a coefficient", "churn Fig. 1, 3", tuple(panels), facts)


def accuracy_against_churn(sweeps: Mapping[str, Sweep]) -> Plot:
    """What each method's coefficient trades: churn paper (Bhojanapalli et al. 2021), Fig. 2, right.

    A point for each value of the coefficient, joined in their order; up and to the left is better.
    """
    series: list[Series] = []
    facts: dict[str, float] = {}
    for name, sweep in sweeps.items():
        values = sorted(sweep)
        churns, accuracies = (
            floats(FIGURES[figure](sweep[value]).mean() for value in values) for figure in ("churn", "accuracy")
        )
        texts = tuple(f"{value:g}" for value in values)
        series.append(Series(name, churns, accuracies, text=texts))
        facts |= {f"churn at {name} {value:g}": churn for value, churn in zip(values, churns, strict=True)}
    panel = Panel("churn", "accuracy", tuple(series))
    return Plot("churn-trade-off", "Accuracy against churn", "churn Fig. 2", (panel,), facts)


def _entropy(members: Members) -> Any:
    return np.array([predictive_entropy_per_sample(logits).mean() for logits in members.logits])


def _accuracy(members: Members) -> Any:
    return 1 - members.errors(members.logits).mean(axis=1)


def _churn(members: Members) -> Any:
    said = members.logits.argmax(axis=2)
    if len(said) < 2:
        raise InputError("churn is between runs of one setting: each value of the coefficient needs at least two.")
    return np.array([(one != other).mean() for one, other in combinations(said, 2)])


FIGURES: dict[str, Callable[[Members], Any]] = {"entropy": _entropy, "accuracy": _accuracy, "churn": _churn}


def swept(members: Members, values: tuple[float, ...]) -> dict[float, Members]:
    """Members apart by their value: one for each, the same for runs of one setting."""
    if len(values) != len(members.logits):
        raise InputError(f"each of the {len(members.logits)} runs needs a value, {len(values)} came.")
    places = {value: [i for i, other in enumerate(values) if other == value] for value in values}
    return {
        value: replace(members, names=tuple(members.names[i] for i in found), logits=members.logits[found])
        for value, found in places.items()
    }
