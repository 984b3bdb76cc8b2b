"""The scripts that measure members: what they make of figures, by hand. They train nothing here."""

import doctest
import importlib.util
import json
import math
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["growth", "accuracy"])
def test_examples(name: str) -> None:
    found = doctest.testmod(script(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_a_difference_is_inside_only_with_its_whole_interval() -> None:
    """Differences of 0.1 and 0.3: s = 0.1414, t_1 = 12.706, so 0.2 ± 1.27; four of 0.2 and 0.3 are 0.25 ± 0.09."""
    accuracy = script("accuracy")
    two = accuracy.compared({"0": 70.0, "1": 71.0, "2": 9.0}, {"0": 70.1, "1": 71.3})
    assert (two["n"], two["inside"]) == (2, False)
    assert two["interval"] == pytest.approx([0.2 - 1.2706, 0.2 + 1.2706], abs=1e-3)
    plain = {str(seed): 70.0 for seed in range(4)}
    four = accuracy.compared(plain, {"0": 70.2, "1": 70.3, "2": 70.2, "3": 70.3})
    assert four["inside"]
    assert four["interval"] == pytest.approx([0.25 - 3.1824 * 0.057735 / 2, 0.25 + 3.1824 * 0.057735 / 2], abs=1e-4)
    assert not accuracy.compared(plain, dict.fromkeys(plain, 69.45))["inside"]
    assert accuracy.compared(plain, {"0": 70.0})["interval"] == [-math.inf, math.inf]


def test_the_picture_has_a_panel_per_shape(tmp_path: Path) -> None:
    figure = {"ms": 4.0, "runs": [3.0, 5.0]}
    jobs = {
        "resnet18_w32_b512": {"flops": 1, "plain_1": figure, "captured_1": figure, "captured_8": figure},
        "resnet18_w64_b128": {"flops": 1, "plain_1": figure, "grouped_2": figure, "stacked_2": {"not": "no memory"}},
    }
    (tmp_path / "growth.json").write_text(json.dumps({"hardware": "a card", "torch": "2.11.0+cu130", "jobs": jobs}))
    script("growth").plot(tmp_path / "growth.json", tmp_path / "growth.svg")
    drawn = (tmp_path / "growth.svg").read_text()
    for words in (
        "resnet18 w32 b512",
        "resnet18 w64 b128",
        "plain loop",
        "captured",
        "grouped",
        "a card, torch 2.11.0",
    ):
        assert words in drawn
    assert "stacked" not in drawn
