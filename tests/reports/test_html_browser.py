"""The page in a real Chromium, from disk: filters filter, pages page, nothing is fetched, nothing complains."""

import csv
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

import flipguard

EVIL = "</script><script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">"
N = 10_007
CLASSES = (*(f"class {i}" for i in range(6)), EVIL)
Driver = webdriver.Chrome


def ten_thousand_flips() -> tuple[dict[str, Any], dict[str, Any]]:
    """The new model is wrong on all but every seventh class; names, texts and slices hold markup."""
    rng = np.random.default_rng(1)
    label = np.arange(N) % 7
    old = rng.normal(size=(N, 7)) + 12 * np.eye(7)[label]
    new = rng.normal(size=(N, 7)) + 12 * np.eye(7)[(label + 1) % 7]
    near = np.arange(N) % 11 == 0
    old[near] -= 11.9 * np.eye(7)[label[near]]
    old[near] += (old[near].max(axis=1) - old[near, label[near]] + 0.01)[:, None] * np.eye(7)[label[near]]
    text = [f"text {i} {EVIL}" if i % 2 else f"plain {i}" for i in range(N)]
    shared = {"id": [f"id-{i}" for i in range(N)], "label": label, "classes": CLASSES}
    country = np.array(["de", "fr", EVIL])[np.arange(N) % 3]
    return {**shared, "logits": old}, {**shared, "logits": new, "country": country, "text": text}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    old, new = ten_thousand_flips()
    out = tmp_path_factory.mktemp("page") / "report.html"
    images = tmp_path_factory.mktemp("images")
    from PIL import Image

    Image.new("RGB", (24, 24), (200, 30, 30)).save(images / "id-0.png")
    before = {**old, "logits": old["logits"] + np.random.default_rng(2).normal(size=(N, 7))}
    found = flipguard.report(old, new, out, images=images, candidates=[before], chain=[before])
    assert found.negative_flips == N
    return out


@pytest.fixture
def browser(chromium: Driver, page: Path) -> Driver:
    """The page, freshly loaded in a wide window in light mode."""
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    media(chromium)
    return load(chromium, page)


def media(driver: Driver, kind: str = "", scheme: str = "light") -> None:
    """Without motion: a click must not have to wait for the scrolling to end."""
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})


def load(driver: Driver, page: Path) -> Driver:
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    WebDriverWait(driver, 300).until(lambda d: d.execute_script("return document.documentElement.dataset.ready"))
    return driver


def find(driver: Driver, id_: str) -> Any:
    return driver.find_element(By.ID, id_)


def rows(driver: Driver) -> list[list[str]]:
    """The cells of the flips on the page."""
    script = "return [...document.querySelectorAll('#flip-rows tr')].map(r => [...r.cells].map(c => c.textContent))"
    found: list[list[str]] = driver.execute_script(script)
    return found


def heads(driver: Driver) -> list[str]:
    script = "return [...document.querySelectorAll('#flip-head th')].map(c => c.textContent)"
    found: list[str] = driver.execute_script(script)
    return found


def column(driver: Driver, name: str) -> list[str]:
    place = heads(driver).index(name)
    return [row[place] for row in rows(driver)]


def status(driver: Driver) -> str:
    return str(find(driver, "status").text)


def until(driver: Driver, check: Callable[[], bool]) -> None:
    WebDriverWait(driver, 300, poll_frequency=0.02).until(lambda _: check())


def click(driver: Driver, id_: str) -> None:
    """In the middle of the window, where the head of the page does not lie over it."""
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", find(driver, id_))
    find(driver, id_).click()


def choose(driver: Driver, id_: str, text: str) -> None:
    select = Select(find(driver, id_))
    option = next(o for o in select.options if o.text.startswith(text))
    select.select_by_visible_text(option.text)


def keys(driver: Driver, *pressed: str) -> None:
    driver.execute_script("document.getElementById('rows').focus()")
    for key in pressed:
        driver.switch_to.active_element.send_keys(key)


def test_nothing_is_fetched_and_nothing_complains(browser: Driver) -> None:
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    log = "".join(entry["message"] for entry in browser.get_log("performance"))
    assert "requestWillBeSent" in log
    assert not re.findall(r'"url":"(?:https?|wss?|ftp):', log)


def test_the_policy_stops_a_request_and_an_injected_script(browser: Driver) -> None:
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'document.title = \"broken\"';"
        "document.body.append(s); fetch('https://example.org/').catch(() => { window.refused = true });"
    )
    until(browser, lambda: bool(browser.execute_script("return window.refused")))
    assert browser.title != "broken"
    complaints = "".join(entry["message"] for entry in browser.get_log("browser"))
    assert complaints.count("Content Security Policy") >= 2


def test_every_chart_is_drawn(browser: Driver) -> None:
    script = "return [...document.querySelectorAll('.chart')].map(c => [c.id, !!c.querySelector('svg.main-svg')])"
    drawn = dict(browser.execute_script(script))
    assert len(drawn) == 9
    assert all(drawn.values())


