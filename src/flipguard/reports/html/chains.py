"""The pictures of more than two models: candidates for one release, and a chain of releases."""

from collections.abc import Sequence
from typing import Any

from flipguard.comparison.result import Comparison, Figure, Matrix
from flipguard.reports.html.charts import Chart, Spec, axis, safe, share_axis
from flipguard.reports.wording import NONE, clean, percent, titles, with_interval


def candidates(comparisons: Sequence[Comparison]) -> Chart:
    """Error against negative flip rate: the first comparison is the report's own, the others its rivals."""
    main = comparisons[0]
    known = [c for c in comparisons if c.error_rate_new and c.negative_flip_rate]
    named = list(zip(_apart([titles(c)[1] for c in known]), known, strict=True))
    traces: list[Spec] = []
    for place, (name, comparison) in enumerate(named):
        error, flips = comparison.error_rate_new, comparison.negative_flip_rate
        assert error is not None
        assert flips is not None
        colour = "--harm" if place == 0 else "--accent"
        traces.append(
            {
                "x": [error.value],
                "y": [flips.value],
                "error_x": _bars(error),
                "error_y": _bars(flips),
                "mode": "markers+text",
                "text": [safe(name, 32)],
                "textposition": "top right",
                "marker": {"size": 12 if place == 0 else 9, "symbol": "diamond" if place == 0 else "circle"},
                "line": {"color": colour},
                "name": safe(name, 24),
                "hovertemplate": "%{text}: error %{x:.2%}, NFR %{y:.2%}<extra></extra>",
            }
        )
        traces[-1]["marker"]["color"] = traces[-1]["error_x"]["color"] = traces[-1]["error_y"]["color"] = colour
    rows = [
        (
            clean(name),
            with_interval(c.error_rate_new),
            with_interval(c.negative_flip_rate),
            with_interval(c.relative_negative_flip_rate),
        )
        for name, c in named
    ]
    errors = [main.error_rate_old, *(c.error_rate_new for c in known)]
    floor = None if main.noise is None else main.noise.negative_flip_rate
    rates = [floor, *(c.negative_flip_rate for c in known)]
    best = min(named, key=lambda item: float(item[1].negative_flip_rate or 0))[0]
    return Chart(
        "candidates",
        "Error against flips",
        "Each candidate against the same old model; left is more accurate, down is fewer flips. The diamond is the "
        "model of this report." + _lines_said(main),
        f"Scatter of {len(named)} candidates; {clean(best)} has the fewest negative flips.",
        ("candidate", "error", "negative flip rate", "relative NFR"),
        rows,
        {
            "data": traces,
            "layout": {
                "xaxis": axis("error of the new model", tickformat=".3~p", range=_range(errors)),
                "yaxis": axis("negative flip rate", tickformat=".3~p", range=_range(rates)),
                "showlegend": False,
                **_lines(main),
            },
        },
        380,
    )


def _bars(figure: Figure) -> Spec:
    value = float(figure)
    low, high = figure.low, figure.high
    return {
        "type": "data",
        "symmetric": False,
        "array": [0 if high is None else high - value],
        "arrayminus": [0 if low is None else value - low],
        "thickness": 1,
    }


def _range(figures: Sequence[Figure | None]) -> list[float]:
    """Both ends of all intervals, and a little room."""
    ends = [end for f in figures if f is not None for end in (f.low, f.value, f.high) if end is not None]
    room = 0.08 * (max(ends) - min(ends) or 0.01)
    return [max(0.0, min(ends) - room), max(ends) + room]


def _lines_said(main: Comparison) -> str:
    return " The dashed line is the noise floor: what retraining alone flips." if main.noise is not None else ""


def _lines(main: Comparison) -> Spec:
    """The noise floor across, the old model's error down."""
    dashed = {"color": "--dull", "dash": "dash", "width": 1}
    shapes: list[Spec] = []
    notes: list[Spec] = []
    if main.noise is not None:
        floor = main.noise.negative_flip_rate.value
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": floor, "y1": floor, "line": dashed})
    if main.error_rate_old is not None:
        error = main.error_rate_old.value
        dotted = {**dashed, "dash": "dot"}
        shapes.append({"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": error, "x1": error, "line": dotted})
        note = {"text": "old error", "showarrow": False, "font": {"color": "--quiet"}, "yref": "paper"}
        notes.append({**note, "x": error, "y": 1, "xanchor": "left", "yanchor": "top"})
    return {"shapes": shapes, "annotations": notes}


