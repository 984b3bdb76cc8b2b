"""The report's page in a real Chromium: how large it is, how soon it is there, how quickly 10,000 flips are paged.

    python benchmarks/report.py
    python benchmarks/report.py --flips 20000 --json figures.json

Needs chromium, chromedriver and selenium. A turn, a filter, a search or a sort is timed from the event to the laid-out
page; "longest frame" is the longest gap between two frames while pages are turned one after another, a turn per frame.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import flipguard

CLASSES = 97
TIMED = """
const act = new Function(arguments[0]), times = [];
for (let i = 0; i < arguments[1]; i++) {
  const start = performance.now(); act.call(i); document.body.offsetHeight; times.push(performance.now() - start);
}
return times;
"""
FRAMES = """
const done = arguments[arguments.length - 1], next = document.getElementById("next"), gaps = [];
document.getElementById("first").click();
let last = null, left = 100;
requestAnimationFrame(function frame(now) {
  if (last !== null) gaps.push(now - last);
  last = now;
  if (!left--) return done(gaps);
  next.click();
  requestAnimationFrame(frame);
});
"""
ROWS = "const s = document.getElementById('size'); s.value = arguments[0]; s.dispatchEvent(new Event('change'))"
SEEN = """
window.seen = {};
new MutationObserver(() => {
  const at = performance.now() / 1000;
  if (!("flips" in seen) && document.querySelector("#flip-rows tr")) seen.flips = at;
  if (!("charts" in seen) && document.documentElement.dataset.ready) seen.charts = at;
}).observe(document, { subtree: true, childList: true, attributes: true });
"""
ACTS = {
    "turn a page of 25": ("document.getElementById('next').click()", 100),
    "turn a page of 100": ("document.getElementById('next').click()", 100),
    "filter by class": (
        "const s = document.getElementById('by-label'); s.selectedIndex = 1 + this % 50;"
        "s.dispatchEvent(new Event('change'))",
        50,
    ),
    "sort by a number": ("document.querySelector('#flip-head th.number button').click()", 20),
    "sort by a name": ("document.querySelector('#flip-head th[data-key=id] button').click()", 20),
    "search": (
        "document.getElementById('search').value = 'sample ' + this;"
        "document.getElementById('by-kind').dispatchEvent(new Event('change'))",
        20,
    ),
}


def sides(flips: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Every sample flips; each has a text, two slices and logits of 97 classes."""
    rng = np.random.default_rng(0)
    label = rng.integers(0, CLASSES, flips)
    old = rng.normal(size=(flips, CLASSES)).astype(np.float32)
    new = old.copy()
    old[np.arange(flips), label] = 9.0
    new[np.arange(flips), (label + 1) % CLASSES] = 9.0
    shared = {"id": [f"validation/img_{i:08}" for i in range(flips)], "label": label}
    slices = {"country": rng.choice(["de", "fr", "it"], flips), "device": rng.choice(["phone", "desk"], flips)}
    text = [f"sample {i} of the set, a sentence as long as these are" for i in range(flips)]
    return {**shared, "logits": old}, {**shared, "logits": new, **slices, "text": text}


def chromium() -> Any:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def measured(page: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"size, MB": page.stat().st_size / 1e6}
    driver = chromium()
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SEEN})
        driver.get(page.as_uri())
        while "charts" not in (seen := driver.execute_script("return window.seen")):
            time.sleep(0.05)
        found |= {"first flips shown after, s": seen["flips"], "every chart drawn after, s": seen["charts"]}
        for name, (act, count) in ACTS.items():
            driver.execute_script("document.getElementById('filters').reset()")
            size = 100 if name.endswith("100") else 25
            driver.execute_script(ROWS, str(size))
            time.sleep(0.2)
            times = sorted(driver.execute_script(TIMED, act, count))
            found[f"{name}, ms"] = {"median": statistics.median(times), "slowest": times[-1]}
        driver.execute_script("document.getElementById('filters').reset()")
        time.sleep(0.2)
        gaps = sorted(driver.execute_async_script(FRAMES))
        found["frame while pages turn, ms"] = {"median": statistics.median(gaps), "slowest": gaps[-1]}
    finally:
        driver.quit()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        page = Path(folder) / "report.html"
        began = time.perf_counter()
        flipguard.report(*sides(given.flips), page)
        found = {"flips": given.flips, "written in, s": time.perf_counter() - began, **measured(page)}
    for name, value in found.items():
        told = " ".join(f"{key} {number:.1f}" for key, number in value.items()) if isinstance(value, dict) else value
        print(f"{name:32} {told if isinstance(told, str) else f'{told:,.2f}'.removesuffix('.00')}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
