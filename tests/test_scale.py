"""The arithmetic of docs/imagenet-scale.md, by hand, and that the page shows what the script prints."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks" / "scale.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    # Where dataclasses look for a class's module.
    sys.modules["scale"] = module
    spec.loader.exec_module(module)
    return module


def test_networks_are_counted_as_their_papers_count_them(scale: ModuleType) -> None:
    """He et al., Table 1: 1.8 and 3.8 billion multiply-adds; the stride on the 3 by 3 makes the latter 4.1."""
    small, large = (scale.counted(name, 1000) for name in ("resnet18", "resnet50"))
    assert small.flops / 2 == pytest.approx(1.82e9, rel=0.01)
    assert large.flops / 2 == pytest.approx(4.09e9, rel=0.01)
    assert (small.parameters, large.parameters) == (11_689_512, 25_557_032)
    # What is kept does not grow with the classes, the head does: 2,048 weights and a bias for each.
    wide = scale.counted("resnet50", 5089)
    assert wide.parameters - large.parameters == 4089 * 2049
    assert wide.kept_bytes == pytest.approx(large.kept_bytes, rel=0.01)


def test_hours_by_hand(scale: ModuleType) -> None:
    """7 images, 3 epochs, 2 members, and a GPU that takes an hour for an epoch of the smaller network's training."""
    small, large = (scale.counted(name, 3) for name in ("resnet18", "resnet50"))
    update = scale.Update("toy", "resnet18", "resnet50", images=7, classes=3, epochs=3, batch=64, members=2)
    speed, times = 7 * 3 * small.flops / 3600, large.flops / small.flops
    # So that two short members on one GPU are done before a long one.
    assert 2 < times < 3
    assert scale.member_hours(update, "resnet18", speed) == pytest.approx(3)
    assert scale.member_hours(update, "resnet50", speed) == pytest.approx(3 * times)
    # 3 of its own and 2 teachers; a batch of 64 keeps two GPUs busy and no more.
    student = 5 * times
    found = [scale.student_hours(update, "resnet50", speed, gpus) for gpus in (1, 2, 5)]
    assert found == pytest.approx([student, student / 2, student / 2])
    # Two long members and two of 3 hours: one after another, in pairs, the short ones on the third GPU, all at once.
    found = [scale.members_hours(update, speed, gpus) for gpus in (1, 2, 3, 5)]
    assert found == pytest.approx([6 * times + 6, 3 * times + 3, 3 * times, 3 * times])
    assert scale.hours(update, speed, 1) == pytest.approx(6 * times + 6 + 5 * times + 5)
    assert scale.hours(replace(update, members=4), speed, 1) == pytest.approx(12 * times + 12 + 7 * times + 7)
    # 12 bytes a parameter, 4 of each of 2 teachers, and what is kept of each of 23 rows.
    bytes_held = large.parameters * 20 + 23 * large.kept_bytes
    assert scale.memory_gb(update, "resnet50", 23, teachers=2) == pytest.approx(bytes_held / 1e9)
    images = 2 * scale.DECODED_PER_CORE
    assert scale.cores(update, "resnet50", 3 * large.flops * images) == pytest.approx(2.0)


def test_what_a_core_decodes_was_measured(scale: ModuleType) -> None:
    record = json.loads((ROOT / "results" / "loading.json").read_text())
    measured = record["decoded_per_second"]["16"] / record["cores"]
    assert pytest.approx(measured, abs=0.05) == scale.DECODED_PER_CORE


def test_the_page_shows_what_the_script_prints(scale: ModuleType) -> None:
    page = (ROOT / "docs" / "imagenet-scale.md").read_text(encoding="utf-8")
    missing = [line for line in scale.tables().splitlines() if line not in page]
    assert missing == []
