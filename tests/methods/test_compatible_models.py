"""BCT and RACT on real networks of every family: features of any width, the old model's head, gradients all the way."""

from typing import Any

import pytest
import torch
from torch import nn

from flipguard.ensembles import NetworkReference, SingleStudent
from flipguard.methods import build_method
from flipguard.models import build_model, split
from flipguard.types import Batch

B, C = 5, 7

torch.set_num_threads(1)

FAMILIES: dict[str, dict[str, Any]] = {
    "mlp": {"input_size": 3 * 32 * 32, "hidden": (11,)},
    "cnn": {"width": 3, "in_channels": 3},
    "lenet5": {"in_channels": 3},
    "resnet20": {"width": 2},
    "resnet10": {"width": 2},
    "resnet50": {"width": 4},
    "wrn28_1": {"width": 2},
    "resnet50_v2": {"width": 4},
    "vgg11": {"width": 2},
    "densenet40": {"growth": 2},
}


def made(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    return build_model(name, classes=C, **FAMILIES[name])


def adapted(seed: int) -> Any:
    torch.manual_seed(seed)
    return split(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 13), nn.ReLU(), nn.Linear(13, C)), classes=C)


def check(student: Any, old: Any) -> None:
    batch = Batch(
        torch.randn(B, 3, 32, 32), torch.arange(B), torch.arange(B), torch.zeros(()), torch.zeros((), dtype=torch.int64)
    )
    reference = NetworkReference("old", [old])
    assert reference.heads == (old.head,)
    assert old.features(batch.x).shape == (B, old.feature_width)
    for name, options in (("bct", {}), ("ract", {}), ("ract", {"form": "contrastive"})):
        student.zero_grad()
        step = build_method(name, strength=1.0, **options)(SingleStudent(student), {"old": reference}, batch)
        (step.loss - step.terms["cross_entropy"]).backward()
        assert bool(torch.isfinite(step.loss))
        first = next(student.body.parameters())
        assert first.grad is not None
        assert bool((first.grad != 0).any())
        assert old.head.weight.grad is None


@pytest.mark.parametrize("name", FAMILIES)
def test_an_old_model_of_the_same_family_and_of_another(name: str) -> None:
    check(made(name, 0), made(name, 1))
    check(made(name, 0), made("mlp", 1))


def test_somebody_elses_network() -> None:
    check(made("cnn", 0), adapted(1))
    check(adapted(0), made("cnn", 1))
