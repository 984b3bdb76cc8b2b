"""Names, ids, texts, slices and figures that would run, in a real Chromium: every one is shown, none does anything."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flipguard
from flipguard.analysis.plots import Panel, Plot, Series

if TYPE_CHECKING:
    from selenium.webdriver import Chrome as Driver
else:
    Driver = Any

N = 101
EVIL = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
TEMPLATE = "%{x:.9q} <b>y</b>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(5)
    label = np.arange(N) % 3
    old = rng.normal(size=(N, 3)) + 4 * np.eye(3)[label]
    new = rng.normal(size=(N, 3)) + 2 * np.eye(3)[label]
    shared = {"id": [f"{EVIL}{i}" for i in range(N)], "label": label, "classes": [EVIL, TEMPLATE, "x" * 200]}
    named = {**shared, "model": EVIL, "version": TEMPLATE}
    after = {**named, "logits": new, EVIL: np.array([EVIL, TEMPLATE])[np.arange(N) % 2], "text": [f"{EVIL}{EVIL}"] * N}
    points = Series(EVIL, (1.0, 2.0), (2.0, 1.0), "points", text=(EVIL, TEMPLATE))
    figure = Plot(
        "n", EVIL, EVIL, (Panel(EVIL, TEMPLATE, (Series(TEMPLATE, (1.0, 2.0), (1.0, 2.0)), points)),), {EVIL: 1}
    )
    out = tmp_path_factory.mktemp("hostile") / "report.html"
    rival = {**named, "logits": old + rng.normal(size=(N, 3))}
    gate = {"max_slice_nfr": 0.01, "max_class_nfr": 0.01, "min_slice": 1}
    options: Any = {"figures": [figure], "command": EVIL, "show": ["text"], "gate": gate}
    found = flipguard.report({**named, "logits": old}, after, out, candidates=[rival], chain=[rival], **options)
    assert found.negative_flips > 3
    return out


@pytest.fixture
def opened(chromium: Driver, page: Path) -> Driver:
    """The page with the pointer over a point of every chart."""
    from selenium.webdriver.support.ui import WebDriverWait

    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.get_log("browser")
    chromium.get(page.as_uri())
    WebDriverWait(chromium, 300).until(lambda d: d.execute_script("return document.documentElement.dataset.ready"))
    chromium.execute_script(
        "for (const c of document.querySelectorAll('.chart')) if (['scatter', 'bar'].includes(c._fullData[0].type))"
        " Plotly.Fx.hover(c, [{curveNumber: 0, pointNumber: 0}])"
    )
    return chromium


def test_everything_is_shown_and_nothing_runs(opened: Driver) -> None:
    opened.execute_script("document.querySelector('#flip-rows tr th').click()")
    assert opened.execute_script("return document.getElementById('one-title').textContent").startswith(EVIL)
    assert "broken" not in opened.title
    assert opened.get_log("browser") == []
    assert opened.execute_script("return document.querySelectorAll('main :is(script, [onerror], svg a)').length") == 0
    assert opened.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_labels_of_charts_are_the_names_letter_by_letter(opened: Driver) -> None:
    texts = "return [...document.querySelectorAll(arguments[0])].map(t => t.textContent)"
    ticks = opened.execute_script(texts, "#chart-confusion .ytick text")
    assert TEMPLATE in ticks
    assert any(tick.startswith("</script><") for tick in ticks)
    assert TEMPLATE in opened.execute_script(texts, "#chart-figure-0-0 .legendtext")
    hovered = " ".join(opened.execute_script(texts, "#chart-figure-0-0 .hoverlayer text"))
    assert hovered.startswith(f"{TEMPLATE}: 1, 1")
