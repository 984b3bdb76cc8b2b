"""A naive comparison, row by row over dicts, and random pairs of prediction files."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flipguard.metrics import OUTCOMES

Columns = dict[str, Any]


def rows_of(columns: Columns) -> dict[str, dict[str, Any]]:
    """The rows by id (as text); lists and arrays without masks only."""
    names = [name for name in columns if name not in ("classes", "model", "version", "metadata")]
    lists = {name: list(columns[name]) for name in names}
    return {str(i): {name: lists[name][k] for name in names} for k, i in enumerate(lists["id"])}


def class_name(value: Any, classes: list[str] | None, renamed: dict[str, str]) -> str | None:
    if value is None:
        return None
    name = classes[int(value)] if classes is not None and not isinstance(value, str) else str(value)
    return renamed.get(name, name)


def outcome_of(label: str | None, old: str | None, new: str | None) -> str:
    if label is None:
        return "unlabelled_same" if old == new else "unlabelled_different"
    if old == label:
        return "both_right" if new == label else "negative_flip"
    if new == label:
        return "positive_flip"
    return "both_wrong_same" if old == new else "both_wrong_different"


def naive_rows(
    old: Columns,
    new: Columns,
    *,
    labels: str = "agree",
    corrected: Columns | None = None,
    class_map: dict[str, str] | None = None,
    split: str | None = None,
) -> list[dict[str, Any]]:
    """The compared samples with their outcome, label, predictions, weight and every further column."""
    left, right = rows_of(old), rows_of(new)
    overruled = rows_of(corrected) if corrected is not None else {}
    found = []
    for key in sorted(left.keys() & right.keys()):
        a, b = left[key], right[key]
        merged = {**a, **{name: value for name, value in b.items() if value is not None}}
        part = merged.get("split")
        if (split is None and part == "validation") or (split is not None and part != split):
            continue
        of_old = class_name(a.get("label"), old.get("classes"), class_map or {})
        of_new = class_name(b.get("label"), new.get("classes"), {})
        label = (of_new or of_old) if labels == "new" else (of_old or of_new)
        if key in overruled:
            label = class_name(overruled[key]["label"], (corrected or {}).get("classes"), {}) or label
        before = class_name(a["prediction"], old.get("classes"), class_map or {})
        after = class_name(b["prediction"], new.get("classes"), {})
        outcome = outcome_of(label, before, after)
        found.append({**merged, "key": key, "outcome": outcome, "label": label, "old": before, "new": after})
    return found


def counted(rows: list[dict[str, Any]]) -> list[int]:
    return [sum(row["outcome"] == name for row in rows) for name in OUTCOMES]


def counts_of(figures: Any) -> dict[str, Any]:
    """What a comparison or one of its groups says of its counts."""
    return {
        "n": figures.n,
        "labelled": figures.labelled,
        "negative_flips": figures.negative_flips,
        "positive_flips": figures.positive_flips,
        "churned": None if figures.churn is None else round(figures.churn.value * figures.n),
        "wrong_old": None if figures.error_rate_old is None else round(figures.error_rate_old.value * figures.labelled),
        "wrong_new": None if figures.error_rate_new is None else round(figures.error_rate_new.value * figures.labelled),
        "missing": (figures.missing_old, figures.missing_new),
    }


def naive_counts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    right, negative, positive, same, different, _, disagree = counted(rows)
    labelled = right + negative + positive + same + different
    return {
        "n": len(rows),
        "labelled": labelled,
        "negative_flips": negative,
        "positive_flips": positive,
        "churned": negative + positive + different + disagree if rows else None,
        "wrong_old": positive + same + different if labelled else None,
        "wrong_new": negative + same + different if labelled else None,
        "missing": (sum(r["old"] is None for r in rows), sum(r["new"] is None for r in rows)),
    }


def shuffled(columns: Columns, order: Any) -> Columns:
    facts = ("classes", "model", "version", "metadata")
    return {
        name: value if name in facts else (value[order] if isinstance(value, np.ndarray) else [value[i] for i in order])
        for name, value in columns.items()
    }


def scored_pair(rows: int = 101, classes: int = 7, seed: int = 0, kind: Any = np.float32) -> tuple[Columns, Columns]:
    """Two models' logits on the same samples in the same order; the new one is the old one, disturbed."""
    random = np.random.default_rng(seed)
    label = random.integers(0, classes, rows)
    old = random.normal(size=(rows, classes)) + 2.0 * (np.arange(classes) == label[:, None])
    new = old + random.normal(size=old.shape)
    return tuple(  # type: ignore[return-value]
        {"id": np.arange(rows) * 3 + 5, "label": label, "logits": logits.astype(kind)} for logits in (old, new)
    )


class Naive:
    """The functions above, for tests that cannot import this file."""

    rows = staticmethod(naive_rows)
    counts = staticmethod(naive_counts)
    counted = staticmethod(counted)
    counts_of = staticmethod(counts_of)
    shuffled = staticmethod(shuffled)
    scored_pair: Callable[..., tuple[Columns, Columns]] = staticmethod(scored_pair)


@pytest.fixture(scope="session")
def naive() -> type[Naive]:
    return Naive
