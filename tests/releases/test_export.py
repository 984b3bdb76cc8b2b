"""Exports: what is written says what the network says, for images, texts and somebody else's network."""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flipguard.checkpoints import load_checkpoint
from flipguard.data import Encoder, Split, WordEncoder, load_data, read_encoder
from flipguard.models import build_model, split
from flipguard.releases.export import ENDINGS, export, export_release, plain_network
from flipguard.training import ModelSpec, as_predictions, predict_logits
from flipguard.types import InputError, MissingExtra, Normalisation

B, C = 5, 7
torch.set_num_threads(1)

formats = pytest.mark.parametrize("format", sorted(ENDINGS))


def needs(format: str) -> None:
    if format == "onnx":
        for library in ("onnxscript", "onnxruntime"):
            pytest.importorskip(library, reason=f"{library} is not installed: pip install 'flipguard[onnx]'")


def a_cnn() -> nn.Module:
    """With BatchNorm statistics that are not those of the start."""
    torch.manual_seed(3)
    network = build_model("cnn", classes=C, width=3)
    network(torch.randn(17, 1, 8, 8))
    return network


def load(path: Path, format: str) -> Any:
    if format == "torchscript":
        return torch.jit.load(str(path))
    if format == "torch-export":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(*tensors: Tensor) -> Tensor:
        feed = {name: tensor.numpy() for name, tensor in zip(names, tensors, strict=True)}
        return torch.from_numpy(session.run(["logits"], feed)[0])

    return run


@formats
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_images(format: Any, tmp_path: Path) -> None:
    needs(format)
    network, x = a_cnn(), torch.randn(B, 1, 8, 8)
    path = tmp_path / "deep" / f"model{ENDINGS[format]}"
    found = export(network, x, format=format, path=path, facts={"classes": list("abcdefg")})
    assert found.rows == B
    assert 0 <= found.largest_difference < 1e-5
    facts = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert facts["classes"] == list("abcdefg")
    assert facts["inputs"] == {"x": {"shape": [1, 8, 8], "type": "float32"}}
    assert {each.name for each in path.parent.iterdir()} == {path.name, f"{path.name}.json"}
    assert network.training
    other = torch.randn(11, 1, 8, 8)
    network.eval()
    if format == "safetensors":
        tensors = load_checkpoint(path)[0]
        assert all(torch.equal(tensors[name], value) for name, value in network.state_dict().items())
        return
    torch.testing.assert_close(load(path, format)(other), network(other).detach(), atol=1e-5, rtol=1e-4)


@formats
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_texts(format: Any, tmp_path: Path) -> None:
    needs(format)
    torch.manual_seed(3)
    network = build_model("text_transformer", classes=C, vocabulary=31, length=11, width=6, heads=2, layers=1)
    mask = (torch.arange(11) < torch.tensor([11, 1, 3, 7, 5])[:, None]).long()
    x = {"input_ids": torch.randint(2, 31, (B, 11)) * mask, "attention_mask": mask}
    path = tmp_path / f"model{ENDINGS[format]}"
    assert export(network, x, format=format, path=path).largest_difference < 1e-5
    if format == "safetensors":
        return
    few = {name: tensor[:3] for name, tensor in x.items()}
    network.eval()
    torch.testing.assert_close(load(path, format)(*few.values()), network(few).detach(), atol=1e-5, rtol=1e-4)


def test_somebody_elses_network_gets_its_head_back(tmp_path: Path) -> None:
    original = nn.Sequential(nn.Flatten(), nn.Linear(12, 11), nn.ReLU(), nn.Linear(11, C))
    names = list(original.state_dict())
    network = split(original, classes=C)
    export(network, torch.randn(B, 3, 2, 2), format="safetensors", path=tmp_path / "own.safetensors")
    assert set(load_checkpoint(tmp_path / "own.safetensors")[0]) == set(names)
    assert isinstance(plain_network(network)[3], nn.Linear)


class Shifted(nn.Linear):
    """With a table that no file holds, as the positions of tokens are in transformers' networks."""

    def __init__(self) -> None:
        super().__init__(3, C)
        self.register_buffer("table", torch.arange(1.0, 1 + C), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.table


def test_a_table_that_no_file_holds_is_left_to_the_code(tmp_path: Path) -> None:
    found = export(Shifted(), torch.randn(B, 3), format="safetensors", path=tmp_path / "m.safetensors")
    assert found.largest_difference == 0
    assert set(load_checkpoint(tmp_path / "m.safetensors")[0]) == {"weight", "bias"}


def test_what_says_something_else_is_not_written(tmp_path: Path) -> None:
    network, x = a_cnn(), torch.randn(B, 1, 8, 8)
    logits = plain_network(network)(x)
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match="5 of 5 samples get another class"):
        export(network, x, format="safetensors", path=path, expected=-logits)
    with pytest.raises(
        InputError, match="0 of 5 samples get another class, and the largest difference of a logit is 1"
    ):
        export(network, x, format="safetensors", path=path, expected=logits + 1.0)
    with pytest.raises(InputError, match=r"gives \(5, 7\) and the run \(5, 3\)"):
        export(network, x, format="safetensors", path=path, expected=logits[:, :3])
    with pytest.raises(InputError, match="largest difference of a logit is nan"):
        export(network, x, format="safetensors", path=path, expected=logits * float("nan"))
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class Made:
    name: str
    network: nn.Module
    classes: tuple[str, ...]
    normalisation: Normalisation | None
    encoder: Encoder | None = None


