"""The pictures that need scores: confidence, calibration, displacement, rank."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flipguard.comparison.detail import PER_OCTAVE, Detail, displacement_edges
from flipguard.comparison.result import Comparison
from flipguard.metrics import OUTCOMES
from flipguard.reports.html.charts import Chart, Spec, axis, share_axis
from flipguard.reports.html.payload import quantile
from flipguard.reports.wording import number, percent

_BINS_SHOWN = 40
KINDS = {
    "stayed right": ("both_right",),
    "negative flips": ("negative_flip",),
    "positive flips": ("positive_flip",),
    "stayed wrong": ("both_wrong_same", "both_wrong_different"),
}
COLOURS = {"stayed right": "--calm", "negative flips": "--harm", "positive flips": "--gain", "stayed wrong": "--dull"}
DASHES = {"stayed right": "solid", "negative flips": "solid", "positive flips": "dash", "stayed wrong": "dot"}


def reliability(detail: Detail) -> Chart:
    """Accuracy against confidence over the calibration bins of both models."""
    assert detail.bins is not None
    traces: list[Spec] = [
        {
            "x": [0, 1],
            "y": [0, 1],
            "mode": "lines",
            "name": "as sure as right",
            "line": {"color": "--dull", "dash": "dot", "width": 1},
            "hoverinfo": "skip",
        }
    ]
    rows = []
    for name, colour, bins in (("old", "--dull", detail.bins[0]), ("new", "--accent", detail.bins[1])):
        used = bins[bins[:, 0] > 0]
        if not len(used):
            continue
        x, y, n = used[:, 2] / used[:, 0], used[:, 1] / used[:, 0], used[:, 0]
        traces.append(
            {
                "x": x.round(4).tolist(),
                "y": y.round(4).tolist(),
                "text": [f"{int(count):,} samples" for count in n],
                "mode": "lines+markers",
                "name": name,
                "line": {"color": colour, "width": 2, "dash": "solid" if name == "new" else "dash"},
                "marker": {"size": (5 + 10 * np.sqrt(n / n.max())).round(1).tolist(), "color": colour},
                "hovertemplate": f"{name}: sure %{{x:.1%}}, right %{{y:.1%}}<br>%{{text}}<extra></extra>",
            }
        )
        rows += [(name, percent(a), percent(b), f"{int(c):,}") for a, b, c in zip(x, y, n, strict=True)]
    found = detail.comparison
    errors = " and ".join(
        f"{name} {number(None if figure is None else figure.value)}"
        for name, figure in (("old", found.ece_old), ("new", found.ece_new))
    )
    return Chart(
        "reliability",
        "How sure, how right",
        "Share right against mean confidence, in 15 bins of confidence. Below the dotted line a model is too sure of "
        "itself. Larger points hold more samples.",
        f"Reliability diagram. Expected calibration error: {errors}.",
        ("model", "mean confidence", "share right", "samples"),
        rows,
        {
            "data": traces,
            "layout": {
                "xaxis": axis("confidence", range=[0, 1.02], tickformat=".0%"),
                "yaxis": axis("share right", range=[0, 1.02], tickformat=".0%"),
            },
        },
    )


def confidence(detail: Detail, flips: pa.Table) -> Chart:
    """How sure the models are, of all samples and of those that flip."""
    assert detail.bins is not None
    edges = np.linspace(0, 1, len(detail.bins[0]) + 1)
    lines = []
    for name, bins in (("old, all samples", detail.bins[0]), ("new, all samples", detail.bins[1])):
        lines.append((name, bins[:, 0]))
    for name, column in (("old, negative flips", "old_confidence"), ("new, negative flips", "new_confidence")):
        lines.append((name, np.histogram(flips[column].drop_null().to_numpy(), edges)[0]))
    looks = (("--dull", "dash"), ("--accent", "solid"), ("--harm", "dash"), ("--harm", "solid"))
    traces, rows = [], []
    for (name, counts), (colour, dash) in zip(lines, looks, strict=True):
        if not counts.sum():
            continue
        share = (counts / counts.sum()).round(5).tolist()
        traces.append(_step(name, edges, share, colour, dash, "from %{x:.0%}: %{y:.2%}"))
        sums = [share[5 * i : 5 * i + 5] for i in range(3)]
        rows.append((name, *(percent(sum(part)) for part in sums)))
    return Chart(
        "confidence",
        "How sure of the flips",
        "Share of samples by the probability of the predicted class. Flips of which the new model is sure are the ones "
        "that no threshold on confidence will catch.",
        "Histogram of confidence. " + "; ".join(f"{name}: {high} above two thirds" for name, *_, high in rows),
        ("model and samples", "below 1/3", "1/3 to 2/3", "above 2/3"),
        rows,
        {
            "data": traces,
            "layout": {
                "xaxis": axis("confidence", range=[0, 1], tickformat=".0%"),
                "yaxis": share_axis("share of samples"),
            },
        },
    )


def _step(name: str, edges: Any, share: list[float], colour: str, dash: str, hover: str) -> Spec:
    """A histogram's outline: (K + 1,) edges, K shares."""
    return {
        "x": edges.round(5).tolist(),
        "y": [*share, share[-1]],
        "name": name,
        "mode": "lines",
        "line": {"shape": "hv", "color": colour, "dash": dash, "width": 2},
        "hovertemplate": f"{name}: {hover}<extra></extra>",
    }


