import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pytest

import flipguard
from flipguard.comparison import Comparison

if TYPE_CHECKING:
    from selenium import webdriver

CLASSES = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu")


@pytest.fixture(scope="session")
def comparison() -> Comparison:
    """997 samples of 7 classes: the new model is better, but class "gnu" and the slice country=it are broken."""
    rng = np.random.default_rng(7)
    n = 997
    label = np.arange(n) % 7
    country = np.array(["de", "fr", "it"])[rng.integers(0, 3, n)]
    old_right = rng.random(n) < 0.75
    new_right = np.where(old_right, rng.random(n) < 0.97, rng.random(n) < 0.8)
    new_right &= ~((label == 6) & (rng.random(n) < 0.5))
    new_right &= ~((country == "it") & (rng.random(n) < 0.1))

    def side(right: np.ndarray) -> dict[str, object]:
        prediction = np.where(right, label, (label + 1) % 7)
        logits = rng.normal(size=(n, 7)) + 6 * np.eye(7)[prediction]
        ids = [f"img_{i:04d}" for i in range(n)]
        return {"id": ids, "label": label, "logits": logits, "country": country, "classes": CLASSES}

    return flipguard.compare(
        side(old_right),
        side(new_right),
        noise=[side(rng.random(n) < 0.75), side(rng.random(n) < 0.75)],
        cost_ratio=3.0,
        gate={"max_nfr": 0.01, "max_class_nfr": 0.1, "max_churn": 0.9},
    )


@pytest.fixture(scope="session")
def hostile() -> Comparison:
    """Names that would colour a terminal, break a table, inject HTML or make XML unreadable."""
    evil = "\x1b[31mred\x1b[0m|[bold]x[/bold]\x00\x07<script>alert(1)</script>&`*_@everyone\r\n# head\u202e]]>"
    names = [evil, "ok"]
    old = {"id": [evil, "b", "c"], "label": [0, 1, 1], "prediction": [0, 1, 0], "classes": names, "s|<i>": [evil] * 3}
    new = {**old, "prediction": [1, 0, 1]}
    return flipguard.compare(old, new, gate={"max_nfr": 0.0, "max_slice_nfr": 0.0, "min_slice": 1})


@pytest.fixture(scope="session")
def chromium() -> Iterator["webdriver.Chrome"]:
    """A real Chromium without a window, that keeps what its console and its network say."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    service = shutil.which("chromedriver")
    if not browser or not service:
        pytest.skip("needs chromium and chromedriver: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900")
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(service))
    yield driver
    driver.quit()
