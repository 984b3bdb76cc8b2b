"""Chains of versions: what each is held to, what is trained once only, and what the whole comes to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.data import Batches
from flipguard.releases import Listener, TrainSpec, load_release, material, resolve, train
from flipguard.releases.references import Task, references_of
from flipguard.releases.resolved import data_of

Make = Callable[..., TrainSpec]


def chain(*versions: dict[str, Any]) -> dict[str, Any]:
    return {"old": None, "new": None, "versions": list(versions)}


def mlp(width: int, **more: Any) -> dict[str, Any]:
    return {"model": {"name": "mlp", "hidden": [width]}, **more}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, small: Make) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "chain"
    train(small("method.name=kd", **chain(mlp(3), mlp(5), mlp(7))), folder)
    return folder


EARLIER = {"chain": ["v1"], "radial": ["v0"], "full": ["v0", "v1"]}


@pytest.mark.parametrize("references", EARLIER)
def test_the_reference_says_what_its_ancestors_say(references: str, trained: Path, tmp_path: Path, small: Make) -> None:
    """On the really trained versions, over every training row."""
    spec = resolve(small("method.name=kd", **chain(mlp(3), mlp(5), mlp(7, references=references))))
    assert spec.versions is not None
    version = spec.versions[2]
    plan = data_of(spec, version)
    data = material.load(plan)
    earlier = [load_release(trained, name) for name in ("v0", "v1")]
    task = Task(version, plan, data, earlier, tmp_path / "v2", tmp_path / "members", "cpu", Listener())
    reference = references_of(task, ["old"])["old"]
    batches = Batches(data.train, 131, order_seed=3, normalisation=data.normalisation)
    found = torch.cat([reference(batch).logits for batch in batches], dim=1).numpy()
    order = torch.cat([batch.index for batch in batches]).numpy()
    expected = np.stack([load_release(trained, name).logits(data, "train")[order] for name in EARLIER[references]])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def times(folder: Path) -> dict[str, int]:
    """Every file that training or prediction makes, with the moment it was written."""
    found = [*folder.glob("versions/*/**/*"), *folder.glob("members/**/*")]
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in found if path.is_file()}


def test_of_a_version_that_comes_later_nothing_earlier_is_computed_again(tmp_path: Path, small: Make) -> None:
    elodi = ("method.name=elodi", "method.ensemble.members=2")
    train(small(*elodi, **chain(mlp(3), mlp(5))), tmp_path / "a")
    before = times(tmp_path / "a")
    assert sum(name.endswith("member.safetensors") for name in before) == 4
    train(small(*elodi, **chain(mlp(3), mlp(5), mlp(7))), tmp_path / "a")
    after = times(tmp_path / "a")
    assert {name: after[name] for name in before} == before
    assert sum(name.endswith("member.safetensors") for name in after) == 6


def test_versions_that_knew_fewer_classes_are_judged_on_the_last_one_s_samples(tmp_path: Path, small: Make) -> None:
    """Half of the classes, the same half again, then all of them: every pair over all 1,078 samples."""
    half = {"data": {"classes": 0.5}}
    outcome = train(small("method.name=kd", **chain(mlp(3, **half), mlp(5, **half), mlp(7))), tmp_path / "a")
    assert outcome.matrix is not None
    assert outcome.matrix.n == 1078
    pairs = {(c.old.version, c.new.version): c for c in outcome.comparisons}
    assert pairs["v0", "v1"].n < 1078 == pairs["v0", "v2"].n == pairs["v1", "v2"].n
    flips = outcome.matrix.negative_flips
    assert [flips[0][2], flips[1][2]] == [pairs["v0", "v2"].negative_flips, pairs["v1", "v2"].negative_flips]
    # On samples of the other half both are wrong, so the flips between the first two are those of their own samples.
    assert flips[0][1] == pairs["v0", "v1"].negative_flips
    assert float(outcome.matrix.error_rate[0]) > 0.4
    assert outcome.matrix.sum_negative_flips == flips[0][1] + flips[1][2]
    assert json.loads((tmp_path / "a/matrix.json").read_text())["n"] == 1078
