"""Versions that are averages of weights, on networks that really were trained from the old one's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import flipguard
from flipguard.checkpoints import load_checkpoint
from flipguard.data import Batches, load_data
from flipguard.ensembles import recompute_statistics
from flipguard.predictions import Predictions
from flipguard.releases import TrainSpec, load_release, train
from flipguard.types import InputError

Make = Callable[..., TrainSpec]
SAME = ("new.model.hidden=[5]",)


def weights(folder: Path, version: str = "new") -> dict[str, Tensor]:
    return load_checkpoint(folder / "versions" / version / "model.safetensors")[0]


def assert_mean(mixed: dict[str, Tensor], parts: list[tuple[float, dict[str, Tensor]]]) -> None:
    for name, value in mixed.items():
        expected = sum(share * part[name].double() for share, part in parts)
        torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7, msg=name)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    """The new network as it is before anything is averaged: α = 0."""
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    train(small("method.name=weight_interpolation", "method.alpha=0.0", *SAME), folder)
    return folder


def test_an_interpolated_version_lies_between_the_old_one_and_the_one_trained_from_it(
    tuned: Path, tmp_path: Path, small: Make
) -> None:
    train(small("method.name=weight_interpolation", "method.alpha=0.25", *SAME), tmp_path / "a")
    old, new = weights(tuned, "old"), weights(tuned)
    assert_mean(weights(tmp_path / "a"), [(0.25, old), (0.75, new)])
    # One that starts from the old weights has moved less than one from a start of its own.
    train(small("method.name=none", *SAME), tmp_path / "fresh")
    moved = {
        name: sum(float((found[key] - old[key]).square().sum()) for key in old)
        for name, found in (("tuned", new), ("fresh", weights(tmp_path / "fresh")))
    }
    assert moved["tuned"] < moved["fresh"]


def test_its_predictions_are_those_of_the_averaged_network(tuned: Path, tmp_path: Path, small: Make) -> None:
    outcome = train(small("method.name=weight_interpolation", *SAME), tmp_path / "a")
    said = load_release(tmp_path / "a").logits(load_data({"name": "digits", "test_size": 0.6}))
    rows = flipguard.read_predictions(tmp_path / "a/versions/new/predictions/test.parquet").table(["logits"])
    np.testing.assert_array_equal(np.array(rows["logits"].to_pylist(), np.float32), said)
    plain = flipguard.compare(*(tuned / f"versions/{name}/predictions/test.parquet" for name in ("old", "new")))
    assert 0 < outcome.comparisons[0].negative_flips < plain.negative_flips
    lines = (tmp_path / "a/versions/new/metrics.jsonl").read_text().splitlines()
    assert (
        lines[-1].split('"seconds"')[0]
        == ((tuned / "versions/new/metrics.jsonl").read_text().splitlines()[-1].split('"seconds"')[0])
    )


def test_the_share_is_chosen_on_validation_samples(tuned: Path, tmp_path: Path, small: Make) -> None:
    train(small("method.name=weight_interpolation", "method.alpha=validation", *SAME), tmp_path / "a")
    chosen = json.loads((tmp_path / "a/versions/new/model.json").read_text())["chosen"]
    tried = {one["alpha"]: one for one in chosen["tried"]}
    allowed = [one for one in tried.values() if one["error_rate"] <= tried[0.0]["error_rate"]]
    assert tried[chosen["alpha"]]["negative_flip_rate"] == min(one["negative_flip_rate"] for one in allowed)
    files = [tmp_path / f"a/versions/{name}/predictions/validation.parquet" for name in ("old", "new")]
    found = flipguard.compare(*files)
    assert float(found.error_rate_new) == pytest.approx(tried[chosen["alpha"]]["error_rate"])  # type: ignore[arg-type]
    share = chosen["alpha"]
    assert_mean(weights(tmp_path / "a"), [(share, weights(tuned, "old")), (1 - share, weights(tuned))])


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_a_soup_is_the_mean_of_members_that_began_with_the_old_weights(
    alpha: float, tmp_path: Path, small: Make
) -> None:
    changes = ("method.name=soup", f"method.alpha={alpha}", "method.ensemble.members=3", *SAME)
    train(small(*changes), tmp_path / "a")
    found = [load_checkpoint(path) for path in sorted(tmp_path.glob("a/members/*/member.safetensors"))]
    facts = [described for _, described in found]
    assert len({one["model"]["init"] for one in facts}) == 1
    assert {one["seeds"]["initialisation"] for one in facts} == {1000}
    assert {one["seeds"]["order"] for one in facts} == {1001, 1002, 1003}
    parts = [((1 - alpha) / 3, tensors) for tensors, _ in found]
    assert_mean(weights(tmp_path / "a"), [(alpha, weights(tmp_path / "a", "old")), *parts])


def test_batch_norm_statistics_are_measured_anew(tmp_path: Path, small: Make) -> None:
    model = {"model": {"name": "cnn", "width": 3}}
    train(small("method.name=weight_interpolation", old=model, new=model), tmp_path / "a")
    release = load_release(tmp_path / "a")
    data = load_data({"name": "digits", "test_size": 0.6})
    told = weights(tmp_path / "a")
    name = next(name for name in told if name.endswith("running_mean"))
    between = [weights(tmp_path / "a", "old")[name], told[name]]
    assert not torch.equal(*between)
    # Measured on the very rows that the version was trained on, statistics stay about where they are.
    again = recompute_statistics(release.network, Batches(data.train, 131, normalisation=data.normalisation))
    torch.testing.assert_close(again.state_dict()[name], told[name], rtol=0.2, atol=0.2)


def test_a_start_of_its_own_is_kept(tuned: Path, tmp_path: Path, small: Make) -> None:
    """The start is the same as where the old version stands, given as a file: so is the soup."""
    start = f"new.model.init={tuned / 'versions/old/model.safetensors'}"
    common = ("method.ensemble.members=2", *SAME, "old.method=none")
    train(small("method.name=soup", *common), tmp_path / "a")
    train(small("method.name=soup", *common, start), tmp_path / "b")
    for name, value in weights(tmp_path / "a").items():
        assert torch.equal(value, weights(tmp_path / "b")[name])


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "another architecture": ((), "version new: only networks of one architecture can be averaged: body.1.weight is of"),
    "other classes": (
        (*SAME, "old.data.classes=0.5"),
        "version new: weight_interpolation averages weights, and 'old' knows other classes than digits.",
    ),
    "no part to choose by": (
        (*SAME, "method.alpha=validation", "data.validation=null"),
        "version new: weight_interpolation chooses alpha on the validation part, and the data has none",
    ),
    "a share that is a word": ((*SAME, "method.alpha=valid"), "method.alpha must be a valid number"),
    "a share above one": ((*SAME, "method.alpha=1.5"), "method: alpha must lie between 0 and 1, got 1.5."),
    "a first version": ((*SAME, "old.method=soup"), "old is the first version, and soup needs an old one"),
    "a soup of others": (
        (*SAME, "method.name=soup", "method.ensemble.model=cnn"),
        "version new: a soup is made of networks of the version's own kind: leave method.ensemble.model out.",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_averaged_is_said_before_anything_is_trained(kind: str, tmp_path: Path, small: Make) -> None:
    changes, expected = REFUSED[kind]
    with pytest.raises(InputError) as caught:
        train(small("method.name=weight_interpolation", *changes), tmp_path / "a")
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a").exists()


def test_one_old_network_is_needed_with_its_weights(tuned: Path, tmp_path: Path, small: Make) -> None:
    data = load_data({"name": "digits", "test_size": 0.6})
    logits = np.zeros((len(data.test), 10), np.float32)
    rows: dict[str, Any] = {"id": data.test.ids, "label": data.test.y.numpy(), "logits": logits}
    Predictions.from_arrays(**rows).write(tmp_path / "old.parquet")
    given = {"predictions": str(tmp_path / "old.parquet")}
    with pytest.raises(InputError, match="needs the weights of 'old', of which only predictions are left"):
        train(small("method.name=weight_interpolation", old=given), tmp_path / "a")
    versions = [{"model": {"name": "mlp", "hidden": [5]}, "references": "full"} for _ in range(3)]
    with pytest.raises(InputError, match="mixes with one old network: take references: chain, or radial"):
        train(small("method.name=weight_interpolation", old=None, new=None, versions=versions), tmp_path / "b")
