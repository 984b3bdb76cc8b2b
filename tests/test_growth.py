"""The scripts that measure members: what they make of figures, by hand. They train nothing here."""

import doctest
import importlib.util
import json
import logging
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flipguard.types import InputError

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a script is called: it finds the others in its own folder."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("name", ["growth", "accuracy", "update"])
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


def test_the_picture_shows_what_is_there(tmp_path: Path) -> None:
    """An engine that is new, a shape of which only the plain loop is known, and one that was only begun."""
    figure = {"ms": 4.0, "runs": [4.0]}
    jobs = {
        "resnet18_w32_b512": {"flops": 1, "plain_1": figure, "woven_1": figure, "woven_16": {"not": "no memory"}},
        "resnet18_w64_b512": {"flops": 1, "plain_1": figure},
        "resnet18_w64_b128": {"flops": 1},
    }
    source, target = tmp_path / "growth.json", tmp_path / "growth.svg"
    source.write_text(json.dumps({"hardware": "a card", "torch": "2.11.0", "jobs": jobs}))
    growth = script("growth")
    growth.plot(source, target)
    assert [(line.name, line.x) for line in growth.series(jobs["resnet18_w32_b512"])] == [
        ("plain", (1.0,)),
        ("woven", (1.0,)),
    ]
    drawn = target.read_text()
    assert "woven" in drawn
    assert "resnet18 w64 b512" in drawn
    assert "resnet18 w64 b128" not in drawn
    for wrong, reason in (({"jobs": {}}, "has no figures to draw"), ("{", "cannot be read as figures of members")):
        source.write_text(wrong if isinstance(wrong, str) else json.dumps(wrong))
        with pytest.raises(InputError, match=reason):
            growth.plot(source, tmp_path / "other.svg")
    with pytest.raises(InputError, match="cannot be read"):
        growth.plot(tmp_path / "missing.json", tmp_path / "other.svg")
    assert not (tmp_path / "other.svg").exists()


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("update", ("--epochs", "4", "--plain-epochs", "5"), "--plain-epochs must be from 1 to 4, got 5."),
        ("members", ("--grow", "--engines", "captured", "fast"), "engine must be one of auto, plain"),
        ("members", ("--plot", "missing.json"), "missing.json cannot be read as figures of members"),
    ],
)
def test_bad_arguments_are_one_line(
    name: str,
    given: tuple[str, ...],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *given])
    with pytest.raises(SystemExit) as ended:
        script(name).main()
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_the_log_of_training_is_kept_and_then_let_be() -> None:
    log = logging.getLogger("flipguard.training")
    before = log.level, list(log.handlers)
    with script("update").training_log() as lines:
        log.info("%d networks side by side (%s)", 8, "captured")
    log.info("something else")
    assert lines == ["8 networks side by side (captured)"]
    assert (log.level, list(log.handlers)) == before
