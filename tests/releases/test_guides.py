"""Guiding ensembles of every make, and old models that were never treated (ELODI, Tables 7 to 9)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.data import Batches
from flipguard.ensembles import CachedReference
from flipguard.metrics import fit_temperature
from flipguard.releases import Listener, TrainSpec, load_release, material, resolve, train
from flipguard.releases.references import Task, members, references_of
from flipguard.releases.resolved import data_of
from flipguard.training import predict_logits
from flipguard.types import InputError

Make = Callable[..., TrainSpec]
ELODI = ("method.name=elodi", "method.ensemble.members=3")
MIXED = "method.ensemble.model=[{name: mlp, hidden: [5]}, cnn]"


def task_of(spec: TrainSpec, tmp_path: Path) -> Task:
    """The last version's, with nothing before it."""
    resolved = resolve(spec)
    assert resolved.versions is not None
    version = resolved.versions[-1]
    plan = data_of(resolved, version)
    home, kept = tmp_path / "version", tmp_path / "members"
    return Task(version, plan, material.load(plan), (), home, kept, "cpu", Listener())


def kinds(folder: Path) -> list[str]:
    return sorted(load_checkpoint(path)[1]["model"]["name"] for path in folder.glob("members/*/*.safetensors"))


GUIDES = {
    "all different": (
        "method.ensemble.model=[mlp, cnn, {name: resnet20, width: 3, in_channels: 1}]",
        ["cnn", "mlp", "resnet20"],
    ),
    "mixed": (MIXED, ["cnn", "mlp", "mlp"]),
    "the old architecture": ("method.ensemble.model={name: mlp, hidden: [5]}", ["mlp"] * 3),
}


@pytest.mark.parametrize("make", GUIDES)
def test_networks_of_several_kinds_guide_in_turn(make: str, tmp_path: Path, small: Make) -> None:
    change, expected = GUIDES[make]
    old = {"model": {"name": "mlp", "hidden": [5]}, "method": "none"}
    train(small(*ELODI, change, "train.epochs=1", old=old), tmp_path / "a")
    assert kinds(tmp_path / "a") == expected
    assert load_release(tmp_path / "a").model.options == {"hidden": [7]}


def test_calibrated_members_speak_through_their_temperatures(tmp_path: Path, small: Make) -> None:
    task = task_of(small(*ELODI, MIXED, "method.ensemble.calibrated=true"), tmp_path)
    reference = references_of(task, ["ensemble"])["ensemble"]
    data = task.data
    batch = next(iter(Batches(data.train, 37, normalisation=data.normalisation)))
    found = reference(batch).logits.numpy()
    temperatures = []
    for said, network in zip(found, members(task), strict=True):
        assert data.validation is not None
        temperatures.append(fit_temperature(predict_logits(network, data, "validation"), data.validation.y.numpy()))
        with torch.no_grad():
            np.testing.assert_allclose(said, network(batch.x).numpy() / temperatures[-1], rtol=1e-4, atol=1e-5)
    assert len(set(temperatures)) == 3


@pytest.mark.parametrize("calibrated", [False, True])
def test_offline_logits_are_the_members_over_every_row(calibrated: bool, tmp_path: Path, small: Make) -> None:
    switch = f"method.ensemble.calibrated={calibrated}"
    online, offline = (
        references_of(task_of(small(*ELODI, switch, f"method.ensemble.offline={each}"), tmp_path), ["ensemble"])
        for each in (False, True)
    )
    cached = offline["ensemble"]
    assert isinstance(cached, CachedReference)
    data = task_of(small(), tmp_path).data
    for batch in Batches(data.train, 37, order_seed=3, normalisation=data.normalisation):
        torch.testing.assert_close(cached(batch).logits, online["ensemble"](batch).logits, rtol=1e-4, atol=1e-5)


def test_calibration_needs_validation_samples(tmp_path: Path, small: Make) -> None:
    with pytest.raises(InputError, match=r"version old\.method\.ensemble\.calibrated needs validation samples"):
        train(small(*ELODI, "method.ensemble.calibrated=true", "data.validation=null"), tmp_path / "a")


def terms(folder: Path, version: str) -> set[str]:
    return set(json.loads((folder / f"versions/{version}/metrics.jsonl").read_text().splitlines()[-1])["terms"])


def test_the_old_model_is_kept_in_sight_once_or_by_both_that_follow(tmp_path: Path, small: Make) -> None:
    """Table 7: v0 was never treated. Once: only v1 is held to it as well. Both: v2 too, by `references: radial`."""

    def after(**v2: Any) -> dict[str, Any]:
        models = [{"model": {"name": "mlp", "hidden": [width]}} for width in (3, 5, 7)]
        untreated, first, second = models
        elodi = {"name": "elodi", "ensemble": {"members": 2}}
        first |= {"method": {**elodi, "mix": 0.5}}
        second |= {"method": {**elodi, "mix": v2.pop("mix")}, **v2}
        return {"old": None, "new": None, "versions": [untreated, first, second]}

    shared = f"members={tmp_path / 'members'}"
    train(small(shared, **after(mix=1.0)), tmp_path / "once")
    train(small(shared, **after(mix=0.5, references="radial")), tmp_path / "both")
    train(small(shared, **after(mix=0.5, references="chain")), tmp_path / "closest")
    assert terms(tmp_path / "once", "v1") == {"cross_entropy", "ldi_ensemble", "ldi_old"}
    assert terms(tmp_path / "once", "v2") == {"cross_entropy", "ldi_ensemble"}
    assert terms(tmp_path / "both", "v2") == {"cross_entropy", "ldi_ensemble", "ldi_old"}
    found = {name: load_release(tmp_path / name, "v2").network.state_dict() for name in ("once", "both", "closest")}
    first = {name: load_release(tmp_path / name, "v1").network.state_dict() for name in found}
    key = next(iter(found["both"]))
    assert torch.equal(first["once"][key], first["both"][key])
    assert not torch.equal(found["both"][key], found["once"][key])
    assert not torch.equal(found["both"][key], found["closest"][key])
