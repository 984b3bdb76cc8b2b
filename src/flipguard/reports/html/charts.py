"""The pictures: each a plotly figure as plain data, with words for who cannot see it and a table of what it shows.

A colour such as `--harm` is the page's own of that name; the browser puts in the value for light or dark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flipguard.comparison.result import Comparison
from flipguard.reports.wording import clean, outcome_counts, percent

Spec = dict[str, Any]
MOST_CLASSES = 20


@dataclass(frozen=True)
class Chart:
    """A figure of the page."""

    id: str
    title: str
    caption: str
    alt: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    spec: Spec
    height: int = 340


def safe(text: object, most: int = 40) -> str:
    """Text from data as plotly shows it: its labels obey a little markup, so none is left.

    >>> safe("<a href='x'>cat</a> & dog")
    "&lt;a href='x'&gt;cat&lt;/a&gt; &amp; dog"
    """
    return clean(text, most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title}, "automargin": True, **more}


def share_axis(title: str, **more: Any) -> Spec:
    return axis(title, **{"tickformat": ".3~p", "rangemode": "tozero", **more})


def flow(comparison: Comparison) -> Chart:
    counts = outcome_counts(comparison)
    total = comparison.labelled
    right = counts["stayed right"] + counts["negative flips"]
    new_right = counts["stayed right"] + counts["positive flips"]
    ends = {"old right": right, "old wrong": total - right, "new right": new_right, "new wrong": total - new_right}
    node: Spec = {
        "label": [f"{name}: {n:,}" for name, n in ends.items()],
        "color": ["--calm", "--dull", "--calm", "--dull"],
        "x": [0.001, 0.001, 0.999, 0.999],
        "y": [max(0.001, y) for n in (right, new_right) for y in (n / total / 2, (1 + n / total) / 2)],
        "pad": 24,
        "thickness": 18,
        "line": {"width": 0},
    }
    link = {
        "source": [0, 0, 1, 1],
        "target": [2, 3, 2, 3],
        "value": list(counts.values()),
        "label": list(counts),
        "color": ["--calm-soft", "--harm", "--gain", "--dull-soft"],
        "hovertemplate": "%{label}: %{value:,}<extra></extra>",
    }
    rows = [(name, f"{n:,}", percent(n / total)) for name, n in counts.items()]
    return Chart(
        "flow",
        "Where the samples went",
        "From what the old model had right and wrong to what the new one has. The red band is the harm.",
        "; ".join(f"{name}: {n} ({share})" for name, n, share in rows),
        ("samples that", "number", "share"),
        rows,
        {
            "data": [{"type": "sankey", "arrangement": "fixed", "node": node, "link": link}],
            "layout": {"margin": {"l": 8, "r": 8, "t": 12, "b": 12}},
        },
        260,
    )


def confusion(flips: pa.Table, shown: Sequence[str]) -> Chart:
    """What the old model had right, and what the new one says instead: the classes with most flips.

    `shown` are the classes of the flip browser, to which a cell leads by number.
    """
    total, code = len(flips), {name: i for i, name in enumerate(shown)}
    pairs: dict[tuple[str, str], int] = {}
    for label, new in zip(flips["label"].to_pylist(), flips["new"].to_pylist(), strict=True):
        key = (label, "(none)" if new is None else new)
        pairs[key] = pairs.get(key, 0) + 1
    rows, columns = ([name for name, _ in _most(pairs, side)] for side in (0, 1))
    if len({*rows, *columns}) <= MOST_CLASSES:
        # One order for both, so that the diagonal means the same everywhere.
        columns = [*(name for name in rows if name in columns), *(name for name in columns if name not in rows)]
    z = [[pairs.get((row, column), 0) for column in columns] for row in rows]
    drawn, top = sum(map(sum, z)), max(map(max, z))
    # Flips are counted: a scale that ends at 1 has no use for tenths.
    counted = {"dtick": 1} if top < 6 else {}
    slanted = -45 if max(map(len, columns)) > 3 else 0
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLASSES]
    left_out = "" if drawn == total else f" {drawn:,} of {total:,} flips lie between these classes."
    (first, second), most = ordered[0]
    trace: Spec = {
        "type": "heatmap",
        "z": z,
        "x": _distinct(columns),
        "y": _distinct(rows),
        "customdata": [[[code.get(row, -1), code.get(column, -1)] for column in columns] for row in rows],
        "colorscale": [[0, "--page"], [1, "--harm"]],
        "zmin": 0,
        "zmax": top,
        "xgap": 1,
        "ygap": 1,
        "hovertemplate": "%{y} → %{x}: %{z} flips<extra></extra>",
        "colorbar": {"title": {"text": "flips"}, "thickness": 10, "outlinewidth": 0, **counted},
    }
    return Chart(
        "confusion",
        "What became of them",
        "Negative flips by the class that the old model had right (row) and the class that the new one says (column). "
        f"Click a cell to see its flips.{left_out}",
        f"Heat map. Most flips: {most} from {clean(first)} to {clean(second)}.",
        ("old, right", "new, wrong", "flips"),
        [(clean(a), clean(b), f"{n:,}") for (a, b), n in ordered],
        {
            "data": [trace],
            "layout": {
                "xaxis": axis("new model says", type="category", tickangle=slanted, showgrid=False),
                "yaxis": axis("label, old model right", type="category", autorange="reversed", showgrid=False),
            },
        },
        max(320, 150 + 22 * len(rows)),
    )


def _most(pairs: dict[tuple[str, str], int], side: int) -> list[tuple[str, int]]:
    totals: dict[str, int] = {}
    for key, count in pairs.items():
        totals[key[side]] = totals.get(key[side], 0) + count
    return sorted(totals.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLASSES]


def _distinct(names: Sequence[str]) -> list[str]:
    """Labels of an axis: names that look alike once they are cut and cleaned must not become one."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        label = safe(name, 24)
        seen[label] = seen.get(label, 0) + 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return labels
