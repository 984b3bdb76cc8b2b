"""An ONNX file as the old model: what it says, and what is said of files that do not fit."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flipguard.ensembles import NetworkReference
from flipguard.methods import build_method
from flipguard.models import OnnxNetwork, build_model
from flipguard.releases.export import export
from flipguard.training import ModelSpec
from flipguard.training.simple import fit
from flipguard.types import Batch, InputError, MissingExtra, Reference

B, C, D = 5, 7, 11
torch.set_num_threads(1)

try:
    import onnxruntime
    import onnxscript
except ImportError:
    onnxruntime = onnxscript = None

installed = pytest.mark.skipif(onnxruntime is None, reason="onnx is not installed: pip install 'flipguard[onnx]'")


def a_network() -> nn.Module:
    torch.manual_seed(5)
    return build_model("mlp", classes=C, input_size=D, hidden=(13,))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("onnx") / "old.onnx"
    export(a_network(), torch.randn(B, D), format="onnx", path=path)
    return path


class Two(nn.Module):
    """Logits and features, as many networks are exported."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(D, 3), nn.Linear(3, C)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        features = self.body(x)
        return self.head(features), features, features.argmax(-1)


def write(network: nn.Module, path: Path, x: torch.Tensor, names: list[str]) -> Path:
    """As somebody else would: a fixed batch size, several outputs."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (x,), str(path), dynamo=True, output_names=names, external_data=False, verbose=False
        )
    return path


def a_batch(x: Any) -> Batch:
    zero = torch.zeros(())
    return Batch(x, torch.zeros(B, dtype=torch.long), torch.arange(B), zero, zero.long())


@installed
def test_it_says_what_the_network_says(old: Path) -> None:
    network, x = OnnxNetwork(old, classes=C), torch.randn(17, D)
    torch.testing.assert_close(network(x), a_network().eval()(x).detach(), atol=1e-5, rtol=1e-4)
    rounded = x.to(torch.bfloat16)
    assert torch.equal(network(rounded), network(rounded.float()))
    for again in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert torch.equal(again(x), network(x))


@installed
def test_by_name(old: Path) -> None:
    x = torch.randn(B, D)
    assert torch.equal(build_model(f"onnx:{old}", classes=C)(x), OnnxNetwork(old)(x))
    with pytest.raises(InputError, match=r"logits are \(batch, 3 classes\)"):
        build_model(f"onnx:{old}", classes=3)


@installed
def test_a_release_carries_the_file(old: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere.onnx"
    moved.write_bytes(old.read_bytes())
    spec, home = ModelSpec(f"onnx:{moved}"), tmp_path / "release"
    home.mkdir()
    spec.carry(home)
    moved.unlink()
    x = torch.randn(B, D)
    assert torch.equal(spec.bare(home).build(C, seed=0)(x), OnnxNetwork(old)(x))


@installed
def test_as_a_reference_beside_a_network_of_torch(old: Path) -> None:
    x = torch.randn(B, D)
    reference = NetworkReference("old", [OnnxNetwork(old), a_network()])
    assert isinstance(reference, Reference)
    assert not reference.differentiable
    logits = reference(a_batch(x)).logits
    assert logits.shape == (2, B, C)
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match="works on features, and OnnxNetwork gives only logits"):
        reference(a_batch(x), features=True)
    assert NetworkReference("old", [a_network()]).differentiable


@installed
def test_a_student_is_trained_towards_it(old: Path) -> None:
    torch.manual_seed(7)
    x = torch.randn(64, D)
    y = OnnxNetwork(old)(x).argmax(-1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)
    new = build_model("mlp", classes=C, input_size=D, hidden=(32,))
    fit(new, loader, method=build_method("kd"), old=OnnxNetwork(old), epochs=30)
    assert float((new(x).argmax(-1) == y).float().mean()) > 0.8


@installed
def test_files_that_do_not_fit(old: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"output 'logits' has shape .* logits are \(batch, 3 classes\)"):
        OnnxNetwork(old, classes=3)
    with pytest.raises(InputError, match=r"takes inputs of shape \(11\) a sample, and the data has \(13,\)"):
        OnnxNetwork(old)(torch.randn(B, 13))
    with pytest.raises(InputError, match=r"takes inputs of shape \(11\) a sample, and the data has \(1, 11\)"):
        OnnxNetwork(old)(torch.randn(B, 1, D))
    with pytest.raises(InputError, match="takes the input 'x', and the data has input_ids"):
        OnnxNetwork(old)({"input_ids": torch.zeros(B, D)})
    with pytest.raises(InputError, match=r"nowhere\.onnx does not exist"):
        OnnxNetwork(tmp_path / "nowhere.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"not a graph")
    with pytest.raises(InputError, match=r"broken\.onnx cannot be read as an ONNX file"):
        OnnxNetwork(tmp_path / "broken.onnx")


@installed
def test_several_outputs_and_a_fixed_batch_size(tmp_path: Path) -> None:
    torch.manual_seed(5)
    network = Two()
    path = write(network, tmp_path / "two.onnx", torch.randn(3, D), ["logits", "features", "class"])
    with pytest.raises(InputError, match=r"has 3 outputs \(logits, features, class\): say which one holds the logits"):
        OnnxNetwork(path)
    with pytest.raises(InputError, match="has no output 'scores'; it has logits, features, class"):
        OnnxNetwork(path, output="scores")
    with pytest.raises(InputError, match=r"output 'features' has shape \(3, 3\); logits are \(batch, 7 classes\)"):
        OnnxNetwork(path, output="features", classes=C)
    with pytest.raises(InputError, match=r"output 'class' has type tensor\(int64\)"):
        OnnxNetwork(path, output="class")
    x = torch.randn(B, D)
    torch.testing.assert_close(OnnxNetwork(path, output="logits")(x), network(x)[0].detach(), atol=1e-5, rtol=1e-4)
    assert OnnxNetwork(path, output="logits", classes=C)(x[:0]).shape == (0, C)


@pytest.mark.skipif(onnxruntime is not None, reason="onnxruntime is installed")
def test_a_missing_library_names_its_extra(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"needs onnxruntime: pip install 'flipguard\[onnx\]'"):
        OnnxNetwork(tmp_path / "old.onnx")
