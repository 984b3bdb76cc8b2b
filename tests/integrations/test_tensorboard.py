"""TensorBoard's own files, read back by its own reader."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from flipguard.analysis.runs import read_finished
from flipguard.integrations.logged import figures_of
from flipguard.integrations.tensorboard import log_run


def test_figures_epochs_and_report_are_in_the_files(run_folder: Callable[[str], Path], tmp_path: Path) -> None:
    folder = run_folder("passed")
    place = log_run(folder, tmp_path / "events")
    events = EventAccumulator(str(place))
    events.Reload()
    run = read_finished(folder)
    for name, value in figures_of(run.comparison).items():
        (event,) = events.Scalars(f"flipguard/{name}")
        assert event.value == pytest.approx(value, rel=1e-6), name
        assert event.step == 5
    assert [event.step for event in events.Scalars("new/error_rate_new")] == [3, 4, 5]
    texts = {tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"]}
    assert texts["flipguard/gate/text_summary"] == "passed"
    assert "the gate passes" in texts["flipguard/report/text_summary"]
    assert "versions.new.method.name: kd" in texts["flipguard/spec/text_summary"]
