"""Figures in a tracker's own files."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flipguard.releases import TrainSpec, train
from flipguard.releases.tracking import TRACKERS, tracker
from flipguard.types import MissingExtra


def test_tensorboard_has_every_epoch_of_every_version(tmp_path: Path, small: Callable[..., TrainSpec]) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    watching = tracker("tensorboard")
    train(small(), tmp_path / "a", listener=watching)
    watching.close()
    events = reading.EventAccumulator(str(tmp_path / "a/tensorboard"))
    events.Reload()
    steps = {name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]}
    assert steps["old/error_rate_new"] == [0, 1, 2]
    assert steps["new/negative_flip_rate"] == steps["new/loss/cross_entropy"] == [3, 4, 5]


def test_wandb_keeps_the_figures_of_a_run(tmp_path: Path, small: Callable[..., TrainSpec]) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: make integrations has it")
    command = f"""
from flipguard.releases import train
from flipguard.releases.plan import TrainSpec
from flipguard.releases.tracking import tracker
watching = tracker("wandb")
train(TrainSpec.model_validate_json({small().model_dump_json(exclude_none=True)!r}), "a", listener=watching)
watching.close()
"""
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", command], cwd=tmp_path, env=environment, check=True)
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"new/negative_flip_rate" in kept.read_bytes()


def test_a_run_in_which_nothing_is_trained_leaves_no_trace(tmp_path: Path, small: Callable[..., TrainSpec]) -> None:
    pytest.importorskip("tensorboard")
    train(small(), tmp_path / "a")
    watching = tracker("tensorboard")
    train(small(), tmp_path / "a", listener=watching)
    watching.close()
    assert not (tmp_path / "a/tensorboard").exists()


@pytest.mark.parametrize("name", [name for name in TRACKERS if importlib.util.find_spec(name) is None])
def test_a_tracker_that_is_not_installed_names_the_extra(name: str) -> None:
    with pytest.raises(MissingExtra, match=rf"needs {name}: pip install 'flipguard\[track\]'"):
        tracker(name)
