"""The arithmetic of docs/imagenet-scale.md, by hand, and that the page shows what the script prints."""

import importlib.util
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


def test_hours_by_hand(scale: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of 2 and 5 operations an image, 7 images, 3 epochs, 2 members, 7·3/3600 operations a second."""
    sizes = {"a": scale.Network(11, 2.0, 13.0), "b": scale.Network(17, 5.0, 19.0)}
    monkeypatch.setattr(scale, "counted", lambda model, *_, **__: sizes[model])
    update = scale.Update("toy", "a", "b", images=7, classes=3, epochs=3, batch=64, members=2)
    speed = 7 * 3 / 3600
    assert scale.member_hours(update, "a", speed) == pytest.approx(3 * 2)
    assert scale.member_hours(update, "b", speed) == pytest.approx(3 * 5)
    # 3 of its own and 2 teachers; a batch of 64 keeps two GPUs busy and no more.
    assert [scale.student_hours(update, "b", speed, gpus) for gpus in (1, 2, 5)] == pytest.approx([25, 12.5, 12.5])
    # Members of 15, 15, 6 and 6 hours: one after another, two at a time, and all at once.
    assert [scale.members_hours(update, speed, gpus) for gpus in (1, 2, 3, 5)] == pytest.approx([42, 21, 15, 15])
    assert scale.hours(update, speed, 1) == pytest.approx(42 + 10 + 25)
    assert scale.hours(replace(update, members=4), speed, 1) == pytest.approx(84 + 14 + 35)
    # 12 bytes a parameter, 4 of each of 2 teachers, 19 a row.
    assert scale.memory_gb(update, "b", 23, teachers=2) == pytest.approx((17 * 20 + 23 * 19) / 1e9)
    assert scale.cores(update, "b", 15 * 320.0) == pytest.approx(1.0)


def test_the_page_shows_what_the_script_prints(scale: ModuleType) -> None:
    page = (ROOT / "docs" / "imagenet-scale.md").read_text(encoding="utf-8")
    missing = [line for line in scale.tables().splitlines() if line not in page]
    assert missing == []