def test_a_release_is_checked_against_the_runs_own_predictions(tmp_path: Path) -> None:
    data = load_data("digits")
    network = ModelSpec("mlp", {"hidden": (11,)}).build(10, seed=3)
    release = Made("v1", network, data.classes, data.normalisation)
    said = as_predictions(predict_logits(network, data), data).write(tmp_path / "test.parquet")
    path = tmp_path / "model.safetensors"
    found = export_release(release, data.test, format="safetensors", path=path, said=said, rows=37)
    assert found.rows == 37
    facts = json.loads((tmp_path / "model.safetensors.json").read_text())
    assert facts["classes"] == list("0123456789")
    assert data.normalisation is not None
    assert facts["normalisation"] == {"mean": list(data.normalisation.mean), "std": list(data.normalisation.std)}
    with pytest.raises(InputError, match=r"test\.parquet has none of the samples"):
        export_release(release, data.train, format="safetensors", path=path, said=said)
    other = Made("v1", ModelSpec("mlp", {"hidden": (11,)}).build(10, seed=4), data.classes, data.normalisation)
    with pytest.raises(InputError, match="would not say what the run says"):
        export_release(other, data.test, format="safetensors", path=path, said=said)
    wrong = Made("v1", network, data.classes, None)
    with pytest.raises(InputError, match="would not say what the run says"):
        export_release(wrong, data.test, format="safetensors", path=path, said=said)
    assert export_release(other, data.test, format="safetensors", path=path).largest_difference == 0


@pytest.mark.parametrize("format", ["onnx", "torchscript", "torch-export"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_graph_may_normalise_by_itself(format: Any, tmp_path: Path) -> None:
    needs(format)
    data = load_data("digits")
    network = ModelSpec("mlp", {"hidden": (11,)}).build(10, seed=3)
    release = Made("v1", network, data.classes, data.normalisation)
    said = as_predictions(predict_logits(network, data), data).write(tmp_path / "test.parquet")
    path = tmp_path / f"model{ENDINGS[format]}"
    export_release(release, data.test, format=format, path=path, said=said, rows=37, normalisation_inside=True)
    facts = json.loads(path.with_name(f"{path.name}.json").read_text())["preprocessing"]
    assert facts["inside"] is True
    assert facts["values"] == "pixels divided by 255, with no further scaling: the network normalises them itself"
    pixels = data.test.x[:13].float() / 255
    expected = torch.from_numpy(predict_logits(network, data)[:13])
    torch.testing.assert_close(load(path, format)(pixels), expected, atol=1e-4, rtol=1e-4)
    export_release(release, data.test, format=format, path=path, said=said, rows=37)
    outside = json.loads(path.with_name(f"{path.name}.json").read_text())["preprocessing"]
    assert outside["inside"] is False
    assert outside["values"].endswith("with normalisation: the network does not do it")
    assert "NCHW" in outside["layout"]


def test_a_tokenizer_travels_with_the_export(tmp_path: Path) -> None:
    encoder = WordEncoder.learn(["a cat and a dog", "a cow"], size=7, length=5)
    torch.manual_seed(3)
    network = build_model("text_transformer", classes=2, vocabulary=7, length=5, width=6, heads=2, layers=1)
    split_ = Split(encoder(["a cow", "a dog and a cat"]), torch.tensor([0, 1]), np.arange(2))
    release = Made("v1", network, ("x", "y"), None, encoder)
    export_release(release, split_, format="safetensors", path=tmp_path / "m.safetensors")
    facts = json.loads((tmp_path / "m.safetensors.json").read_text())["preprocessing"]
    assert read_encoder(tmp_path / facts["tokenizer"]).fingerprint() == encoder.fingerprint()
    with pytest.raises(InputError, match="texts are tokenised before the network"):
        export_release(release, split_, format="onnx", path=tmp_path / "m.onnx", normalisation_inside=True)


def test_refuses(tmp_path: Path) -> None:
    data = load_data("digits")
    release = Made("v1", ModelSpec("mlp", {"hidden": (11,)}).build(10, seed=3), data.classes, data.normalisation)
    with pytest.raises(InputError, match="safetensors holds weights alone"):
        export_release(
            release, data.test, format="safetensors", path=tmp_path / "x.safetensors", normalisation_inside=True
        )
    network, x = a_cnn(), torch.randn(B, 1, 8, 8)
    with pytest.raises(InputError, match="exported as safetensors, onnx, torchscript, torch-export, not as 'tflite'"):
        export(network, x, format="tflite", path=tmp_path / "x.tflite")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"in the form torch-export ends in \.pt2"):
        export(network, x, format="torch-export", path=tmp_path / "x.onnx")
    with pytest.raises(InputError, match="at least 2 samples"):
        export(network, x[:1], format="safetensors", path=tmp_path / "x.safetensors")
    if not find_spec("onnxscript"):
        with pytest.raises(MissingExtra, match=r"needs onnxscript: pip install 'flipguard\[onnx\]'"):
            export(network, x, format="onnx", path=tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
