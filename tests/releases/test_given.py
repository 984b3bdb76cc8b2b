"""Old models that came about elsewhere: by code of the user's, with inputs scaled otherwise, of several outputs."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import flipguard
from flipguard.checkpoints import save_checkpoint
from flipguard.data import DataSet, load_data
from flipguard.releases import TrainSpec, load_release, train
from flipguard.releases.export import export_release
from flipguard.training import predict_logits
from flipguard.types import InputError, Normalisation

Make = Callable[..., TrainSpec]
CODE = """
import torch
from torch import nn


def network(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def finished(scale=1.0):
    made = network(10)
    with torch.no_grad():
        made[1].weight.copy_(scale * torch.eye(64)[:10])
        made[1].bias.zero_()
    return made


def softened(classes):
    return nn.Sequential(network(classes), nn.Softmax(-1))
"""


@pytest.fixture(autouse=True)
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "theirs.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("theirs", None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "grown"
    train(small(old={"model": {"name": "mlp", "hidden": [5]}, "data": {"classes": 0.5}}), folder)
    return folder


def digits() -> DataSet:
    return load_data({"name": "digits", "test_size": 0.6})


def said(folder: Path, version: str = "old") -> Any:
    rows = flipguard.read_predictions(folder / f"versions/{version}/predictions/test.parquet").table(["logits"])
    return np.array(rows["logits"].to_pylist(), np.float32)


def refused(spec: TrainSpec, folder: Path, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        train(spec, folder, trust=True)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not folder.exists()


def test_the_users_own_code_returns_the_old_network(tmp_path: Path, small: Make) -> None:
    old = {"factory": {"name": "theirs:finished", "scale": 3.0}, "normalisation": "none"}
    spec = small("method.name=kd", old=old)
    with pytest.raises(InputError, match=r"version old names code that would be run, theirs:finished"):
        train(spec, tmp_path / "a")
    train(spec, tmp_path / "a", trust=True)
    pixels = digits().test.x.flatten(1)[:, :10].float() / 255
    np.testing.assert_allclose(said(tmp_path / "a"), 3 * pixels.numpy(), atol=1e-5)
    with pytest.raises(InputError, match="names code that would be run"):
        load_release(tmp_path / "a", "old")
    again = load_release(tmp_path / "a", "old", trust=True)
    np.testing.assert_array_equal(again.logits(digits()), said(tmp_path / "a"))
    assert train(spec, tmp_path / "a", trust=True).found


def test_what_comes_after_a_head_is_noticed(tmp_path: Path, small: Make) -> None:
    expected = "does something after its last linear layer '0.1' (a softmax?)"
    refused(small(old={"factory": "theirs:softened"}), tmp_path / "a", expected)
    refused(small(new={"model": "theirs:softened"}), tmp_path / "b", expected)


def test_inputs_are_scaled_as_the_old_network_knows_them(tmp_path: Path, small: Make) -> None:
    """Held to it, too: a student that sees inputs scaled as the data's is told what the old network says of them."""
    scale = Normalisation((0.25,), (0.5,))
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    save_checkpoint(tmp_path / "own.safetensors", network.state_dict(), {})
    data = DataSet(**{**vars(digits()), "normalisation": scale})
    expected = predict_logits(network, data)
    old = {"checkpoint": str(tmp_path / "own.safetensors"), "model": "theirs:network"}
    own = {**old, "normalisation": {"mean": [0.25], "std": [0.5]}}
    train(small("method.name=kd", old=own), tmp_path / "a", trust=True)
    np.testing.assert_allclose(said(tmp_path / "a"), expected, atol=1e-5)
    train(small("method.name=kd", old=old), tmp_path / "b", trust=True)
    assert np.abs(said(tmp_path / "b") - expected).max() > 0.1


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("format", ["onnx", "safetensors"])
@pytest.mark.filterwarnings("ignore")
def test_an_export_tells_its_classes_and_its_scale(
    format: Any, inside: bool, finished: Path, tmp_path: Path, small: Make
) -> None:
    if inside and format == "safetensors":
        return
    release, data = load_release(finished, "old"), digits()
    known = set(release.classes)
    few = data.test.select([row for row, y in enumerate(data.test.y.tolist()) if data.classes[y] in known])
    path = tmp_path / f"old.{format}"
    other = load_release(finished, "old")
    scaled = type(release)(**{**vars(other), "normalisation": Normalisation((0.25,), (0.5,))})
    export_release(scaled, few, format=format, path=path, rows=7, normalisation_inside=inside)
    model = {} if format == "onnx" else {"model": {"name": "mlp", "hidden": [5]}}
    train(small("method.name=kd", old={"checkpoint": str(path), **model}), tmp_path / "a")
    given = load_release(tmp_path / "a", "old")
    assert given.classes == release.classes
    assert given.normalisation == (None if inside else scaled.normalisation)
    np.testing.assert_allclose(given.logits(data), scaled.logits(data), atol=1e-4)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        logits = self.layer(x.flatten(1))
        return logits, logits.softmax(-1)


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_file_of_several_outputs_is_asked_for_the_logits(tmp_path: Path, small: Make) -> None:
    torch.manual_seed(3)
    network, path = Two().eval(), tmp_path / "old.onnx"
    names = ["scores", "probabilities"]
    torch.onnx.export(network, (torch.rand(1, 1, 8, 8),), str(path), dynamo=True, verbose=False, output_names=names)
    weights = path.with_name("old.onnx.data")
    spec = small(old={"checkpoint": str(path), "output": "scores"})
    assert weights.exists()
    train(spec, tmp_path / "a")
    kept = weights.read_bytes()
    weights.unlink()
    # The release has them inside.
    release = load_release(tmp_path / "a", "old")
    assert train(spec, tmp_path / "a").found
    refused(spec, tmp_path / "c", "old.onnx cannot be read as an ONNX file")
    weights.write_bytes(kept)
    assert release.predictions(digits()).model == f"onnx:{path}"
    train(small(old=str(tmp_path / "a/versions/old")), tmp_path / "d")
    again = load_release(tmp_path / "d", "old")
    assert again.card()["model"] == {"name": f"onnx:{path}", "options": {"output": "scores"}}
    assert (tmp_path / "d/versions/old/model.onnx").is_file()
    x = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(release.network(x), network(x)[0].detach(), atol=1e-5, rtol=1e-4)
    expected = "has 2 outputs (scores, probabilities): say which one holds the logits, by output."
    refused(small(old={"checkpoint": str(path)}), tmp_path / "b", expected)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a scale of other channels": (
        {"old": {"factory": "theirs:finished", "normalisation": {"mean": [0.1, 0.2], "std": [1.0, 1.0]}}},
        "version old.normalisation has 2 channels, and digits has 1.",
    ),
    "a scale of what is trained here": (
        {"old": {"model": "mlp", "normalisation": "none"}},
        "old.normalisation is a checkpoint's, and this version is trained here.",
    ),
    "a model beside a graph": (
        {"old": {"checkpoint": "old.onnx", "model": "mlp"}},
        "old.model has no meaning: old.onnx says itself which network it is.",
    ),
    "an output of weights": (
        {"old": {"checkpoint": "old.safetensors", "model": "mlp", "output": "logits"}},
        "old.output names one of an .onnx file's outputs, and old.safetensors is none.",
    ),
    "two forms": (
        {"old": {"factory": "theirs:finished", "run": "runs/a"}},
        "old has run and factory: a version is there in one form only.",
    ),
    "a method of what is not trained": (
        {"old": {"factory": "theirs:finished", "method": "none"}},
        "old has factory, so it is not trained, and method has no meaning there.",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_said_of_an_old_model(kind: str, tmp_path: Path, small: Make) -> None:
    sections, expected = REFUSED[kind]
    refused(small(**sections), tmp_path / "a", expected)


def test_a_scale_has_a_mean_and_a_std_for_every_channel(small: Make) -> None:
    with pytest.raises(InputError, match="2 means and 1 stds"):
        small(old={"factory": "theirs:finished", "normalisation": {"mean": [0.1, 0.2], "std": [1.0]}})


def test_the_data_may_be_scaled_as_pretrained_weights_know_it(tmp_path: Path, small: Make) -> None:
    train(small("data.normalisation={mean: [0.5], std: [0.25]}"), tmp_path / "a")
    release = load_release(tmp_path / "a")
    assert release.normalisation == Normalisation((0.5,), (0.25,))
    data = DataSet(**{**vars(digits()), "normalisation": release.normalisation})
    np.testing.assert_allclose(said(tmp_path / "a", "new"), predict_logits(release.network, data), atol=1e-5)
    train(small("data.normalisation=none"), tmp_path / "b")
    assert load_release(tmp_path / "b").normalisation is None
    expected = "data.normalisation has 2 channels, and digits has 1."
    refused(small("data.normalisation={mean: [0.5, 0.1], std: [0.5, 0.1]}"), tmp_path / "c", expected)
