"""The page where it is not a wide, light window: on paper, on a phone, in a spreadsheet."""

import base64
import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flipguard

if TYPE_CHECKING:
    from selenium.webdriver import Chrome as Driver
else:
    Driver = Any

IDS = ("=1+1", "+cmd|' /C calc'!A0", "@SUM(A1)", "-5", "\t=x", "plain", "-x", "1e-3")
N = 101


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ids that a spreadsheet would run, long names of classes, no slices; every third sample flips."""
    rng = np.random.default_rng(3)
    label = np.arange(N) % 7
    old = rng.normal(size=(N, 7)) + 9 * np.eye(7)[label]
    new = np.where((np.arange(N) % 3 == 0)[:, None], np.roll(old, 1, axis=1), old + rng.normal(size=(N, 7)))
    ids = [IDS[i // 3] if i % 3 == 0 and i // 3 < len(IDS) else f"id-{i}" for i in range(N)]
    classes = [f"a_rather_long_name_of_a_class_{i}" for i in range(7)]
    text = [f"={i}+1" for i in range(N)]
    out = tmp_path_factory.mktemp("paper") / "report.html"
    before = {"id": ids, "label": label, "logits": old, "classes": classes}
    flipguard.report(before, {**before, "logits": new, "text": text}, out, show=["text"], by=())
    return out


def opened(driver: Driver, page: Path, *, scheme: str = "light", width: int | None = None) -> Driver:
    from selenium.webdriver.support.ui import WebDriverWait

    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    if width is None:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    else:
        metrics = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get_log("browser")
    driver.get(page.as_uri())
    WebDriverWait(driver, 300).until(lambda d: d.execute_script("return document.documentElement.dataset.ready"))
    return driver


def test_filters_that_have_nothing_to_filter_by_are_not_shown(chromium: Driver, page: Path) -> None:
    driver = opened(chromium, page)
    shown = "return document.getElementById(arguments[0]).getClientRects().length > 0"
    assert driver.execute_script(shown, "by-label")
    assert not driver.execute_script(shown, "slice-label")


def test_a_spreadsheet_takes_no_cell_of_the_download_for_a_formula(
    chromium: Driver, page: Path, tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    driver = opened(chromium, page)
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    driver.execute_script("document.getElementById('download').click()")
    WebDriverWait(driver, 300).until(lambda _: list(tmp_path.glob("*.csv")))
    (path,) = tmp_path.glob("*.csv")
    WebDriverWait(driver, 300).until(lambda _: path.read_text(encoding="utf-8").endswith("\n"))
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    assert len(found) == len(range(0, N, 3))
    expected = {"'=1+1", "'+cmd|' /C calc'!A0", "'@SUM(A1)", "-5", "'\t=x", "plain", "'-x", "1e-3"}
    assert expected <= {row["id"] for row in found}
    assert all(row["text"].startswith("'=") for row in found)


def test_paper_is_light_whatever_the_screen_is(chromium: Driver, page: Path) -> None:
    driver = opened(chromium, page, scheme="dark")
    tick = "return document.querySelector('#chart-ranks .xtick text').style.fill"
    assert driver.execute_script(tick) == "rgb(233, 235, 239)"
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert driver.execute_script(tick) == "rgb(22, 25, 31)"
    widths = "return [...document.querySelectorAll('.chart svg.main-svg')].map(s => s.clientWidth)"
    assert set(driver.execute_script(widths)) == {660}
    assert driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script(tick) == "rgb(233, 235, 239)"
    assert 660 not in driver.execute_script(widths)
    assert driver.get_log("browser") == []
    printed = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")


def test_a_phone_shows_whole_rows_of_the_classes(chromium: Driver, page: Path) -> None:
    driver = opened(chromium, page, width=390)
    cells = "return [...document.querySelectorAll('#classes tbody :is(td, th)')].map(c => c.getBoundingClientRect())"
    boxes = [box for box in driver.execute_script(cells) if box["width"]]
    assert len(boxes) > 7 * 5
    assert all(box["left"] >= 0 and box["right"] <= 390 for box in boxes)
    named = "return document.querySelector('#classes tbody td.rate').dataset.name"
    assert driver.execute_script(named) == "NFR"


def test_rows_shown_as_cards_are_rows_to_a_screen_reader(chromium: Driver, page: Path) -> None:
    driver = opened(chromium, page, width=390)
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
    assert roles.count("rowheader") >= 7 + 10
    assert roles.count("columnheader") >= 9


def test_labels_of_the_flow_lie_beside_it_and_within_the_picture(chromium: Driver, page: Path) -> None:
    for width in (None, 390):
        driver = opened(chromium, page, width=width)
        box = "return document.querySelector(arguments[0]).getBoundingClientRect()"
        every = (
            "return [...document.querySelectorAll('#chart-flow .annotation text')].map(t => t.getBoundingClientRect())"
        )
        picture, links = (
            driver.execute_script(box, f"#chart-flow {part}") for part in ("svg.main-svg", ".sankey-links")
        )
        labels = driver.execute_script(every)
        assert len(labels) == 4
        for label in labels:
            assert picture["left"] <= label["left"]
            assert label["right"] <= picture["right"]
            assert picture["top"] <= label["top"]
            assert label["bottom"] <= picture["bottom"]
            assert label["right"] <= links["left"] or links["right"] <= label["left"]