def displacement(detail: Detail) -> Chart:
    """How far the logits moved, by what became of the sample."""
    counts = detail.displacements
    assert counts is not None
    coarse, edges = _coarse(counts)
    traces, rows = [], []
    for kind, outcomes in KINDS.items():
        own = sum(coarse[OUTCOMES.index(name)] for name in outcomes)
        whole = sum(counts[OUTCOMES.index(name)] for name in outcomes)
        n = int(np.sum(whole))
        if not n:
            continue
        share = (np.asarray(own) / n).round(5).tolist()
        traces.append(_step(kind, edges, share, COLOURS[kind], DASHES[kind], "moved from %{x:.3g}: %{y:.2%}"))
        rows.append((kind, f"{n:,}", *(f"{quantile(whole, q):.3g}" for q in (0.05, 0.5, 0.95))))
    return Chart(
        "displacement",
        "How far the logits moved",
        "Distance between the two models' logits of a sample, on a logarithmic scale, as the share of each kind of "
        "sample. Flips that moved far are errors of another sort than flips next to the boundary.",
        "Histogram of logit displacement. " + "; ".join(f"{row[0]}: median {row[3]}" for row in rows),
        ("samples that", "number", "5% below", "median", "95% below"),
        rows,
        {
            "data": traces,
            "layout": {
                "xaxis": axis("logit displacement", type="log", **_log_ticks(edges)),
                "yaxis": share_axis("share of the kind"),
            },
        },
    )


def _log_ticks(edges: Sequence[float]) -> Spec:
    """Round numbers, written out: plotly would shorten 0.5 to 5. The more decades, the fewer to each."""
    low, high = (math.floor(math.log10(max(end, 1e-300))) for end in (edges[0], edges[-1]))
    decades = math.log10(edges[-1] / max(edges[0], 1e-300))
    steps = (
        (1, 2, 3, 4, 5, 6, 8) if decades < 1 else (1, 2, 3, 5) if decades < 2 else (1, 2, 5) if decades < 4 else (1,)
    )
    values = [step * 10.0**power for power in range(low, high + 1) for step in steps]
    inside = [value for value in values if edges[0] <= value <= edges[-1]]
    return {"tickvals": inside, "ticktext": [f"{value:g}" for value in inside]}


def _coarse(counts: Any) -> tuple[Any, Any]:
    """The occupied bins, merged within their octave until few enough to see; the outermost thousandths are cut."""
    total = np.cumsum(counts.sum(axis=0))
    low, high = (int(np.searchsorted(total, share * total[-1])) for share in (0.001, 0.999))
    width = next((w for w in (1, 2, 4) if (high - low + 1) / w <= _BINS_SHOWN), PER_OCTAVE)
    start, end = low // width * width, (high // width + 1) * width
    merged = counts[:, start:end].reshape(len(counts), -1, width).sum(axis=2)
    return merged, displacement_edges()[start : end + 1 : width]


def ranks(comparison: Comparison) -> Chart:
    """Where the new, wrong class stood with the old model."""
    assert comparison.flip_rank is not None
    total = sum(comparison.flip_rank)
    names = [*(str(i + 1) for i in range(len(comparison.flip_rank) - 1)), "beyond"]
    kept = [(name, n) for name, n in zip(names, comparison.flip_rank, strict=True) if name != "1" or n]
    while len(kept) > 2 and not kept[-1][1]:
        kept.pop()
    rows = [(name, f"{n:,}", percent(n / total)) for name, n in kept]
    trace = {
        "type": "bar",
        "x": [name for name, _ in kept],
        "y": [round(n / total, 5) for _, n in kept],
        "text": [f"{n:,}" for _, n in kept],
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {"color": "--harm"},
        "hovertemplate": "rank %{x}: %{text} flips (%{y:.1%})<extra></extra>",
    }
    return Chart(
        "ranks",
        "What the old model thought of the wrong class",
        "Rank of the new, wrong class among the old model's logits: 2 is its runner-up.",
        f"Bar chart. {rows[0][2]} of the flips go to the class at rank {rows[0][0]}.",
        ("rank", "flips", "share"),
        rows,
        {
            "data": [trace],
            "layout": {
                "xaxis": axis("rank with the old model", type="category"),
                "yaxis": share_axis("share of flips"),
                "showlegend": False,
            },
        },
    )


def score_charts(detail: Detail, flips: pa.Table) -> Iterator[Chart]:
    """As many of these pictures as the files have scores for."""
    scored = len(flips) and {"old_confidence", "new_confidence"} <= set(flips.column_names)
    if detail.bins is not None and detail.bins[:, :, 0].sum():
        yield reliability(detail)
        if scored:
            yield confidence(detail, flips)
    if detail.displacements is not None and detail.displacements.sum():
        yield displacement(detail)
    if detail.comparison.flip_rank and sum(detail.comparison.flip_rank):
        yield ranks(detail.comparison)
