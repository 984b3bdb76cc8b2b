"""The demo: its figures by hand, and a small run of the real thing."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flipguard.demo import Outcome
from flipguard.metrics import Tally
from flipguard.types import InputError


def outcome(*negative: int) -> Outcome:
    """Pairs of 100 samples, of which 80 both right, 5 + 5 both wrong, the rest flips."""
    pairs = [
        Tally(count=np.array([80, flips, 10 - flips, 5, 5, 0, 0]), missing=np.zeros(2, np.int64)) for flips in negative
    ]
    return Outcome("none", tuple(pairs))


def test_summary_is_a_mean_over_pairs_with_a_student_interval() -> None:
    found = outcome(2, 4).summary()
    assert found["negative_flips"] == [2, 4]
    assert found["n"] == 100
    rate = found["negative_flip_rate"]
    assert rate["value"] == pytest.approx(0.03)
    # Two values 0.02 and 0.04: s/√2 = 0.01, and t with one degree of freedom is 12.706.
    assert rate["high"] - rate["value"] == pytest.approx(12.706 * 0.01, rel=1e-4)
    assert rate["value"] - rate["low"] == pytest.approx(rate["high"] - rate["value"])


def test_one_pair_is_refused() -> None:
    from flipguard import demo

    with pytest.raises(InputError, match="at least two pairs"):
        demo.run([0])


@pytest.mark.slow
@pytest.mark.long
def test_two_real_pairs(tmp_path: Path) -> None:
    """ELODI flips less than no treatment on these two pairs, and every treatment keeps NFR − PFR = ER_new − ER_old."""
    picture, record = tmp_path / "update.png", tmp_path / "update.json"
    command = ["demo", "--pairs", "2", "--picture", str(picture), "--json", str(record)]
    done = subprocess.run([sys.executable, "-m", "flipguard", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ELODI by" in done.stdout
    assert picture.stat().st_size > 10_000
    found = {entry["method"]: entry for entry in json.loads(record.read_text())}
    assert list(found) == ["none", "fd_lm", "elodi", "paragon"]
    for entry in found.values():
        value = {name: field["value"] for name, field in entry.items() if isinstance(field, dict)}
        gain = value["negative_flip_rate"] - value["positive_flip_rate"]
        assert math.isclose(gain, value["error_rate_new"] - value["error_rate_old"], abs_tol=1e-12)
    assert sum(found["elodi"]["negative_flips"]) < sum(found["none"]["negative_flips"])


def test_methods_are_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flipguard", "methods", "--json", "-"], capture_output=True, text=True, check=True
    )
    cards = {card["name"]: card for card in json.loads(done.stdout)}
    assert cards["elodi"]["parameters"]["alpha"] == 0.8
    assert cards["fd_lm"]["parameters"]["beta"] == 5.0
    assert cards["elodi"]["references"] == ["ensemble"]
