"""Starting from a checkpoint: body kept, head replaced, and a learning rate of its own for each."""

import shutil
from pathlib import Path

import pytest
import torch

from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.data import DataSet, subset
from flipguard.ensembles import decay_groups
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, fit_members, predict_logits, train_network
from flipguard.types import InputError

C, D = 7, 11
OPTIONS = {"input_size": D, "hidden": (13,)}
RECIPE = Recipe(epochs=1, batch_size=17, learning_rate=0.05)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A network of three classes."""
    network = ModelSpec("mlp", OPTIONS).build(3, seed=5)
    save_checkpoint(tmp_path / "model.safetensors", network.state_dict(), {})
    return tmp_path


def test_another_number_of_classes_gets_a_new_head(start: Path) -> None:
    before = ModelSpec("mlp", OPTIONS).build(3, seed=5)
    spec = ModelSpec("mlp", OPTIONS, init=str(start))
    network, fresh = spec.build(C, seed=8), ModelSpec("mlp", OPTIONS).build(C, seed=8)
    assert torch.equal(network.body[1].weight, before.body[1].weight)
    assert torch.equal(network.head.weight, fresh.head.weight)
    assert torch.equal(network.head.bias, fresh.head.bias)
    assert not torch.equal(spec.build(C, seed=9).head.weight, network.head.weight)


def test_the_same_number_of_classes_keeps_the_head(start: Path) -> None:
    before = ModelSpec("mlp", OPTIONS).build(3, seed=5)
    again = ModelSpec("mlp", OPTIONS, init=str(start / "model.safetensors")).build(3, seed=8)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in before.state_dict().items())


def test_another_architecture_is_refused(start: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds another network: body\.1\.weight is of shape \(13, 11\) there"):
        ModelSpec("mlp", {"input_size": D, "hidden": (17,)}, init=str(start)).build(C, seed=8)
    nowhere = ModelSpec("mlp", OPTIONS, init=str(tmp_path / "nowhere.safetensors"))
    for use in (lambda: nowhere.build(C, seed=8), nowhere.described):
        with pytest.raises(InputError, match=r"nowhere\.safetensors does not exist"):
            use()
    with pytest.raises(InputError, match="backbone_rate must be above 0, got 0"):
        ModelSpec("mlp", OPTIONS, backbone_rate=0)


@pytest.mark.parametrize("decay_all", [True, False])
def test_the_head_has_groups_of_its_own(decay_all: bool) -> None:
    network = ModelSpec("mlp", OPTIONS, backbone_rate=0.1).build(C, seed=8)
    groups = decay_groups(network, decay_all=decay_all)
    rates = {id(p): group.get("rate", 1.0) for group in groups for p in group["params"]}
    assert len(rates) == len(list(network.parameters())) == sum(len(group["params"]) for group in groups)
    for name, parameter in network.named_parameters():
        assert rates[id(parameter)] == (1.0 if name.startswith("head.") else 0.1)
    undecayed = {id(p) for group in groups if group.get("weight_decay") == 0.0 for p in group["params"]}
    vectors = {id(p) for p in network.parameters() if p.ndim <= 1}
    assert undecayed == (set() if decay_all else vectors)


@pytest.mark.parametrize("method", ["latent_be", "batch_ensemble", "codistill_skl", "codistill_ce"])
def test_students_of_several_members_know_the_rate(method: str) -> None:
    spec = ModelSpec("mlp", OPTIONS, backbone_rate=0.1)
    student = build_method(method).student(lambda member: spec.build(C, seed=member), decay_all=True)
    rates = {id(p): group.get("rate", 1.0) for group in student.parameter_groups() for p in group["params"]}
    shared = {name: p for name, p in student.named_parameters() if id(p) in rates and not name.endswith(("_r", "_s"))}
    bodies = [p for name, p in shared.items() if ".body." in name]
    heads = [p for name, p in shared.items() if ".head." in name]
    assert bodies
    assert heads
    assert {rates[id(p)] for p in bodies} == {0.1}
    assert {rates[id(p)] for p in heads} == {1.0}


def test_the_rate_reaches_the_weights(data: DataSet) -> None:
    """Over one step of SGD without momentum the body moves a tenth as far, the head just as far."""
    recipe = Recipe(
        epochs=1, batch_size=83, learning_rate=0.05, momentum=0.0, weight_decay=0.0, schedule="constant", warmup=0.0
    )
    moved = []
    for rate in (None, 0.1):
        spec = ModelSpec("mlp", OPTIONS, backbone_rate=rate)
        before = spec.build(C, seed=1).state_dict()
        after = train_network(spec, data, build_method("none"), recipe, seeds=Seeds.of(1)).state_dict()
        moved.append({name: after[name] - before[name] for name in before})
    torch.testing.assert_close(moved[1]["head.weight"], moved[0]["head.weight"])
    torch.testing.assert_close(moved[1]["body.1.weight"], 0.1 * moved[0]["body.1.weight"], atol=1e-7, rtol=1e-3)


def test_members_know_their_start(data: DataSet, start: Path, tmp_path: Path) -> None:
    """The content of the start is part of a member's key: another one under the same path is another member."""
    kept = tmp_path / "members"
    spec = ModelSpec("mlp", OPTIONS, init=str(start), backbone_rate=0.5)
    first = fit_members(spec, data, RECIPE, [3], folder=kept)[0]
    again = fit_members(spec, data, RECIPE, [3], folder=kept)[0]
    assert len(list(kept.iterdir())) == 1
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in first.state_dict().items())
    other = ModelSpec("mlp", OPTIONS).build(3, seed=6)
    save_checkpoint(start / "model.safetensors", other.state_dict(), {})
    fit_members(spec, data, RECIPE, [3], folder=kept)
    assert len(list(kept.iterdir())) == 2


