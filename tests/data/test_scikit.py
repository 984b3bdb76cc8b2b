"""Tables, from scikit-learn to a comparison: nothing on the way assumes an image."""

import numpy as np
import pytest
import sklearn.datasets
import torch

from flipguard.comparison.run import compare
from flipguard.data import load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, as_predictions, fit_members, predict_logits, train_network
from flipguard.types import InputError

torch.set_num_threads(1)


@pytest.mark.parametrize(("name", "classes", "width"), [("breast_cancer", 2, 30), ("iris", 3, 4), ("wine", 3, 13)])
def test_the_rows_are_scikit_learns(name: str, classes: int, width: int) -> None:
    data = load_data(f"sklearn:{name}")
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    assert data.kind == "features"
    assert len(data.classes) == classes
    for split in (data.train, data.test):
        rows = [int(identity.removeprefix(f"{name}_")) for identity in split.ids]
        assert isinstance(split.x, torch.Tensor)
        assert split.x.shape == (len(rows), width)
        assert np.array_equal(split.x.numpy(), x[rows].astype(np.float32))
        assert split.y.tolist() == y[rows].tolist()
    assert len(data.train) + len(data.test) == len(y)
    assert data.normalisation is not None
    assert data.normalisation.mean == pytest.approx(data.train.x.double().mean(0).tolist())  # type: ignore[union-attr]


def test_an_unknown_table() -> None:
    with pytest.raises(InputError, match="tables are breast_cancer, iris, wine, not 'covtype'"):
        load_data("sklearn:covtype")


def test_an_update_of_a_table_classifier() -> None:
    data = load_data("sklearn:breast_cancer")
    recipe = Recipe(epochs=6, batch_size=37, learning_rate=0.05, clip_norm=1.0)
    small, large = (ModelSpec("mlp", {"input_size": 30, "hidden": hidden}) for hidden in ((5,), (32,)))
    members = fit_members(large, data, recipe, [11, 12], processes=1)
    ensemble = NetworkReference("ensemble", members)
    old = train_network(small, data, build_method("none"), recipe, seeds=Seeds.of(1))
    new = train_network(
        large, data, build_method("elodi"), recipe, seeds=Seeds.of(2), references={"ensemble": ensemble}
    )
    result = compare(*(as_predictions(predict_logits(network, data), data) for network in (old, new)))
    assert result.n == len(data.test)
    assert float(result.error_rate_new or 1) < 0.1
    assert {group.value for group in result.classes} == {"malignant", "benign"}
