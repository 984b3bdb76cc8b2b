"""W&B offline: its own files hold what was logged, and a model only when the gate passed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from flipguard.analysis.runs import read_finished
from flipguard.integrations.logged import GateRefused, figures_of
from flipguard.integrations.wandb import log_run, register_model, register_release
from flipguard.types import InputError

Folder = Callable[[str], Path]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Any]:
    settings = wandb.Settings(mode="offline", root_dir=str(tmp_path), silent=True, x_disable_stats=True)
    yield wandb.init(project="updates", settings=settings)
    if wandb.run is not None:
        wandb.finish()


def written(folder: Path) -> bytes:
    """The file in which an offline run keeps what it will send: uncompressed messages, one after the other.

    A process of W&B's own writes it, and is done when it has ended.
    """
    wandb.finish()
    wandb.teardown()
    (path,) = folder.rglob("*.wandb")
    return path.read_bytes()


def test_a_run_folder_and_its_release_are_logged(run: Any, run_folder: Folder, tmp_path: Path) -> None:
    folder = run_folder("passed")
    log_run(folder)
    model = register_release(folder, "digits")
    found = read_finished(folder)
    assert run.config["versions.new.method.name"] == "kd"
    for name, value in figures_of(found.comparison).items():
        assert run.summary[f"flipguard/{name}"] == pytest.approx(value), name
    assert run.summary["flipguard/gate"] == "passed"
    assert run.summary["new/negative_flip_rate"] >= 0
    assert model.type == "model"
    assert set(model.manifest.entries) == {"model.json", "model.safetensors"}
    assert model.metadata["negative_flips"] == found.comparison.negative_flips
    sent = written(tmp_path)
    for name in (b"gate-passed", b"model.safetensors", b"comparison.xml", b"report.html", b"new/negative_flip_rate"):
        assert name in sent


@pytest.mark.parametrize("kept", [True, False])
def test_a_refused_release_is_kept_and_no_model(run: Any, run_folder: Folder, tmp_path: Path, kept: bool) -> None:
    log_run(run_folder("refused"), page=False, release=kept)
    sent = written(tmp_path)
    for name in (b"flipguard-release", b"model.safetensors", b"model.json"):
        assert (name in sent) == kept
    assert b"gate-passed" not in sent


@pytest.mark.parametrize("verdict", ["refused", "not judged"])
def test_what_did_not_pass_is_no_artifact(run: Any, run_folder: Folder, tmp_path: Path, verdict: str) -> None:
    with pytest.raises(GateRefused):
        register_release(run_folder(verdict), "digits")
    with pytest.raises(GateRefused):
        register_model(tmp_path, "digits", read_finished(run_folder(verdict)).comparison)
    sent = written(tmp_path)
    assert b"updates" in sent
    assert b"gate-passed" not in sent
    assert b"model.safetensors" not in sent


def test_any_file_is_a_model_once_its_comparison_passed(run: Any, run_folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"weights")
    comparison = read_finished(run_folder("passed")).comparison
    model = register_model(tmp_path / "model.onnx", "digits", comparison)
    assert set(model.manifest.entries) == {"model.onnx"}
    assert b"gate-passed" in written(tmp_path)


def test_without_a_run_it_says_what_to_do(run_folder: Folder) -> None:
    with pytest.raises(InputError, match=r"call wandb\.init first"):
        log_run(run_folder("passed"))
