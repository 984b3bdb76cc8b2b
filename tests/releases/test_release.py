"""A release from its folder, and what it says of data that it was not trained on."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flipguard.data import load_data, subset
from flipguard.ensembles import DeepEnsemble
from flipguard.releases import Release, TrainSpec, load_release, train
from flipguard.training import ModelSpec
from flipguard.types import InputError, Normalisation

MODEL = ModelSpec("mlp", {"hidden": [5]})
CLASSES = tuple(str(digit) for digit in range(10))


def kept(folder: Path, members: int = 1) -> Release:
    networks = [MODEL.build(10, seed) for seed in range(members)]
    network = networks[0] if members == 1 else DeepEnsemble(networks, combination="probabilities")
    made = Release(
        "v7", network, MODEL, CLASSES, Normalisation((0.2,), (0.4,)), members, "probabilities", {"seeds": {"order": 3}}
    )
    made.save(folder)
    made.finish(folder)
    return made


@pytest.mark.parametrize("members", [1, 3])
def test_a_release_comes_back_as_it_was(members: int, tmp_path: Path) -> None:
    made, found = kept(tmp_path, members), load_release(tmp_path)
    data = load_data("digits")
    np.testing.assert_array_equal(found.logits(data), made.logits(data))
    assert (found.name, found.model, found.classes, found.normalisation) == ("v7", MODEL, CLASSES, made.normalisation)
    assert (found.members, found.combination, found.facts) == (members, "probabilities", made.facts)


def test_inputs_are_scaled_as_the_network_knows_them_whatever_the_data_says(tmp_path: Path) -> None:
    made, data = kept(tmp_path), load_data("digits")
    x = (data.test.x / 255 - 0.2) / 0.4
    with torch.inference_mode():
        expected = made.network.eval()(x)
    np.testing.assert_allclose(made.logits(data), expected.numpy(), rtol=1e-4, atol=1e-5)


def test_predictions_over_other_classes_are_labelled_by_name(tmp_path: Path) -> None:
    made, data = kept(tmp_path), load_data("digits")
    few = subset(data, classes=["7", "3"])
    said = made.predictions(few)
    assert said.classes == CLASSES
    assert set(said.table(["label"])["label"].to_pylist()) == {"3", "7"}
    np.testing.assert_array_equal(np.array(said.table(["logits"])["logits"].to_pylist(), np.float32), made.logits(few))


def test_a_damaged_folder_is_said_in_one_line(tmp_path: Path) -> None:
    kept(tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**card, "model": {"name": "mlp", "options": {"hidden": [6]}}}))
    with pytest.raises(
        InputError, match=r"model\.json is damaged: it differs from what model\.safetensors holds of it"
    ):
        load_release(tmp_path)
    (tmp_path / "model.json").write_text(json.dumps({"classes": ["a"]}))
    with pytest.raises(InputError, match=r"model\.json is no release's"):
        load_release(tmp_path)
    (tmp_path / "model.json").write_text("[")
    with pytest.raises(InputError, match=r"model\.json is damaged: it cannot be read as JSON"):
        load_release(tmp_path)


def test_a_run_s_last_version_is_its_release_unless_one_is_named(
    tmp_path: Path, small: Callable[..., TrainSpec]
) -> None:
    train(small("train.epochs=1", "seed=[0, 1]"), tmp_path / "a")
    assert load_release(tmp_path / "a/seed_0").name == "new"
    assert load_release(tmp_path / "a/seed_0", "old").name == "old"
    assert load_release(tmp_path / "a/seed_0/versions/old").name == "old"
    with pytest.raises(InputError, match="it holds the runs seed_0, seed_1: name one of them"):
        load_release(tmp_path / "a")
