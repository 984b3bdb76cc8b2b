"""Code that a spec or a run folder names runs only when the user says so."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flipguard.cli.app import app
from flipguard.models import build_model
from flipguard.releases import load_release
from flipguard.releases.yaml_text import as_yaml
from flipguard.types import InputError

CODE = """
from pathlib import Path
from torch import nn

Path("ran").touch()


def build(classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""
OWN = {"name": "own_code:build"}
PLAIN = {"name": "mlp", "hidden": [5]}
SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "per_class": 13},
    "old": {"model": PLAIN},
    "new": {"model": PLAIN},
    "train": {"epochs": 1, "batch_size": 31, "device": "cpu", "processes": 1},
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    Path("own_code.py").write_text(CODE)


def refused(result: Result, place: str) -> bool:
    said = f"{place} names code that would be run, own_code:build: look at it, and allow it with --trust"
    return result.exit_code == 2 and said in result.stderr and not Path("ran").exists()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"new": {"model": OWN}}, "version new"),
        ({"old": {"model": OWN}}, "version old"),
        ({"method": {"name": "elodi", "ensemble": {"members": 2, "model": [OWN]}}}, "version old"),
        ({"old": {"model": OWN, "checkpoint": "x.safetensors"}}, "version old"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_spec(changes: dict[str, Any], place: str, options: list[str]) -> None:
    Path("s.yaml").write_text(as_yaml({**SPEC, **changes}))
    assert refused(run("train", "s.yaml", *options), place)


def test_a_run_folder_and_what_trust_allows() -> None:
    Path("s.yaml").write_text(as_yaml({**SPEC, "new": {"model": OWN}}))
    done = run("train", "s.yaml", "--out", "r", "--trust")
    assert done.exit_code == 0, done.stderr
    assert Path("ran").exists()
    Path("ran").unlink()
    sys.modules.pop("own_code")
    predict = ["predict", "r", "--data", "s.yaml", "--out", "p.parquet"]
    export = ["export", "r", "--format", "safetensors", "--out", "m.safetensors"]
    assert refused(run(*predict), "r/versions/new")
    assert refused(run(*export), "r/versions/new")
    Path("t.yaml").write_text(as_yaml({**SPEC, "old": "r"}))
    assert refused(run("train", "t.yaml", "--out", "q"), "r/versions/new")
    with pytest.raises(InputError, match="trust=True"):
        load_release("r")
    assert not Path("ran").exists()
    assert run(*predict, "--trust").exit_code == 0
    assert run(*export, "--trust").exit_code == 0
    assert load_release("r", trust=True).model.name == "own_code:build"


def test_a_card_that_was_tampered_with() -> None:
    """A folder from elsewhere: its card names code, though its weights were trained without."""
    Path("s.yaml").write_text(as_yaml(SPEC))
    assert run("train", "s.yaml", "--out", "r").exit_code == 0
    card = Path("r/versions/new/model.json")
    card.write_text(json.dumps({**json.loads(card.read_text()), "model": {"name": "own_code:build", "options": {}}}))
    assert refused(run("predict", "r", "--data", "s.yaml", "--out", "p.parquet"), "r/versions/new")


def test_what_a_user_writes_in_python_is_trusted() -> None:
    assert build_model("own_code:build", classes=7) is not None
    assert Path("ran").exists()


def test_a_version_name_cannot_leave_the_run_folder() -> None:
    Path("s.yaml").write_text(as_yaml({**SPEC, "new": {"model": PLAIN, "name": "../../escaped"}}))
    result = run("train", "s.yaml", "--out", "r/inner")
    assert result.exit_code == 2
    assert "cannot name a version" in result.stderr


@pytest.mark.parametrize("option", ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay"])
def test_options_by_which_timm_would_read_a_pickle(option: str) -> None:
    with pytest.raises(InputError, match=f"{option} may name a pickle, which is never read"):
        build_model("timm:resnet18", classes=7, **{option: "weights.pth"})
