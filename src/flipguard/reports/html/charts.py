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
    """Text from data as plotly shows it: its labels obey a little markup and fill in %{names}, so neither is left.

    >>> safe("<a href='x'>cat</a> & dog"), safe("%{x}")
    ("&lt;a href='x'&gt;cat&lt;/a&gt; &amp; dog", '%&#123;x}')
    """
    plain = clean(text, most).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace("%{", "%&#123;")


def axis(title: str, **more: Any) -> Spec:
    return {"title": {"text": title}, "automargin": True, **more}


def share_axis(title: str, **more: Any) -> Spec:
    return axis(title, **{"tickformat": ".3~p", "rangemode": "tozero", **more})


def flow(comparison: Comparison) -> Chart:
    counts = outcome_counts(comparison)
    total = comparison.labelled
    right = counts["stayed right"] + counts["negative flips"]
    new_right = counts["stayed right"] + counts["positive flips"]
    ends = (right, total - right, new_right, total - new_right)
    # Middles of the two nodes of a side: half of the height apart, whatever their shares.
    middles = [middle for n in (right, new_right) for middle in (n / total / 2, (1 + n / total) / 2)]
    node: Spec = {
        "label": ["old right", "old wrong", "new right", "new wrong"],
        "color": ["--calm", "--dull", "--calm", "--dull"],
        "x": [0.001, 0.001, 0.999, 0.999],
        "y": [max(0.001, middle) for middle in middles],
        "pad": 24,
        "thickness": 14,
        "line": {"width": 0},
        "hovertemplate": "%{label}: %{value:,}<extra></extra>",
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
    sankey: Spec = {"type": "sankey", "arrangement": "fixed", "node": node, "link": link}
    return Chart(
        "flow",
        "Where the samples went",
        "From what the old model (left) had right and wrong to what the new one (right) has. "
        "The red band is the harm, the green one the gain.",
        "; ".join(f"{name}: {n} ({share})" for name, n, share in rows),
        ("samples that", "number", "share"),
        rows,
        {
            # Names stand beside the bands, not on them, where no colour would let them all be read.
            "data": [{**sankey, "textfont": {"color": "rgba(0,0,0,0)", "size": 1, "shadow": "none"}}],
            "layout": {
                "margin": {"l": 88, "r": 88, "t": 24, "b": 24},
                "annotations": [_beside(*item) for item in zip(node["label"], ends, middles, strict=True)],
            },
        },
        280,
    )


def _beside(name: str, count: int, middle: float) -> Spec:
    """A node's name and number on the outer side of it."""
    left = name.startswith("old")
    return {
        "text": f"{name}<br>{count:,}",
        "xref": "paper",
        "yref": "paper",
        "x": 0 if left else 1,
        "xanchor": "right" if left else "left",
        "xshift": -6 if left else 6,
        "y": 1 - middle,
        "yanchor": "middle",
        "align": "right" if left else "left",
        "showarrow": False,
    }


def confusion(flips: pa.Table, shown: Sequence[str]) -> Chart:
    """What the old model had right, and what the new one says instead: the classes with most flips.

    `shown` are the classes of the flip browser, to which a cell leads by number.
    """
    total, code = len(flips), {name: i for i, name in enumerate(shown)}
    pairs: dict[tuple[str, str], int] = {}
    for label, new in zip(flips["label"].to_pylist(), flips["new"].to_pylist(), strict=True):
        key = (label, "(none)" if new is None else new)
        pairs[key] = pairs.get(key, 0) + 1
    rows = _most(pairs, 0)
    columns = _columns(pairs, rows)
    z = [[pairs.get((row, column), 0) for column in columns] for row in rows]
    drawn, top = sum(map(sum, z)), max(map(max, z))
    # Flips are counted: a scale that ends at 1 has no use for tenths.
    counted = {"dtick": 1} if top < 6 else {}
    slanted = len(columns) * min(24, max(map(len, columns))) > 100
    ordered = sorted(pairs.items(), key=lambda item: (-item[1], item[0]))[:MOST_CLASSES]
    left_out = "" if drawn == total else f" {drawn:,} of {total:,} flips lie between these classes."
    (first, second), most = ordered[0]
    trace: Spec = {
        "type": "heatmap",
        "z": z,
        "x": _distinct(columns),
        "y": _distinct(rows),
        "customdata": [[[code.get(row, -1), code.get(column, -1)] for column in columns] for row in rows],
        "text": [[f"{n}" if n else "" for n in row] for row in z],
        "texttemplate": "%{text}",
        "textfont": {"color": "--ink"},
        "colorscale": [[0, "--page"], [1, "--heat"]],
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
                "xaxis": axis(
                    "new model says", type="category", showgrid=False, **({"tickangle": -45} if slanted else {})
                ),
                "yaxis": axis("label, old model right", type="category", autorange="reversed", showgrid=False),
            },
        },
        max(320, 150 + 22 * len(rows)) + (60 if slanted else 0),
    )


def _most(pairs: dict[tuple[str, str], int], side: int) -> list[str]:
    """The classes of one side that occur most."""
    totals: dict[str, int] = {}
    for key, count in pairs.items():
        totals[key[side]] = totals.get(key[side], 0) + count
    return sorted(totals, key=lambda name: (-totals[name], name))[:MOST_CLASSES]


def _columns(pairs: dict[tuple[str, str], int], rows: Sequence[str]) -> list[str]:
    """What the new model says of the rows' samples, at most so many classes.

    Few classes stand in the rows' order, so that a row and a column of one place are one class. Of many, which share
    few names with the rows, each stands where its largest count is: these then run down from the upper left corner.

    >>> _columns({("a", "x"): 1, ("a", "y"): 3, ("b", "x"): 2}, ["a", "b"])
    ['y', 'x']
    >>> _columns({("a", "b"): 1, ("a", "y"): 3, ("b", "a"): 2}, ["a", "b"])
    ['a', 'b', 'y']
    """
    columns = _most({key: count for key, count in pairs.items() if key[0] in rows}, 1)
    shared = [name for name in rows if name in columns]
    if shared and len({*rows, *columns}) <= MOST_CLASSES:
        return [*shared, *(name for name in columns if name not in rows)]
    counts = {name: [pairs.get((row, name), 0) for row in rows] for name in columns}
    return sorted(columns, key=lambda name: (counts[name].index(max(counts[name])), -max(counts[name]), name))


def _distinct(names: Sequence[str]) -> list[str]:
    """Labels of an axis: names that look alike once they are cut and cleaned must not become one."""
    seen: dict[str, int] = {}
    labels = []
    for name in names:
        label = safe(name, 24)
        seen[label] = seen.get(label, 0) + 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return labels
