"""Versions that are averages of weights: trained from the old network's, and mixed with it afterwards."""

from dataclasses import asdict, replace
from typing import Any

from torch import nn

from flipguard.data import Batches
from flipguard.ensembles import average_weights
from flipguard.methods import NoTreatment, Soup, choose_alpha
from flipguard.releases import material
from flipguard.releases.folder import MODEL
from flipguard.releases.objective import release_of, trained
from flipguard.releases.recorded import Recorded
from flipguard.releases.references import Task, ancestors, members
from flipguard.releases.release import Release
from flipguard.releases.resolved import starts_from_old
from flipguard.releases.settled import build
from flipguard.training import ModelSpec
from flipguard.types import InputError


def averaged(task: Task) -> Release:
    """The release of a post-hoc method: new networks by plain training, from the old one's weights, then their mean."""
    method, old = build(task.method), _old(task)
    before = None if old is None else old.network.to(task.device)
    model = _model(task, old)
    if isinstance(method, Soup):
        new = [network.to(task.device) for network in members(task, start=model)]
    else:
        assert task.version.train is not None
        new = [trained(task, model, NoTreatment(label_smoothing=task.version.train.label_smoothing or 0.0))]
    chosen: dict[str, Any] = {}
    if method.alpha == "validation":
        assert before is not None
        found = choose_alpha(before, average_weights(new), list(_batches(task, "validation")), batches=_training(task))
        method, chosen = replace(method, alpha=found.alpha), {"chosen": asdict(found)}
    if isinstance(method, Soup):
        network = method(new, old=before, batches=_training(task))
    else:
        network = method(before, new[0], batches=_training(task))
    return release_of(task, network, model, **chosen)


def check_averaged(task: Task, network: nn.Module) -> None:
    """Refuses what cannot be averaged, by an untrained network of the version's kind."""
    method, name = build(task.method), task.method.name
    if isinstance(method, Soup) and task.ensemble.model != [task.version.model]:
        raise InputError("a soup is made of networks of the version's own kind: leave method.ensemble.model out.")
    if method.alpha == "validation" and "validation" not in material.held_out(task.data):
        raise InputError(f"{name} chooses alpha on the validation part, and the data has none: set data.validation.")
    old = _old(task)
    if old is None:
        return
    if old.classes != task.data.classes:
        raise InputError(f"{name} averages weights, and '{old.name}' knows other classes than {task.data.name}.")
    if old.normalisation != task.data.normalisation:
        raise InputError(f"{name} averages weights, and '{old.name}' takes inputs of another scale.")
    tokens = [None if one is None else one.fingerprint() for one in (old.encoder, task.data.encoder)]
    if tokens[0] != tokens[1]:
        raise InputError(
            f"{name} averages weights, and '{old.name}' knows other tokens: give both versions the same data.encode."
        )
    average_weights([old.network, network])


def _old(task: Task) -> Release | None:
    """The old network to start from and to mix with; None for a soup with a start of its own, all of it new."""
    if not starts_from_old(task.method, task.version) and "old" not in build(task.method).needs:
        return None
    found = ancestors(task)
    if len(found) > 1:
        raise InputError(f"{task.method.name} mixes with one old network: take references: chain, or radial.")
    if isinstance(found[0], Recorded):
        raise InputError(
            f"{task.method.name} needs the weights of '{found[0].name}', of which only predictions are left."
        )
    return found[0]


def _model(task: Task, old: Release | None) -> ModelSpec:
    assert task.version.model is not None
    model = material.model_spec(task.version.model)
    if old is None or not starts_from_old(task.method, task.version):
        return model
    return replace(model, init=str(task.home.parent / old.name / MODEL))


def _batches(task: Task, part: str) -> Batches:
    return Batches.asked(task.data.part(part), normalisation=task.data.normalisation, device=task.device)


def _training(task: Task) -> Batches:
    """What BatchNorm's statistics are measured on: the first epoch's batches."""
    version = task.version
    assert version.train is not None
    assert version.seeds is not None
    return Batches(
        task.data.train,
        version.train.batch_size,
        order_seed=version.seeds.order,
        augment_seed=version.seeds.augment,
        drop_last=True,
        augmentation=material.augmentation(task.plan.augment),
        normalisation=task.data.normalisation,
        device=task.device,
    )
