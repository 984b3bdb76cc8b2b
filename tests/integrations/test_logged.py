"""What a run folder tells a tracker, and when a model may be registered."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flipguard
from flipguard.analysis.runs import read_finished
from flipguard.integrations.logged import (
    GateRefused,
    counted_epochs,
    figures_of,
    network_of,
    page_of,
    release_of,
    require_passed,
    write_reports,
)
from flipguard.releases import load_release
from flipguard.types import InputError

Folder = Callable[[str], Path]


def compared(**options: Any) -> flipguard.Comparison:
    old = {"id": list(range(101)), "label": [i % 3 for i in range(101)], "prediction": [i % 3 for i in range(101)]}
    return flipguard.compare(old, {**old, "prediction": [(i + (i % 13 == 0)) % 3 for i in range(101)]}, **options)


def test_every_figure_of_the_json_is_there() -> None:
    comparison = compared()
    stored, found = json.loads(comparison.to_json()), figures_of(comparison)
    for name, value in stored.items():
        if isinstance(value, dict) and "low" in value and value["value"] is not None:
            assert found[name] == value["value"]
            assert found[f"{name}_high"] == value["high"]
    assert found["negative_flips"] == stored["negative_flips"] == 8
    assert "flipguard_version" not in found


def test_reports_are_those_of_the_command(tmp_path: Path) -> None:
    comparison = compared(gate={"max_nfr": 0.5})
    paths = write_reports(comparison, tmp_path)
    assert [path.name for path in paths] == ["comparison.json", "comparison.md", "comparison.xml"]
    assert json.loads(paths[0].read_text())["negative_flips"] == 8
    assert "the gate passes" in paths[1].read_text()


def test_the_gate_decides_who_may_be_registered() -> None:
    require_passed(compared(gate={"max_nfr": 0.5}))
    with pytest.raises(GateRefused, match="the gate refuses: max_nfr"):
        require_passed(compared(gate={"max_nfr": 0.01}))
    with pytest.raises(GateRefused, match="was not judged: compare it with a gate"):
        require_passed(compared())


def test_a_run_folder_gives_its_epochs_its_page_and_its_release(run_folder: Folder, tmp_path: Path) -> None:
    run = read_finished(run_folder("passed"))
    assert run.versions == ("old", "new")
    assert run.parameters["versions.new.method.name"] == "kd"
    epochs = dict(counted_epochs(run))
    assert list(epochs) == list(range(6))
    assert "old/error_rate_new" in epochs[0]
    assert "new/negative_flip_rate" in epochs[5]
    assert "new/loss/cross_entropy" in epochs[3]
    page = page_of(run, tmp_path / "report.html").read_text()
    assert "max_nfr" in page
    copied = release_of(run, tmp_path / "release")
    assert {path.name for path in copied.iterdir()} == {"model.safetensors", "model.json"}
    assert load_release(copied).classes == load_release(run.path).classes


def test_a_refused_or_unjudged_run_has_no_release(run_folder: Folder, tmp_path: Path) -> None:
    for verdict in ("refused", "not judged"):
        with pytest.raises(GateRefused):
            release_of(read_finished(run_folder(verdict)), tmp_path / "release")
        assert not (tmp_path / "release").exists()


def test_a_run_without_a_network_has_nothing_to_log_or_register(run_folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(run_folder("passed"), tmp_path / "run")
    (tmp_path / "run" / "versions" / "new" / "model.safetensors").unlink()
    run = read_finished(tmp_path / "run")
    assert network_of(run, tmp_path / "release") is None
    with pytest.raises(InputError, match="there is nothing to register"):
        release_of(run, tmp_path / "release")


def test_what_is_no_finished_run_is_said(run_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no run folder"):
        read_finished(tmp_path)
    for name in ("spec.yaml", "run.json"):
        (tmp_path / name).write_bytes((run_folder("passed") / name).read_bytes())
    with pytest.raises(InputError, match=r"comparison\.json cannot be read"):
        read_finished(tmp_path)
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(InputError, match="compares nothing"):
        read_finished(tmp_path)
    stopped = (tmp_path / "run.json").read_text().replace('"finished"', '"stopped"')
    (tmp_path / "run.json").write_text(stopped)
    with pytest.raises(InputError, match="is stopped: let flipguard train finish it"):
        read_finished(tmp_path)
