"""The CR rule as training targets."""

import pytest
import torch

from flipguard.ensembles import CachedReference, SingleStudent
from flipguard.losses import cross_entropy
from flipguard.methods import build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError

B, C, D = 5, 7, 11

torch.set_num_threads(1)


def a_student() -> SingleStudent:
    torch.manual_seed(0)
    return SingleStudent(build_model("mlp", classes=C, input_size=D, hidden=(13,)))


def a_batch() -> Batch:
    x = torch.randn(B, D, generator=torch.Generator().manual_seed(1))
    zero = torch.zeros(())
    return Batch(x, torch.tensor([4, 0, 4, 6, 1]), torch.arange(B), zero, zero.long())


def test_a_sure_old_model_keeps_its_label_and_an_unsure_one_gives_way() -> None:
    student, batch = a_student(), a_batch()
    said = student(batch.x).logits[0]
    stored = (said.argmax(-1) + 1) % C
    for certainty, expected in ((50.0, stored), (1e-3, said.argmax(-1))):
        held = torch.nn.functional.one_hot(stored, C)[None] * certainty
        references = {"old": CachedReference("old", held)}
        step = build_method("bu_cr", alpha=1.0, cost_ratio=1.01)(student, references, batch)
        assert torch.allclose(step.loss, cross_entropy(said, expected).mean())


def test_the_share_of_the_labels() -> None:
    student, batch = a_student(), a_batch()
    references = {"old": CachedReference("old", torch.randn(1, B, C))}
    step = build_method("bu_cr", alpha=0.3)(student, references, batch)
    expected = 0.7 * step.terms["cross_entropy"] + 0.3 * step.terms["bayesian_update"]
    assert torch.allclose(step.loss, expected)


def test_an_old_model_with_fewer_classes_speaks_of_those_only() -> None:
    student, batch = a_student(), a_batch()
    said = student(batch.x).logits[0].detach()
    classes, held = (5, 2, 6), torch.randn(1, B, 3)
    step = build_method("bu_cr", alpha=1.0, cost_ratio=2.0)(
        student, {"old": CachedReference("old", held, classes=classes)}, batch
    )
    targets = []
    for row in range(B):
        p = {k: float(said[row].softmax(-1)[k]) / C for k in range(C)}
        for column, k in enumerate(classes):
            p[k] = float(said[row].softmax(-1)[k] * held[0, row].softmax(-1)[column]) * 3 / C
        stored, best = classes[int(held[0, row].argmax())], max(p, key=lambda k: p[k])
        targets.append(best if p[best] > 2 * p[stored] else stored)
    assert torch.allclose(step.loss, cross_entropy(said, torch.tensor(targets)).mean())


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"cost_ratio must be at least 1, got 0\.5"):
        build_method("bu_cr", cost_ratio=0.5)
    with pytest.raises(InputError, match="alpha must lie"):
        build_method("bu_cr", alpha=2)
    with pytest.raises(InputError, match="needs the reference 'old'"):
        build_method("bu_cr")(a_student(), {}, a_batch())
