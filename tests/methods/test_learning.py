"""Each objective learns: on digits it comes within a margin of no treatment's error.

A new method is trained as soon as it is registered. One that needs more than this small setting gives it has a line in
OPTIONS, with the reason.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from flipguard.data import DataSet, load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import METHODS, NoTreatment, build_method
from flipguard.training import ModelSpec, Recipe, Seeds, predict_logits, train_network
from flipguard.types import Reference

MARGIN = 0.03
OBJECTIVES = [name for name, card in METHODS.items() if card.kind == "objective"]
SMALL = ModelSpec("mlp", {"hidden": (32,)})
RECIPE = Recipe(epochs=10, batch_size=64, learning_rate=0.1, clip_norm=1.0)
OPTIONS: dict[str, dict[str, Any]] = {
    # 190 updates in all: the peers' copies must be younger than the default's 50.
    "codistill_ce": {"every": 10},
    # Eq. 7 has no lower bound, and nothing here holds the logits as BatchNorm would: the paper's smallest α.
    "skl": {"alpha": 0.05},
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_data("digits")


def network(digits: DataSet, method: Any, seed: int, references: dict[str, Reference] | None = None) -> nn.Module:
    return train_network(SMALL, digits, method, RECIPE, seeds=Seeds.of(seed), references=references)


def error(network: nn.Module, digits: DataSet) -> float:
    return float((predict_logits(network, digits).argmax(1) != digits.test.y.numpy()).mean())


@pytest.fixture(scope="module")
def references(digits: DataSet) -> dict[str, Reference]:
    members = [network(digits, NoTreatment(), seed) for seed in (1, 2, 3)]
    return {"old": NetworkReference("old", members[:1]), "ensemble": NetworkReference("ensemble", members)}


@pytest.fixture(scope="module")
def plain_error(digits: DataSet) -> float:
    found = error(network(digits, NoTreatment(), 0), digits)
    assert found < 0.06, "no treatment itself must learn, or the margin means nothing"
    return found


@pytest.mark.parametrize("name", OBJECTIVES)
def test_learns(name: str, digits: DataSet, references: dict[str, Reference], plain_error: float) -> None:
    method = build_method(name, **OPTIONS.get(name, {}))
    held = {needed: references[needed] for needed in method.needs}
    assert error(network(digits, method, 0, held), digits) <= plain_error + MARGIN


def test_a_method_that_learns_nothing_would_fail(digits: DataSet, plain_error: float) -> None:
    """One update is not enough."""
    recipe = replace(RECIPE, epochs=1, batch_size=len(digits.train))
    untrained = train_network(SMALL, digits, NoTreatment(), recipe, seeds=Seeds.of(0))
    assert error(untrained, digits) > plain_error + MARGIN