def _apart(names: Sequence[str]) -> list[str]:
    """Names without the words that all of them begin with.

    >>> _apart(["resnet v1", "resnet v2"])
    ['v1', 'v2']
    """
    words = [name.split() for name in names]
    common = 0
    while all(len(own) > common + 1 and own[common] == words[0][common] for own in words):
        common += 1
    return [" ".join(own[common:]) for own in words]


def _short(versions: Sequence[str]) -> list[str]:
    """Names for an axis, numbered so that equal ones stay apart."""
    return [f"{i + 1} {safe(name, 24)}" for i, name in enumerate(_apart(versions))]


def heat_map(chain: Matrix) -> Chart:
    """Every version against every other."""
    names = _short(chain.versions)
    size = range(len(names))
    z = [[None if i == j else chain.negative_flip_rate[i][j].value for j in size] for i in size]
    text = [[NONE if i == j else percent(chain.negative_flip_rate[i][j].value) for j in size] for i in size]
    plain = [f"{i + 1} {clean(name)}" for i, name in enumerate(chain.versions)]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": z,
        "x": names,
        "y": names,
        "text": text,
        "texttemplate": "%{text}",
        "textfont": {"color": "--ink"},
        "colorscale": [[0, "--page"], [1, "--heat"]],
        "zmin": 0,
        "zmax": max([value for row in z for value in row if value is not None] or [1]),
        "xgap": 2,
        "ygap": 2,
        "hovertemplate": "from %{y} to %{x}: %{text}<extra></extra>",
        "colorbar": {"tickformat": ".2~p", "thickness": 10, "outlinewidth": 0},
    }
    return Chart(
        "chain-matrix",
        "Every version against every other",
        "Negative flip rate of an update from the row's version to the column's. Just above the diagonal are the "
        "updates as they happened; below it, the way back.",
        f"Heat map of {len(names)} versions; over all pairs from older to newer the mean is "
        f"{percent(chain.mean_pairwise_negative_flip_rate)}.",
        ("from", *plain),
        [(plain[i], *text[i]) for i in size],
        {
            "data": [trace],
            "layout": {
                "xaxis": axis("to", type="category", showgrid=False, side="top"),
                "yaxis": axis("from", type="category", autorange="reversed", showgrid=False),
            },
        },
        max(300, 140 + 44 * len(names)),
    )


def history(chain: Matrix) -> Chart:
    """The error of each version and the flips of each update."""
    names = _short(chain.versions)
    updates = [chain.negative_flip_rate[i][i + 1] for i in range(len(names) - 1)]
    lines = (("NFR", names[1:], updates, "--harm", "y"), ("error", names, chain.error_rate, "--dull", "y2"))
    traces: list[Spec] = []
    for name, x, figures, colour, axis_name in lines:
        bars = {**_bars(Figure(value=0, low=None, high=None)), "color": colour}
        bars["array"] = [0 if f.high is None else f.high - float(f) for f in figures]
        bars["arrayminus"] = [0 if f.low is None else float(f) - f.low for f in figures]
        traces.append(
            {
                "x": x,
                "y": [f.value for f in figures],
                "error_y": bars,
                "mode": "lines+markers",
                "yaxis": axis_name,
                "line": {"color": colour, "width": 2},
                "marker": {"size": 8, "color": colour},
                "hovertemplate": f"%{{x}}: {name} %{{y:.2%}}<extra></extra>",
            }
        )
    rows = [
        (
            f"{i + 1} {clean(name)}",
            with_interval(chain.error_rate[i]),
            with_interval(updates[i - 1]) if i else NONE,
            f"{chain.negative_flips[i - 1][i]:,}" if i else NONE,
        )
        for i, name in enumerate(chain.versions)
    ]
    return Chart(
        "chain-history",
        "From release to release",
        f"{chain.sum_negative_flips:,} negative flips over {len(updates)} updates of {chain.n:,} samples, "
        f"{percent(chain.mean_negative_flip_rate)} a release. Above, each version's error; below, the NFR of "
        "the update to it.",
        "Line chart of the error of each version and the negative flip rate of each update.",
        ("version", "error", "NFR of the update to it", "flips"),
        rows,
        {
            "data": traces,
            "layout": {
                "xaxis": axis("", type="category", categoryorder="array", categoryarray=names),
                "yaxis": share_axis("NFR", domain=[0, 0.44]),
                "yaxis2": axis("error", tickformat=".3~p", domain=[0.56, 1]),
                "showlegend": False,
            },
        },
    )
