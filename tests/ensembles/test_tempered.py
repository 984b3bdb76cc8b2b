"""Members divided by their temperature."""

import copy

import pytest
import torch
from torch import nn

from flipguard.data import DataSet, load_data, split_validation
from flipguard.ensembles import NetworkReference, Tempered
from flipguard.methods import build_method
from flipguard.metrics import fit_temperature
from flipguard.models import build_model
from flipguard.training import ModelSpec, Recipe, Seeds, calibrated, predict_logits, train_network
from flipguard.types import Batch, InputError

B, C, D = 5, 7, 11
torch.set_num_threads(1)


def a_batch(x: torch.Tensor) -> Batch:
    zero = torch.zeros(())
    return Batch(x, torch.zeros(len(x), dtype=torch.long), torch.arange(len(x)), zero, zero.long())


def test_logits_are_divided_and_features_are_not() -> None:
    network = build_model("mlp", classes=C, input_size=D, hidden=(13,))
    x = torch.randn(B, D)
    plain = NetworkReference("plain", [network])(a_batch(x), features=True)
    warm = NetworkReference("warm", [Tempered(network, 2.5)])(a_batch(x), features=True)
    torch.testing.assert_close(warm.logits, plain.logits / 2.5)
    assert warm.features is not None
    assert torch.equal(warm.features, plain.features)
    torch.testing.assert_close(NetworkReference("warm", [Tempered(network, 2.5)])(a_batch(x)).logits, warm.logits)


def test_a_copy_stands_on_its_own() -> None:
    network = build_model("mlp", classes=C, input_size=D, hidden=(13,))
    warm, x = copy.deepcopy(Tempered(network, 2.5)), torch.randn(B, D)
    before = warm.features(x)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert torch.equal(warm.features(x), before)
    torch.testing.assert_close(warm.head(before), warm(x))


def test_a_network_without_features_and_a_bad_temperature() -> None:
    network = Tempered(nn.Linear(D, C), 3.0)
    assert not hasattr(network, "features")
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="a temperature must be above 0"):
            Tempered(nn.Linear(D, C), temperature)


def test_members_of_a_mixed_ensemble_are_calibrated_on_validation_samples() -> None:
    data: DataSet = split_validation(load_data("digits"), size=0.3, seed=0)
    recipe = Recipe(epochs=2, batch_size=61, learning_rate=0.05, clip_norm=1.0)
    specs = (ModelSpec("mlp", {"hidden": (32,)}), ModelSpec("cnn", {"width": 4}))
    members = [
        train_network(spec, data, build_method("none"), recipe, seeds=Seeds.of(seed))
        for seed, spec in enumerate(specs, start=1)
    ]
    warm = [calibrated(member, data) for member in members]
    with pytest.raises(InputError, match="fitted on validation samples"):
        calibrated(members[0], data, "test")
    assert data.validation is not None
    y = data.validation.y.numpy()
    for member in warm:
        # What is calibrated already has a best temperature of 1.
        assert fit_temperature(predict_logits(member, data, "validation"), y) == pytest.approx(1.0, abs=1e-3)
    assert warm[0].temperature != pytest.approx(warm[1].temperature, rel=1e-3)
    ensemble = NetworkReference("ensemble", warm)
    new = train_network(
        specs[1], data, build_method("elodi"), recipe, seeds=Seeds.of(5), references={"ensemble": ensemble}
    )
    assert predict_logits(new, data).shape == (len(data.test), 10)
