"""What a version is held to, where it is not simply the network before."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from flipguard.data import DataSet, Split, normalise
from flipguard.ensembles.combine import features_and_logits
from flipguard.models import build_model
from flipguard.predictions import Predictions
from flipguard.releases.material import class_map
from flipguard.releases.recorded import Recorded
from flipguard.releases.references import Rescaled
from flipguard.types import Batch, InputError, Normalisation

B, C, D = 5, 7, 11
GIVEN, KNOWN = Normalisation((0.3, 0.1), (0.5, 2.0)), Normalisation((0.7, -0.2), (0.25, 3.0))


@pytest.mark.parametrize(("given", "known"), [(GIVEN, KNOWN), (None, KNOWN), (GIVEN, None)])
def test_a_network_sees_its_own_scale(given: Normalisation | None, known: Normalisation | None) -> None:
    x = torch.rand(B, 2, 3, 3)
    network = build_model("mlp", classes=C, input_size=18, hidden=[D])
    held = Rescaled(network, given, known)
    torch.testing.assert_close(held(normalise(x, given)), network(normalise(x, known)), rtol=1e-4, atol=1e-5)
    features, logits = features_and_logits(held, normalise(x, given))
    assert features.shape == (B, D)
    torch.testing.assert_close(logits, held(normalise(x, given)))


def test_a_network_without_features_is_still_one_without() -> None:
    held = Rescaled(nn.Sequential(nn.Flatten(), nn.Linear(18, C)), GIVEN, KNOWN)
    with pytest.raises(InputError, match="gives only logits"):
        features_and_logits(held, torch.rand(B, 2, 3, 3))


def toy(classes: tuple[str, ...] = tuple("abcdefg")) -> DataSet:
    train = Split(torch.zeros(B, 2), torch.arange(B) % len(classes), np.array([f"s{i}" for i in range(B)]))
    return DataSet("toy", train, train.select([0, 1, 2]), classes, "features")


def recorded(path: Path, **columns: object) -> Recorded:
    rows = {"id": [f"s{i}" for i in range(B)], "label": [0] * B, **columns}
    Predictions.from_arrays(**rows).write(path)  # type: ignore[arg-type]
    return Recorded.read("old", path)


def test_recorded_logits_are_found_by_id_and_class_name(tmp_path: Path) -> None:
    """The file's rows and classes are in another order than the data's."""
    logits = torch.arange(B * 3.0).reshape(B, 3)
    old = recorded(tmp_path / "old.parquet", logits=logits.flip(0), classes=("g", "a", "c"))
    data = toy()
    reference = old.reference("old", data, "kd")
    assert reference.classes == (6, 0, 2)
    index = torch.tensor([4, 0])
    batch = Batch(torch.zeros(2, 2), torch.zeros(2), index, torch.zeros(()), torch.zeros(()))
    assert torch.equal(reference(batch).logits[0], logits.flip(0)[index])
    assert old.says(data, "test") is not None
    np.testing.assert_array_equal(old.says(data, "test"), [2, 2, 2])


@pytest.mark.parametrize(("column", "classes"), [([0, 2, 1, 1, 0], ("g", "a", "c")), (["g", "c", "a", "a", "g"], None)])
def test_recorded_predictions_count_by_code_or_by_name(
    column: list[int], classes: tuple[str, ...] | None, tmp_path: Path
) -> None:
    label: list[object] = ["a"] * B if classes is None else [0] * B
    old = recorded(tmp_path / "old.parquet", prediction=column, classes=classes, label=label)
    np.testing.assert_array_equal(old.says(toy(), "train"), [6, 2, 0, 0, 6])
    with pytest.raises(InputError, match="has no logits: kd cannot be held to it"):
        old.reference("old", toy(), "kd")


def test_scores_without_names_must_be_as_many_as_classes(tmp_path: Path) -> None:
    old = recorded(tmp_path / "old.parquet", logits=torch.zeros(B, 3))
    with pytest.raises(InputError, match="names no classes and has 3 scores a row, where toy has 7 classes"):
        old.says(toy(), "train")


def test_a_class_that_the_student_lacks_is_refused_by_name() -> None:
    assert class_map(tuple("abcdefg"), toy(), "the old model") is None
    assert class_map(("c", "a"), toy(), "the old model") == (2, 0)
    with pytest.raises(InputError, match="the old model knows the class 'x', which toy has not"):
        class_map(("a", "x"), toy(), "the old model")
