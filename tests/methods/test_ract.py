"""RACT in both forms, on networks with features and heads."""

from typing import Any

import pytest
import torch

from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.losses import contrastive_compatibility, joint_cross_entropy
from flipguard.methods import build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError

B, C, D = 5, 7, 11

torch.set_num_threads(1)


def network(width: int = 13, classes: int = C, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_model("mlp", classes=classes, input_size=D, hidden=(width,))


def a_batch(y: tuple[int, ...] = (4, 0, 4, 6, 1)) -> Batch:
    x = torch.randn(B, D, generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(())
    return Batch(x, torch.tensor(y), torch.arange(B), zero, zero.long())


def test_classifier_form() -> None:
    student, batch = SingleStudent(network()), a_batch()
    old = NetworkReference("old", [network(11, classes=3, seed=1)], classes=(4, 1, 5))
    step = build_method("ract", strength=0.5)(student, {"old": old}, batch)
    z = student.network.features(batch.x)
    columns = torch.tensor([0, -1, 0, -1, 1])
    second = joint_cross_entropy(old.heads[0](z[:, :11]), student.network.head(z), columns, batch.y).mean()
    assert torch.allclose(step.terms["compatibility"], second)
    assert torch.allclose(step.loss, step.terms["cross_entropy"] + 0.5 * second)


@pytest.mark.parametrize("width", [11, 13, 17])
def test_contrastive_form(width: int) -> None:
    student, batch = SingleStudent(network(13)), a_batch()
    held = network(width, seed=1)
    step = build_method("ract", form="contrastive", hardest=2)(student, {"old": NetworkReference("old", [held])}, batch)
    z = student.network.features(batch.x)
    fitting = z[:, :width] if width <= 13 else torch.cat([z, torch.zeros(B, width - 13)], dim=1)
    second = contrastive_compatibility(fitting, held.features(batch.x), batch.y, temperature=0.01, hardest=2).mean()
    assert torch.allclose(step.terms["compatibility"], second)
    step.loss.backward()
    assert all(parameter.grad is None for parameter in held.parameters())


def test_one_class_in_the_batch_leaves_cross_entropy_alone() -> None:
    student, batch = SingleStudent(network()), a_batch((2, 2, 2, 2, 2))
    step = build_method("ract", form="contrastive")(student, {"old": NetworkReference("old", [network(seed=1)])}, batch)
    assert torch.equal(step.loss, step.terms["cross_entropy"])


def test_refusals() -> None:
    stored = {"old": CachedReference("old", torch.zeros(1, B, C))}
    for form, message in (("classifier", "must be a network with one"), ("contrastive", "holds logits only")):
        with pytest.raises(InputError, match=message):
            build_method("ract", form=form)(SingleStudent(network()), stored, a_batch())
    for options, message in [
        ({"form": "triplet"}, "form must be one of classifier, contrastive"),
        ({"temperature": 0}, "temperature must be above 0"),
        ({"hardest": 0}, "hardest must be at least 1, got 0"),
    ]:
        with pytest.raises(InputError, match=message):
            build_method("ract", **options)
