"""The report card of one release: what it is, how often it errs, and what it broke of every earlier version."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flipguard.comparison.result import Comparison
from flipguard.comparison.run import compare
from flipguard.reports.markdown import code, table
from flipguard.reports.wording import NONE, with_interval

_SHOWN = (
    "model",
    "source",
    "data",
    "method",
    "chosen",
    "train",
    "recipe",
    "seed",
    "seeds",
    "members",
    "normalisation",
    "versions",
)
_EMPTY: tuple[Any, ...] = (None, "", {}, [])


def release_card(name: str, facts: Mapping[str, Any], predictions: Any, earlier: Mapping[str, Any]) -> str:
    """Markdown. `predictions` are this version's on the reference set, `earlier` those of the versions before it.

    Each is whatever `flipguard.compare` reads: a file, a data frame, `Predictions`. `facts` are what the release says
    of itself (its model.json): model, data, method, seeds and the like, shown as they are.

    >>> old = {"id": [1, 2], "label": [0, 1], "prediction": [0, 1]}
    >>> new = {"id": [1, 2], "label": [0, 1], "prediction": [0, 0]}
    >>> print(release_card("v1", {"model": {"name": "mlp"}}, new, {"v0": old}).splitlines()[0])
    # Release <code>v1</code>
    """
    return compared_card(
        name, facts, {version: compare(old, predictions) for version, old in earlier.items()}, predictions
    )


def compared_card(name: str, facts: Mapping[str, Any], earlier: Mapping[str, Comparison], predictions: Any) -> str:
    """The same from comparisons that were made already, by the earlier version's name, the closest one last."""
    # A first release has nothing to be compared with but itself, which gives its error.
    newest = list(earlier.values())[-1] if earlier else compare(predictions, predictions)
    return "\n\n".join([f"# Release {code(name)}", *_parts(newest, earlier, facts)]) + "\n"


def _parts(newest: Comparison, comparisons: Mapping[str, Comparison], facts: Mapping[str, Any]) -> Iterator[str]:
    yield f"Error rate {with_interval(newest.error_rate_new)} on {newest.labelled:,} labelled samples."
    rows = list(_facts(facts))
    if rows:
        yield table(("what", "value"), rows)
    yield "## Against earlier versions"
    if not comparisons:
        yield "This is the first version: there is nothing that it could have broken."
        return
    yield table(
        ("earlier version", "its error", "NFR", "relative NFR", "NFR, its classes", "PFR", "churn", "error change"),
        [_row(version, comparison) for version, comparison in comparisons.items()],
    )
    yield (
        "NFR: samples that the earlier version had right and this one has wrong. PFR: the other way round. "
        f"In brackets: {100 * newest.confidence:g}% intervals."
    )
    notes = [f"- {code(version)}: {code(note, 400)}" for version, c in comparisons.items() for note in c.notes]
    if notes:
        yield "\n".join(notes)


def _row(version: str, comparison: Comparison) -> Sequence[str]:
    known = comparison.old_classes
    return (
        code(version, 40),
        with_interval(comparison.error_rate_old),
        with_interval(comparison.negative_flip_rate),
        with_interval(comparison.relative_negative_flip_rate),
        NONE if known is None else with_interval(known.negative_flip_rate),
        with_interval(comparison.positive_flip_rate),
        with_interval(comparison.churn),
        with_interval(comparison.error_difference, signed=True),
    )


def _facts(facts: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for name in _SHOWN:
        value = facts.get(name)
        # One network is what a release is, unless it says more.
        if value not in _EMPTY and (name, value) != ("members", 1):
            yield name, code(_line(value), 400)
    classes = facts.get("classes")
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        yield "classes", f"{len(classes):,}"


def _line(value: Any) -> str:
    """A fact on one line: a mapping's name first, then what else it says.

    >>> _line({"alpha": 0.8, "name": "elodi", "k": None, "difference": {"p": 2}})
    'elodi; alpha 0.8; difference (p 2)'
    """
    if isinstance(value, Mapping):
        parts = [str(value["name"])] if value.get("name") else []
        for key, part in value.items():
            if key != "name" and part not in _EMPTY:
                parts.append(f"{key} ({_line(part)})" if isinstance(part, Mapping) else f"{key} {_line(part)}")
        return "; ".join(parts)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(f"({_line(part)})" if isinstance(part, Mapping) else _line(part) for part in value)
    return str(value)
