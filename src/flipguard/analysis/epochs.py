"""How errors and flips develop while a new version is trained."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.analysis.runs import FinishedRun
from flipguard.types import InputError

SHOWN = {
    "error_rate_new": "error of the new model",
    "relative_negative_flip_rate": "relative negative flip rate",
    "negative_flip_rate": "negative flip rate",
}


def flips_over_epochs(runs: Mapping[str, Sequence[FinishedRun]]) -> Plot:
    """Error, relative and plain negative flip rate at every epoch: PCT (Yan et al. 2021), Fig. 5.

    A curve for each name and each of its versions that has a predecessor; an empty name leaves the version's. Several
    runs of one name, such as seeds, give their mean with the smallest and the largest value. Measured while they
    trained, on the validation part where there was one, else on the test part: the title says which, as other figures
    of a run are of its test part.
    """
    curves = {name: lines for group, each in runs.items() for name, lines in _curves(group, each).items()}
    if not curves:
        raise InputError("none of the runs trained a version with a predecessor: there are no flips over epochs.")
    where = on_which_part(run for each in runs.values() for run in each)
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for field, title in SHOWN.items():
        series = [_series(name, lines, field) for name, lines in curves.items()]
        panels.append(Panel("epoch", title, tuple(series)))
        facts |= {f"last {title}, {each.name}{where}": each.y[-1] for each in series if each.y}
    return Plot("epochs", f"Errors and flips over training{where}", "PCT Fig. 5", tuple(panels), facts)


def on_which_part(runs: Iterable[FinishedRun]) -> str:
    """`, on the validation part`: what the epochs of all versions of the runs were measured on; of several, each."""
    parts = {run.measured_on(version) for run in runs for version in run.versions if run.epochs(version)}
    return f", on the {' or '.join(sorted(map(str, parts)))} part" if parts and None not in parts else ""


def _curves(group: str, runs: Sequence[FinishedRun]) -> dict[str, list[list[dict[str, Any]]]]:
    """By name, each run's lines."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for run in runs:
        for version in run.versions:
            lines = run.epochs(version)
            if lines and lines[-1].get("old") is not None:
                found.setdefault(version, []).append(lines)
    alone = group and len(found) == 1
    return {group if alone else f"{group} {version}".strip(): lines for version, lines in found.items()}


def _series(name: str, runs: Sequence[Sequence[Mapping[str, Any]]], field: str) -> Series:
    """Epochs that every run reached, and where the figure is known: a relative rate over nothing is none."""
    whole = list(zip(*runs, strict=False))
    known = [lines for lines in whole if all(line.get(field) is not None for line in lines)]
    values = [[float(line[field]) for line in lines] for lines in known]
    x = floats(lines[0]["epoch"] for lines in known)
    mean = floats(map(fmean, values))
    if len(runs) == 1:
        return Series(name, x, mean)
    return Series(name, x, mean, low=floats(map(min, values)), high=floats(map(max, values)))