def test_markup_in_names_texts_and_slices_is_shown_and_does_nothing(browser: Driver) -> None:
    choose(browser, "by-label", EVIL)
    assert set(column(browser, "label, old")) == {EVIL}
    choose(browser, "by-slice", EVIL)
    assert any(EVIL in cell for cell in column(browser, "text"))
    browser.find_element(By.CSS_SELECTOR, "#flip-rows tr th").click()
    assert EVIL in find(browser, "one-body").text
    assert browser.title == "old → new: flipguard"
    assert browser.execute_script("return document.querySelectorAll('main script, img[onerror]').length") == 0
    assert browser.get_log("browser") == []


def test_ten_thousand_flips_are_paged_and_only_one_page_is_laid_out(browser: Driver) -> None:
    assert status(browser) == "1–25 of 10,007 flips"
    assert len(rows(browser)) == 25
    first = column(browser, "id")
    click(browser, "next")
    assert status(browser) == "26–50 of 10,007 flips"
    assert not set(first) & set(column(browser, "id"))
    click(browser, "last")
    assert status(browser) == "10,001–10,007 of 10,007 flips"
    assert not find(browser, "next").is_enabled()
    click(browser, "first")
    choose(browser, "size", "100")
    assert len(rows(browser)) == 100
    assert browser.execute_script("return document.querySelectorAll('#browser *').length") < 5_000


def test_filters_filter_and_clear(browser: Driver) -> None:
    choose(browser, "by-label", "class 3")
    assert set(column(browser, "label, old")) == {"class 3"}
    assert set(column(browser, "new says")) == {"class 4"}
    assert "of 1,430 of 10,007 flips" in status(browser)
    choose(browser, "by-slice", "de")
    assert all("country: de" in cell for cell in column(browser, "slices"))
    both = sum(i % 7 == 3 and i % 3 == 0 for i in range(N))
    assert f"of {both} of 10,007 flips" in status(browser)
    browser.find_element(By.CSS_SELECTOR, "#filters [type=reset]").click()
    until(browser, lambda: status(browser) == "1–25 of 10,007 flips")


def test_kinds_of_flips_are_told_apart(browser: Driver) -> None:
    choose(browser, "by-kind", "near")
    logits = ten_thousand_flips()[0]["logits"]
    second, first = np.sort(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), axis=1)[:, -2:].T
    near = int((first - second <= 0.1).sum())
    assert 0 < near < N / 10
    assert f"of {near} of 10,007 flips" in status(browser)
    # All samples flip, so none that stayed right says what a large displacement is.
    assert [o.text for o in Select(find(browser, "by-kind")).options][1:] == ["near the boundary (old margin ≤ 0.1)"]


def test_search_finds_every_word_in_id_class_and_text(browser: Driver) -> None:
    find(browser, "search").send_keys("plain 9998")
    until(browser, lambda: status(browser).startswith("1–1 of 1 of"))
    assert column(browser, "id") == ["id-9998"]
    find(browser, "search").send_keys(" nothing-like-it")
    until(browser, lambda: status(browser).startswith("No flip matches"))
    assert rows(browser) == []


def test_heads_sort_both_ways(browser: Driver) -> None:
    def click(name: str) -> list[str]:
        next(b for b in browser.find_elements(By.CSS_SELECTOR, "#flip-head button") if b.text.startswith(name)).click()
        return column(browser, name)

    moved = [float(cell) for cell in click("displacement")]
    assert moved == sorted(moved, reverse=True)
    assert [float(cell) for cell in click("displacement")] == sorted(
        float(cell) for cell in column(browser, "displacement")
    )
    assert click("id")[:3] == ["id-0", "id-1", "id-2"]
    assert click("id")[0] == f"id-{N - 1}"
    sorts = "return [...document.querySelectorAll('#flip-head th')].map(t => t.ariaSort).filter(Boolean)"
    assert browser.execute_script(sorts) == ["descending"]


def test_the_keyboard_moves_pages_opens_and_searches(browser: Driver) -> None:
    chosen = "return document.querySelector('#flip-rows [aria-current]').dataset.flip"
    keys(browser, Keys.ARROW_DOWN, "j", Keys.ARROW_UP)
    assert browser.execute_script(chosen) == "1"
    keys(browser, Keys.ARROW_RIGHT)
    assert status(browser).startswith("26–50")
    keys(browser, Keys.ARROW_UP)
    assert status(browser).startswith("1–25")
    assert browser.execute_script(chosen) == "24"
    keys(browser, Keys.ENTER)
    title = find(browser, "one-title").text
    assert title == column(browser, "id")[24]
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert find(browser, "one-title").text == column(browser, "id")[0]
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not find(browser, "one").get_attribute("open")
    assert browser.switch_to.active_element.get_attribute("id") == "rows"
    keys(browser, "/")
    assert browser.switch_to.active_element.get_attribute("id") == "search"
    browser.switch_to.active_element.send_keys("j")
    until(browser, lambda: status(browser).startswith("No flip") or "of 10,007" in status(browser))
    assert find(browser, "search").get_attribute("value") == "j"
    keys(browser, Keys.ESCAPE)
    until(browser, lambda: status(browser) == "1–25 of 10,007 flips")


