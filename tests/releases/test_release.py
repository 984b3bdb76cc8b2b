"""A release from its folder, and what it says of data that it was not trained on."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from flipguard.analysis.released import line_of_runs
from flipguard.analysis.runs import read_run
from flipguard.cli.app import app
from flipguard.data import load_data, subset
from flipguard.ensembles import DeepEnsemble
from flipguard.releases import Listener, Release, TrainSpec, load_release, train
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


class StopsAt(Listener):
    """Interrupts the training of a version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def epoch(self, version: str, figures: Any) -> None:
        if version == self.version:
            raise KeyboardInterrupt


def test_a_run_that_was_interrupted_has_no_older_version_for_its_last(
    tmp_path: Path, small: Callable[..., TrainSpec]
) -> None:
    """Else its old model would be compared with itself, and pass. What is said to go on by does."""
    folder = tmp_path / "a run"
    with pytest.raises(KeyboardInterrupt):
        train(small("train.epochs=2"), folder, listener=StopsAt("new"))
    assert (folder / "versions/new/metrics.jsonl").is_file()
    assert load_release(folder, "old").name == "old"
    again = f"flipguard train '{folder}/spec.yaml' --out '{folder}'"
    begun = f"{folder}: the version 'new' is not finished: go on with {again}, or name"
    by_name = f"{begun} one that is (old), by --version or, in a spec, by its folder: {folder}/versions/old."
    by_file = f"{begun} files that are there, such as {folder}/versions/old/predictions/test.parquet."
    for refused in (
        lambda: load_release(folder),
        lambda: load_release(folder, "new"),
        lambda: load_release(folder / "versions/new"),
        lambda: train(small(old=str(folder)), tmp_path / "b"),
        lambda: train(small("method.name=graft", "new.references=ensemble", old=str(folder)), tmp_path / "b"),
    ):
        with pytest.raises(InputError) as caught:
            refused()
        assert str(caught.value) == by_name
    for of_a_run in (lambda: read_run(folder).update, lambda: line_of_runs({"a": read_run(folder)})):
        with pytest.raises(InputError) as caught:
            of_a_run()
        assert str(caught.value) == by_file
    assert not (tmp_path / "b").exists()
    done = CliRunner().invoke(app, shlex.split(again)[1:], prog_name="flipguard")
    assert done.exit_code == 0, done.stderr
    assert load_release(folder).name == "new"
    assert read_run(folder).update[1].parts[-3] == "new"


def test_a_run_of_which_nothing_is_finished_says_so(tmp_path: Path, small: Callable[..., TrainSpec]) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(small(), tmp_path / "a", listener=StopsAt("old"))
    with pytest.raises(InputError, match=r"the version 'new' is not finished: .*; none is finished yet\.$"):
        load_release(tmp_path / "a")
    with pytest.raises(InputError, match=r"no version 'newer' that is finished; finished: none\.$"):
        load_release(tmp_path / "a", "newer")
