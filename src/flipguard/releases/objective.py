"""A version whose network is trained by an objective, held to its references."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from flipguard.releases import material
from flipguard.releases.folder import STATE
from flipguard.releases.provenance import facts_of
from flipguard.releases.references import Task, references_of
from flipguard.releases.release import Release
from flipguard.releases.resolved import recipe_of
from flipguard.releases.settled import build
from flipguard.releases.watcher import Watcher
from flipguard.training import ModelSpec, train_network
from flipguard.training.engines import for_one
from flipguard.types import Method, Reference


def objective(task: Task) -> Release:
    """The release of a method that is a loss."""
    assert task.version.model is not None
    method: Any = build(task.method)
    model = material.model_spec(task.version.model)
    network = trained(task, model, method, references_of(task, getattr(method, "needs", ())))
    return release_of(task, network, model.for_method(method))


def trained(
    task: Task, model: ModelSpec, method: Method, references: Mapping[str, Reference] | None = None
) -> nn.Module:
    """The version's network after its training, whose state and figures lie in the version's folder."""
    version = task.version
    assert version.train is not None
    assert version.seeds is not None
    return train_network(
        model,
        task.data,
        method,
        recipe_of(version.train),
        seeds=material.seeds_of(version.seeds),
        references=references,
        augmentation=material.augmentation(task.plan.augment),
        device=task.device,
        checkpoint=task.home / STATE,
        checkpoint_every=version.train.checkpoint_every,
        choose_epoch=version.train.choose_epoch,
        engine=for_one(version.train.engine),
        sharded=version.train.sharded,
        on_epoch=Watcher(task),
    )


def release_of(task: Task, network: nn.Module, model: ModelSpec, **facts: Any) -> Release:
    """A network with what goes with it."""
    data = task.data
    return Release(
        task.name,
        network,
        model,
        data.classes,
        data.normalisation,
        facts={**facts_of(task), **facts},
        encoder=data.encoder,
    )