def test_classes_slices_and_confusions_lead_to_their_flips(browser: Driver) -> None:
    link = next(a for a in browser.find_elements(By.CSS_SELECTOR, "#classes a[data-filter]") if a.text == "class 2")
    browser.execute_script("arguments[0].click()", link)
    assert set(column(browser, "label, old")) == {"class 2"}
    link = next(a for a in browser.find_elements(By.CSS_SELECTOR, "#slices a[data-filter]") if a.text == "country=fr")
    browser.execute_script("arguments[0].click()", link)
    assert all("country: fr" in cell for cell in column(browser, "slices"))
    assert len(set(column(browser, "label, old"))) > 1
    browser.execute_script(
        "const c = document.getElementById('chart-confusion'), z = c.data[0].z;"
        "const y = z.findIndex(r => r.some(Boolean)), x = z[y].findIndex(Boolean);"
        "c.emit('plotly_click', {points: [{customdata: c.data[0].customdata[y][x]}]})"
    )
    assert len(set(column(browser, "label, old"))) == len(set(column(browser, "new says"))) == 1


def test_ids_are_copied_and_flips_downloaded(browser: Driver, tmp_path: Path) -> None:
    find(browser, "search").send_keys("id-77")
    until(browser, lambda: "of 10,007 flips" in status(browser) and not status(browser).startswith("1–25 of 10,007"))
    shown = int(status(browser).split(" of ")[1].replace(",", ""))
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    click(browser, "download")
    until(browser, lambda: any(p.suffix == ".csv" for p in tmp_path.iterdir()))
    time.sleep(0.2)
    (path,) = tmp_path.glob("*.csv")
    with path.open(newline="", encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    expected = [i for i in range(N) if "id-77" in f"id-{i}"]
    assert len(found) == shown == len(expected)
    assert {row["id"] for row in found} == {f"id-{i}" for i in expected}
    assert {row["text"] for row in found} == {f"text {i} {EVIL}" if i % 2 else f"plain {i}" for i in expected}
    click(browser, "copy")
    until(browser, lambda: status(browser) == f"Copied {shown} ids.")
    search = find(browser, "search")
    search.clear()
    search.send_keys(Keys.CONTROL, "v")
    assert "id-77" in str(search.get_attribute("value"))


def test_a_thumbnail_is_shown_where_there_is_one(browser: Driver) -> None:
    find(browser, "search").send_keys("id-0")
    until(browser, lambda: status(browser).startswith("1–1 of 1 of"))
    script = "const i = document.querySelector('#flip-rows img'); return [i.naturalWidth, i.alt, i.src.slice(0, 16)]"
    until(browser, lambda: browser.execute_script(script)[0] > 0)
    assert browser.execute_script(script) == [24, "sample id-0", "data:image/webp;"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_sideways_scrolling(browser: Driver, page: Path, scheme: str) -> None:
    media(browser, scheme=scheme)
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    load(browser, page)
    until(browser, lambda: browser.execute_script("return document.documentElement.scrollWidth") == 390)
    assert len(rows(browser)) == 10
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]
    ink = browser.execute_script("return document.querySelector('#chart-ranks .xtick text').style.fill")
    assert ink == {"light": "rgb(22, 25, 31)", "dark": "rgb(233, 235, 239)"}[scheme]
    assert browser.get_log("browser") == []


def test_charts_follow_when_the_colours_change(browser: Driver) -> None:
    fill = "return document.querySelector('#chart-ranks .xtick text').style.fill"
    before = browser.execute_script(fill)
    media(browser, scheme="dark")
    until(browser, lambda: browser.execute_script(fill) != before)


def test_print_leaves_out_what_only_a_screen_needs(browser: Driver) -> None:
    media(browser, kind="print")
    shown = "return getComputedStyle(document.querySelector(arguments[0])).display"
    assert browser.execute_script(shown, "header") == browser.execute_script(shown, "#filters") == "none"
    assert browser.execute_script(shown, "#verdict") != "none"
    assert len(str(browser.print_page())) > 10_000


def test_the_accessibility_tree_names_every_control_and_picture(browser: Driver) -> None:
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    wanted = {"button", "combobox", "searchbox", "spinbutton", "img", "image", "table", "region", "link", "heading"}
    named: dict[str, int] = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        if role in wanted and not node.get("ignored"):
            assert node.get("name", {}).get("value"), node
            named[role] = named.get(role, 0) + 1
    assert named["heading"] > 10
    assert named["table"] >= 4
