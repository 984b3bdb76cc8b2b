"""The papers' figures on the page: every kind of series is drawn, said and escaped."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

import flipguard
from flipguard import InputError
from flipguard.analysis.density import displacement_density
from flipguard.analysis.members import Members
from flipguard.analysis.planes import logit_arrows
from flipguard.analysis.plots import Panel, Plot, Series, histogram, read_plot
from flipguard.reports.html.figures import figure_charts

EVIL = "<script>alert(1)</script><b>x"


def members(seed: int) -> Members:
    rng = np.random.default_rng(seed)
    label = np.arange(11) % 3
    logits = rng.normal(size=(5, 11, 3)) + 2 * np.eye(3)[label]
    return Members(tuple("abcde"), tuple(range(11)), label, logits)


def one_of_each() -> list[Plot]:
    line = Series(EVIL, (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), low=(0.0, 0.1, 0.2), high=(0.2, 0.3, 0.4), dashed=True)
    spots = Series("spots", (1.0, 2.0), (3.0, 4.0), "points", text=(EVIL, "b"))
    cells = Series("gain", (0.0, 1.0), (1.0, 0.0), "cells", z=(-0.1, 0.1), text=("-10", EVIL))
    steps = histogram("share", [0.1, 0.2, 0.9], [0.0, 0.5, 1.0])
    panels = (
        Panel("epoch", EVIL, (line, spots), EVIL, x_whole=True),
        Panel("x", "share", (steps,), y_log=True),
        Panel("new", "old", (cells,), ticks=(EVIL, "v2")),
    )
    own = Plot("own", EVIL, EVIL, panels, {EVIL: 0.125})
    return [own, logit_arrows(members(0), members(1)), displacement_density(members(0), members(1))]


def test_every_kind_of_series_is_a_chart_that_plotly_knows() -> None:
    plots = one_of_each()
    charts = [chart for place, plot in enumerate(plots) for chart in figure_charts(plot, place)]
    assert {series.kind for plot in plots for panel in plot.panels for series in panel.series} == {
        "line",
        "points",
        "steps",
        "cells",
        "arrows",
        "density",
    }
    assert len({chart.id for chart in charts}) == len(charts) == sum(len(plot.panels) for plot in plots)
    for chart in charts:
        coloured = json.loads(re.sub(r'"--[a-z-]+"', '"#123456"', json.dumps(chart.spec)))
        assert len(go.Figure(coloured).data) == len(chart.spec["data"])
        assert chart.rows
        assert all(len(row) == len(chart.head) for row in chart.rows)
        assert chart.alt


def test_the_numbers_are_those_of_the_figure() -> None:
    own, arrows, density = one_of_each()
    (line, spots), (steps,), (cells,) = (chart.spec["data"] for chart in figure_charts(own, 0))
    assert (line["x"], line["y"]) == ([1.0, 2.0, 3.0], [0.1, 0.2, 0.3])
    assert line["error_y"]["array"] == pytest.approx([0.1] * 3)
    assert spots["text"] == ["&lt;script&gt;alert(1)&lt;/script&gt;&lt;b&gt;x", "b"]
    assert (steps["x"], steps["y"]) == ([0.0, 0.5, 1.0], pytest.approx([2 / 3, 1 / 3, 1 / 3]))
    assert cells["z"] == [[None, 0.1], [-0.1, None]]
    drawn = next(figure_charts(arrows, 1)).spec["data"][0]
    first = arrows.panels[0].series[0]
    assert first.x2 is not None
    assert drawn["x"][:3] == [first.x[0], first.x2[0], None]
    plane, source = next(figure_charts(density, 2)).spec["data"][0], density.panels[0].series[0]
    assert source.z is not None
    assert np.array(plane["z"]).reshape(-1) == pytest.approx(source.z, rel=1e-3)
    assert np.array(plane["z"]).shape == (len(source.y), len(source.x))


def sides() -> tuple[dict[str, Any], dict[str, Any]]:
    old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 0, 0]}
    return old, {**old, "prediction": [1, 1, 1, 0]}


def test_the_page_shows_figures_and_nothing_in_them_is_markup(tmp_path: Path) -> None:
    plots = one_of_each()
    for plot in plots:
        (tmp_path / f"{plot.name}.json").write_text(plot.to_json())
        assert read_plot(tmp_path / f"{plot.name}.json") == plot
    files = [tmp_path / f"{plot.name}.json" for plot in plots[:2]]
    flipguard.report(*sides(), tmp_path / "r.html", figures=[*files, plots[2]])
    page = (tmp_path / "r.html").read_text()
    assert '<section id="figures"' in page
    assert page.count('class="chart"') == 2 + sum(len(plot.panels) for plot in plots)
    assert "<script>alert" not in page
    assert "<b>x" not in page
    assert "0.125" in page
    flipguard.report(*sides(), tmp_path / "s.html", figures=files[0])
    assert '<section id="figures"' in (tmp_path / "s.html").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "no figure's data"),
        ("nonsense", "no figure's data"),
        ('{"y": [0.1, 0.2]}', "missing or cannot be drawn"),
        ('{"y": [NaN, 0.2, 0.3]}', "cannot be drawn|no figure's data"),
        ('{"kind": "density", "z": [1, 2]}', "missing or cannot be drawn"),
        ('{"kind": "arrows"}', "missing or cannot be drawn"),
        ('{"kind": "cells", "z": [1, 2, 3], "x": [0, 1, 1e9]}', "outside of a table"),
    ],
)
def test_what_is_no_figure_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "f.json"
    if text.startswith("{") and text != "{}":
        series = {"name": "a", "x": [1, 2, 3], "y": [0.1, 0.2, 0.3], **json.loads(text)}
        panel = {"x": "x", "y": "y", "series": [series]}
        text = json.dumps({"name": "n", "title": "t", "source": "s", "panels": [panel], "facts": {}})
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        flipguard.report(*sides(), tmp_path / "r.html", figures=[path])
    assert not (tmp_path / "r.html").exists()
    with pytest.raises(InputError, match="cannot be read"):
        read_plot(tmp_path / "none.json")
