"""On digits the compatible methods come near no treatment's error, and make the new features serve the old head."""

from typing import Any

import pytest
import torch
from torch import nn

from flipguard.data import Batches, DataSet, load_data
from flipguard.ensembles import NetworkReference
from flipguard.losses import fit_width
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, train_network

torch.set_num_threads(1)

RECIPE = Recipe(epochs=8, batch_size=64, learning_rate=0.05)
MARGIN = 0.025
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bct": ("bct", {}),
    "ract": ("ract", {}),
    "ract contrastive": ("ract", {"form": "contrastive"}),
    "bu_cr": ("bu_cr", {}),
}


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_data("digits")


@pytest.fixture(scope="module")
def old(digits: DataSet) -> nn.Module:
    return trained(digits, 24, "none", {}, seed=1)


@pytest.fixture(scope="module")
def plain(digits: DataSet) -> nn.Module:
    return trained(digits, 48, "none", {}, seed=2)


def trained(
    data: DataSet, hidden: int, name: str, options: dict[str, Any], *, seed: int, old: nn.Module | None = None
) -> nn.Module:
    references = {} if old is None else {"old": NetworkReference("old", [old])}
    model = ModelSpec("mlp", {"hidden": (hidden,)})
    method = build_method(name, **options)
    return train_network(model, data, method, RECIPE, seeds=Seeds.of(seed), references=references)


@torch.no_grad()
def errors(network: Any, old: Any, data: DataSet) -> tuple[float, float]:
    """The network's own error, and that of the old head on its features."""
    (batch,) = Batches(data.test, len(data.test), order_seed=None, normalisation=data.normalisation)
    features = fit_width(network.features(batch.x), old.feature_width)
    said = network(batch.x), old.head(features)
    return tuple(float((logits.argmax(-1) != batch.y).float().mean()) for logits in said)  # type: ignore[return-value]


@pytest.mark.parametrize("case", CASES)
def test_each_learns(case: str, digits: DataSet, old: nn.Module, plain: nn.Module) -> None:
    name, options = CASES[case]
    network = trained(digits, 48, name, options, seed=2, old=old)
    mine, with_old_head = errors(network, old, digits)
    untreated, untreated_with_old_head = errors(plain, old, digits)
    assert mine < untreated + MARGIN
    if name != "bu_cr":
        assert untreated_with_old_head > 0.5
        assert with_old_head < 0.1