def test_a_start_from_fewer_classes_is_kept_by_a_low_rate(data: DataSet, tmp_path: Path) -> None:
    few = subset(data, classes=4, seed=0)
    long = Recipe(epochs=20, batch_size=11, learning_rate=0.05)
    wide = {"input_size": D, "hidden": (64,)}
    before = train_network(ModelSpec("mlp", wide), few, build_method("none"), long, seeds=Seeds.of(1))
    save_checkpoint(tmp_path / "few.safetensors", before.state_dict(), {})
    assert (predict_logits(before, few).argmax(-1) == few.test.y.numpy()).mean() > 0.7
    tuned = ModelSpec("mlp", wide, init=str(tmp_path / "few.safetensors"), backbone_rate=0.1)
    network = train_network(tuned, data, build_method("none"), RECIPE, seeds=Seeds.of(2))
    body = network.body[1].weight.detach() - before.body[1].weight.detach()
    assert 0 < float(body.norm()) < 0.2 * float(before.body[1].weight.detach().norm())


def test_a_bare_spec_asks_for_no_weights(start: Path) -> None:
    assert ModelSpec("mlp", OPTIONS, init=str(start), backbone_rate=0.1).bare() == ModelSpec("mlp", OPTIONS)
    bare = ModelSpec("transformers:folder", {"pooling": "mean"}).bare()
    assert bare.options == {"pooling": "mean", "pretrained": False}
    assert ModelSpec("torchvision:resnet18", {"weights": "DEFAULT"}).bare().options == {"weights": None}


def test_a_text_release_needs_nothing_but_its_folder(tmp_path: Path) -> None:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'flipguard[text]'"
    )
    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 13}
    origin, home = tmp_path / "origin", tmp_path / "release"
    home.mkdir()
    transformers.BertModel(transformers.BertConfig(vocab_size=31, **sizes)).save_pretrained(origin)
    spec = ModelSpec(f"transformers:{origin}", {"pooling": "mean"})
    network = spec.build(C, seed=3)
    save_checkpoint(home / "model.safetensors", network.state_dict(), {})
    spec.carry(home)
    shutil.rmtree(origin)
    again = spec.bare(home).build(C, seed=4)
    load_weights(again, load_checkpoint(home / "model.safetensors")[0], home)
    x = {"input_ids": torch.randint(3, 31, (5, 11)), "attention_mask": torch.ones(5, 11, dtype=torch.long)}
    assert torch.equal(again.eval()(x), network.eval()(x))
    ModelSpec("mlp", OPTIONS).carry(home)
    assert sorted(each.name for each in home.iterdir()) == ["config.json", "model.safetensors"]
