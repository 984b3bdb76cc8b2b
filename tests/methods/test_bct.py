"""BCT: the old head judges the new features, and it is the old head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import flipguard
from flipguard.checkpoints import load_checkpoint, load_weights, save_checkpoint
from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.losses import cross_entropy
from flipguard.methods import NoTreatment, build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError

B, C, D = 5, 7, 11

torch.set_num_threads(1)


def network(width: int = 13, classes: int = C, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_model("mlp", classes=classes, input_size=D, hidden=(width,))


def a_batch() -> Batch:
    x = torch.randn(B, D, generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(())
    return Batch(x, torch.tensor([4, 0, 4, 6, 1]), torch.arange(B), zero, zero.long())


def test_the_old_head_is_the_checkpoints_own(tmp_path: Path) -> None:
    old = network(seed=1)
    save_checkpoint(tmp_path / "old.safetensors", old.state_dict(), {})
    stored, _ = load_checkpoint(tmp_path / "old.safetensors")
    reference = NetworkReference("old", [load_weights(network(seed=2), stored, "old.safetensors")])
    (head,) = reference.heads
    assert torch.equal(head.weight, stored["head.weight"])
    assert torch.equal(head.bias, stored["head.bias"])
    student, batch = SingleStudent(network(seed=3)), a_batch()
    step = build_method("bct")(student, {"old": reference}, batch)
    logits = student.network.features(batch.x) @ stored["head.weight"].T + stored["head.bias"]
    assert torch.allclose(step.terms["compatibility"], cross_entropy(logits, batch.y).mean())
    step.loss.backward()
    assert head.weight.grad is None
    assert student.network.head.weight.grad is not None


@pytest.mark.parametrize("width", [11, 13, 17])
def test_narrower_and_wider_old_features(width: int) -> None:
    student, batch = SingleStudent(network(13)), a_batch()
    old = NetworkReference("old", [network(width, seed=1)])
    step = build_method("bct", strength=0.5)(student, {"old": old}, batch)
    z = student.network.features(batch.x)
    fitting = z[:, :width] if width <= 13 else torch.cat([z, torch.zeros(B, width - 13)], dim=1)
    second = cross_entropy(old.heads[0](fitting), batch.y).mean()
    assert torch.allclose(step.terms["compatibility"], second)
    assert torch.allclose(step.loss, step.terms["cross_entropy"] + 0.5 * second)


def test_only_samples_of_classes_that_the_old_model_knows() -> None:
    student, batch = SingleStudent(network()), a_batch()
    known = (4, 1, 5)
    old = NetworkReference("old", [network(classes=3, seed=1)], classes=known)
    step = build_method("bct")(student, {"old": old}, batch)
    rows = torch.tensor([0, 2, 4])
    columns = torch.tensor([0, 0, 1])
    judged = old.heads[0](student.network.features(batch.x)[rows])
    assert torch.allclose(step.terms["compatibility"], cross_entropy(judged, columns).sum() / B)


def test_a_reference_without_a_head_is_refused() -> None:
    student, batch, method = SingleStudent(network()), a_batch(), build_method("bct")
    refused = {
        "must be a network with one": CachedReference("old", torch.zeros(1, B, C)),
        "needs one old model; its reference 'old' has 2 members": NetworkReference("old", [network(), network()]),
        "no linear head to use: Sequential gives only logits": NetworkReference(
            "old", [nn.Sequential(nn.Linear(D, C))]
        ),
        "has 7 classes, of which classes= names 2": NetworkReference("old", [network()], classes=(0, 1)),
        "has 3 classes and the student 7: pass classes=": NetworkReference("old", [network(classes=3)]),
        "the highest 7; the student has 7": NetworkReference("old", [network(classes=3)], classes=(0, 1, 7)),
    }
    for message, reference in refused.items():
        with pytest.raises(InputError, match=message):
            method(student, {"old": reference}, batch)
    with pytest.raises(InputError, match="needs the reference 'old'"):
        method(student, {}, batch)
    with pytest.raises(InputError, match="works on features, and Linear gives only logits"):
        method(SingleStudent(nn.Linear(D, C)), {"old": NetworkReference("old", [network()])}, batch)


def test_weight_zero_is_no_treatment() -> None:
    student, batch = SingleStudent(network()), a_batch()
    old = {"old": NetworkReference("old", [network(seed=1)])}
    treated = build_method("bct", strength=0.0)(student, old, batch)
    plain = NoTreatment()(student, {}, batch)
    assert torch.equal(treated.loss, plain.loss)
    for mine, other in zip(
        torch.autograd.grad(treated.loss, list(student.parameters())),
        torch.autograd.grad(plain.loss, list(student.parameters())),
        strict=True,
    ):
        assert torch.equal(mine, other)
    with pytest.raises(InputError, match="strength must not be negative"):
        build_method("bct", strength=-1)


def test_from_a_notebook() -> None:
    rows = torch.utils.data.TensorDataset(torch.randn(13, D), torch.arange(13) % C)
    loader = torch.utils.data.DataLoader(rows, batch_size=B)
    old, model = network(11, seed=1), network(13)
    before = {name: value.clone() for name, value in old.state_dict().items()}
    start = model.head.weight.clone()
    trained = flipguard.fit(model, loader, method="bct", old=old, epochs=1)
    assert not torch.equal(trained.head.weight, start)
    assert all(torch.equal(value, before[name]) for name, value in old.state_dict().items())
    with pytest.raises(InputError, match="'soup' is not trained by fit"):
        flipguard.fit(model, loader, method="soup")
