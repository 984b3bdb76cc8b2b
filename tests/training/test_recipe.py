"""Schedules by hand values, optimisers and their groups."""

from typing import Any

import pytest
import torch
from torch import nn

from flipguard.ensembles import SingleStudent, decay_groups
from flipguard.training import Recipe
from flipguard.training.recipe import build_optimiser, rate
from flipguard.types import InputError


@pytest.mark.parametrize(
    ("options", "steps", "expected"),
    [
        ({"schedule": "constant", "warmup": 0.0}, 4, [1, 1, 1, 1]),
        ({"schedule": "constant", "warmup": 0.5}, 8, [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ({"schedule": "step", "warmup": 0.0}, 9, [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01]),
        ({"schedule": "cosine", "warmup": 0.0}, 4, [1, 0.853553, 0.5, 0.146447]),
        ({"schedule": "cosine", "warmup": 0.2}, 5, [1, 1, 0.853553, 0.5, 0.146447]),
        ({"schedule": "one_cycle", "warmup": 0.2}, 10, [0.52, 1, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]),
        ({"schedule": "one_cycle", "warmup": 0.0}, 4, [1, 0.75, 0.5, 0.25]),
    ],
)
def test_schedules(options: dict[str, Any], steps: int, expected: list[float]) -> None:
    found = [rate(Recipe(**options), step, steps) for step in range(steps)]
    assert found == pytest.approx(expected, abs=1e-6)


def test_elodi_s_ninety_epochs() -> None:
    recipe, per_epoch = Recipe(schedule="step", warmup=0.0, epochs=90), 391
    steps = [rate(recipe, epoch * per_epoch, 90 * per_epoch) for epoch in (0, 29, 30, 59, 60, 89)]
    assert steps == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    # A warm-up does not move the thirds.
    warm = Recipe(schedule="step", warmup=0.2, epochs=90)
    assert [rate(warm, epoch * per_epoch, 90 * per_epoch) for epoch in (29, 30, 60)] == pytest.approx([1, 0.1, 0.01])


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 5))


def test_groups() -> None:
    one = decay_groups(network(), decay_all=True)
    assert [len(group["params"]) for group in one] == [6]  # type: ignore[arg-type]
    matrices, vectors = decay_groups(network(), decay_all=False)
    assert [parameter.ndim for parameter in matrices["params"]] == [4, 2]  # type: ignore[attr-defined]
    assert [parameter.ndim for parameter in vectors["params"]] == [1, 1, 1, 1]  # type: ignore[attr-defined]
    assert vectors["weight_decay"] == 0.0
    assert "weight_decay" not in matrices


def test_frozen_weights_are_in_no_group() -> None:
    frozen = network()
    frozen[0].requires_grad_(False)
    assert sum(len(group["params"]) for group in SingleStudent(frozen).parameter_groups()) == 4


@pytest.mark.parametrize("decay_all", [True, False])
def test_what_decays(decay_all: bool) -> None:
    """With gradients of zero, only decay moves a weight: by lr·decay of itself."""
    net = network()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(2.0)
            parameter.grad = torch.zeros_like(parameter)
    recipe = Recipe(learning_rate=0.5, weight_decay=0.1, momentum=0.0, decay_all=decay_all)
    build_optimiser(SingleStudent(net, decay_all=decay_all).parameter_groups(), recipe).step()
    for parameter in net.parameters():
        moved = decay_all or parameter.ndim > 1
        assert torch.allclose(parameter, torch.full_like(parameter, 1.9 if moved else 2.0))


def test_optimisers() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(3))]}]
    sgd = build_optimiser(groups, Recipe(learning_rate=0.3, momentum=0.8, weight_decay=0.01))  # type: ignore[arg-type]
    assert isinstance(sgd, torch.optim.SGD)
    only = sgd.param_groups[0]
    assert (only["lr"], only["momentum"], only["nesterov"], only["weight_decay"]) == (0.3, 0.8, True, 0.01)
    plain = build_optimiser([{"params": [nn.Parameter(torch.ones(3))]}], Recipe(momentum=0.0))
    assert plain.param_groups[0]["nesterov"] is False
    adamw = build_optimiser([{"params": [nn.Parameter(torch.ones(3))]}], Recipe(optimiser="adamw", weight_decay=0.02))
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.param_groups[0]["weight_decay"] == 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"batch_size": 10, "accumulate": 3}, "batch_size 10 does not divide into 3 equal parts"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
        ({"weight_decay": -1e-4}, "weight_decay not below"),
        ({"warmup": 1.0}, "warmup and momentum must be at least 0 and below 1"),
        ({"momentum": -0.1}, "warmup and momentum"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0, or None"),
        ({"optimiser": "adam"}, "optimiser must be one of sgd, adamw, got 'adam'"),
        ({"schedule": "linear"}, "schedule must be one of constant, step, cosine, one_cycle"),
        ({"precision": "fp16"}, "precision must be one of float32, bf16"),
    ],
)
def test_bad_recipes(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Recipe(**options)


def test_cycles_go_through_the_schedule_again() -> None:
    once, thrice = Recipe(epochs=4, warmup=0.25), Recipe(epochs=12, warmup=0.25, cycles=3)
    single = [rate(once, step, 40) for step in range(40)]
    assert [rate(thrice, step, 120) for step in range(120)] == single * 3
