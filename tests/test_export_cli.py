"""`flipguard export` as a command: every form says what the run says."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from typer.testing import CliRunner, Result

import flipguard
from flipguard.checkpoints import load_checkpoint
from flipguard.cli.app import app
from flipguard.data import load_data
from flipguard.releases import load_release
from flipguard.releases.yaml_text import as_yaml
from one_process import in_turn

SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "old": {"model": {"name": "mlp", "hidden": [5]}, "data": {"classes": 0.5}},
    "new": {"model": {"name": "mlp", "hidden": [7]}},
    "train": {"epochs": 3, "batch_size": 31, "learning_rate": 0.05, "device": "cpu"},
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


FILES = {"safetensors": "m.safetensors", "onnx": "m.onnx", "torchscript": "m.pt", "torch-export": "m.pt2"}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose old version knows half of the classes, and is judged on their samples."""
    home = tmp_path_factory.mktemp("grown")
    (home / "grown.yaml").write_text(as_yaml(SPEC))
    result = run("train", home / "grown.yaml", "--out", home / "run")
    assert result.exit_code == 0, result.stderr
    return home / "run"


@pytest.mark.parametrize("version", ["old", "new"])
@pytest.mark.parametrize("form", FILES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_export_says_what_the_run_says(form: str, version: str, grown: Path) -> None:
    result = run("export", grown, "--version", version, "--format", form, "--out", FILES[form])
    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(rf"{FILES[form]}: {version} as {form}; the same class on 256 samples, .*\.\n", result.stdout)
    facts = json.loads(Path(f"{FILES[form]}.json").read_text())
    said = flipguard.read_predictions(grown / f"versions/{version}/predictions/test.parquet")
    assert facts["classes"] == list(said.classes or ())
    rows = said.table(["id", "logits"])
    expected = torch.tensor(rows["logits"].to_pylist())
    data = load_data({"name": "digits", "test_size": 0.6}).test
    places = {name: place for place, name in enumerate(data.ids.tolist())}
    pixels = data.x[[places[name] for name in rows["id"].to_pylist()]].float() / 255
    scale = facts["normalisation"]
    x = (pixels - scale["mean"][0]) / scale["std"][0]
    torch.testing.assert_close(loaded(Path(FILES[form]), form, version, grown)(x), expected, rtol=1e-4, atol=1e-4)


def loaded(path: Path, form: str, version: str, grown: Path) -> Any:
    """As another program would load it."""
    if form == "safetensors":
        network = load_release(grown, version).network
        network.load_state_dict(load_checkpoint(path)[0])
        return torch.no_grad()(network)
    if form == "torchscript":
        return torch.no_grad()(torch.jit.load(str(path)))
    if form == "torch-export":
        return torch.no_grad()(torch.export.load(path).module())
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda x: torch.from_numpy(session.run(["logits"], {"x": x.numpy()})[0])


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert "--debug" not in lines[0], lines[0]
    for part in parts:
        assert part in lines[0]


def test_an_export_warns_of_nothing(grown: Path) -> None:
    """A real process: torch tells of deprecations and missing libraries where nobody can do anything about them."""
    forms = ("onnx", "torchscript")
    told = in_turn(Path.cwd(), *(("export", grown, "--format", form, "--out", FILES[form]) for form in forms))
    for form, done in zip(forms, told, strict=True):
        assert (done.code, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{FILES[form]}: new as {form}")


def test_an_export_that_cannot_be_is_refused_in_one_line(grown: Path) -> None:
    shutil.copytree(grown / "versions/new", "bare/versions/new")
    assert_refused(run("export", "bare/versions/new", "--format", "onnx", "--out", "m.onnx"), "in no run folder")
    named = ("--data", "name=digits", "--data", "test_size=0.6")
    again = run("export", "bare/versions/new", "--format", "safetensors", "--out", "m.safetensors", *named)
    assert again.exit_code == 0, again.stderr
    assert_refused(run("export", grown, "--format", "onnx", "--out", "m.pt"), "ends in .onnx")
    unknown = (
        "--format': 'onxx' is not one of 'safetensors', 'onnx', 'torchscript', 'torch-export'; did you mean 'onnx'?"
    )
    assert_refused(run("export", grown, "--format", "onxx", "--out", "m.onnx"), unknown)
