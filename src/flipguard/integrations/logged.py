"""What trackers are told: a comparison's figures and reports, a run folder's epochs, whether it may be registered."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flipguard.analysis.runs import FinishedRun
from flipguard.comparison import Comparison
from flipguard.comparison.result import Figure
from flipguard.releases.folder import CARD, EARLIER, METRICS, MODEL, PREDICTIONS
from flipguard.releases.tracking import epoch_numbers
from flipguard.reports.junit import comparison_junit
from flipguard.reports.markdown import comparison_markdown
from flipguard.types import FlipguardError, InputError

PREFIX = "flipguard/"


class GateRefused(FlipguardError):
    """A model was to be registered, and the gate does not say yes."""


def require_passed(comparison: Comparison) -> None:
    """Raises unless the gate judged this comparison and passed it."""
    gate, new = comparison.gate, comparison.new
    name = " ".join(filter(None, (new.model, new.version))) or new.name
    if gate.passed is None:
        raise GateRefused(f"'{name}' was not judged: compare it with a gate (max_nfr=…), then register it.")
    broken = [f"{rule.name} ({rule.reason})" for rule in gate.rules if not rule.passed]
    if broken:
        raise GateRefused(f"'{name}' is not registered, the gate refuses: {'; '.join(broken)}.")


def figures_of(comparison: Comparison) -> dict[str, float]:
    """Every figure that is one number, by its name in JSON; an interval's ends as NAME_low and NAME_high.

    >>> from flipguard.comparison import compare
    >>> old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]}
    >>> found = figures_of(compare(old, {**old, "prediction": [0, 1, 0, 0]}))
    >>> found["negative_flips"], found["negative_flip_rate"], round(found["negative_flip_rate_high"], 4)
    (1.0, 0.25, 0.8059)
    """
    found: dict[str, float] = {}
    for name in type(comparison).model_fields:
        value = getattr(comparison, name)
        if isinstance(value, Figure):
            ends = {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
            found |= {each: float(number) for each, number in ends.items() if number is not None}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
    return found


def verdict_of(comparison: Comparison) -> str:
    """passed, refused, or not judged."""
    return {True: "passed", False: "refused", None: "not judged"}[comparison.gate.passed]


def write_reports(comparison: Comparison, folder: Path) -> list[Path]:
    """The comparison as JSON, as Markdown and as JUnit XML."""
    texts = {
        "comparison.json": comparison.to_json() + "\n",
        "comparison.md": comparison_markdown(comparison),
        "comparison.xml": comparison_junit(comparison),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def counted_epochs(run: FinishedRun) -> Iterator[tuple[int, dict[str, float]]]:
    """Each epoch's figures and its step, counted through the versions in order."""
    step = 0
    for name in run.versions:
        for line in run.epochs(name):
            yield step, epoch_numbers(name, line)
            step += 1


def page_of(run: FinishedRun, out: Path) -> Path:
    """The report of the last update, as `flipguard report RUN` writes it."""
    from flipguard.analysis.epochs import flips_over_epochs
    from flipguard.reports.html.page import report

    old, new = run.update
    options: dict[str, Any] = {"gate": run.spec.get("gate"), **({} if run.same_test else {"on_missing": "drop"})}
    figures = [flips_over_epochs({"": [run]})] if run.measured_epochs else []
    report(old, new, out, chain=run.chain, figures=figures, **options)
    return out


def release_of(run: FinishedRun, into: Path) -> Path:
    """A copy of what it takes to use the last version. The gate must have passed it, and no other version."""
    require_passed(run.comparison)
    copy = network_of(run, into)
    if copy is None:
        home = run.home(run.versions[-1])
        raise InputError(f"{home} has no network that the run's comparison speaks of: there is nothing to register.")
    return copy


def network_of(run: FinishedRun, into: Path) -> Path | None:
    """A copy of the last version, whatever the gate says: weights, model.json, a tokenizer; no predictions.

    None when the run's comparison speaks of another version, or of predictions without a network.
    """
    last = run.versions[-1]
    home = run.home(last)
    if run.comparison.new.version != last or not (home / MODEL).is_file() or not (home / CARD).is_file():
        return None
    left = shutil.ignore_patterns(PREDICTIONS, EARLIER, METRICS, ".*")
    return Path(shutil.copytree(home, into, ignore=left))
