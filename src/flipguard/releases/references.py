"""What a version is held to: earlier versions, or an ensemble of its own kind. One function for each name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.data import Batches, DataSet
from flipguard.ensembles import CachedReference, NetworkReference, OwnInputs, SpreadReference, extract_logits
from flipguard.methods import NoTreatment
from flipguard.releases import material
from flipguard.releases.listener import Listener
from flipguard.releases.plan import DataPlan, EnsemblePlan, MethodPlan, VersionPlan
from flipguard.releases.recorded import Recorded
from flipguard.releases.release import Release
from flipguard.releases.resolved import recipe_of
from flipguard.training import ModelSpec, Seeds, calibrated, fit_members
from flipguard.training.distributed import place
from flipguard.training.members import MEMBER, MemberPlan, member_homes
from flipguard.types import InputError, Normalisation, Reference

Earlier = Release | Recorded


@dataclass(frozen=True)
class Task:
    """A version to be trained, and what there is for it."""

    version: VersionPlan
    plan: DataPlan
    data: DataSet
    earlier: Sequence[Earlier]
    home: Path
    members: Path
    device: str
    listener: Listener
    repair: bool = False
    heritage: Callable[[], Sequence[Release]] | None = None
    """The ensemble that the version before this one learned from, for `references: ensemble`."""

    @property
    def name(self) -> str:
        return str(self.version.name)

    @property
    def method(self) -> MethodPlan:
        return self.version.method or MethodPlan()

    @property
    def ensemble(self) -> EnsemblePlan:
        return self.method.ensemble or EnsemblePlan()


def references_of(task: Task, needs: Sequence[str]) -> dict[str, Reference]:
    """Each reference that the method needs, by name."""
    for need in needs:
        if need not in REFERENCES:
            raise InputError(f"a training spec cannot give '{task.name}' the reference '{need}'.")
    return {need: REFERENCES[need](task) for need in needs}


def ancestors(task: Task) -> Sequence[Earlier]:
    """What stands for `old`: the closest of the earlier versions, the first, all, or the closest one's ensemble."""
    if task.version.references == "ensemble":
        assert task.heritage is not None
        return task.heritage()
    chosen = {"chain": task.earlier[-1:], "radial": task.earlier[:1], "full": task.earlier}
    return chosen[task.version.references]


def _old(task: Task) -> Any:
    found = ancestors(task)
    recorded = [one for one in found if isinstance(one, Recorded)]
    if recorded:
        if len(found) > 1:
            raise InputError(
                f"'{task.name}' cannot be held to all earlier versions: of '{recorded[0].name}' only predictions are "
                "left. Take references: chain, or radial."
            )
        return recorded[0].reference("old", task.data, task.method.name, device=task.device)
    releases = [one for one in found if isinstance(one, Release)]
    classes = {one.classes for one in releases}
    if len(classes) > 1:
        raise InputError(f"'{task.name}' cannot be held to all earlier versions: they know different classes.")
    mapping = material.class_map(releases[0].classes, task.data, f"the version '{releases[0].name}'")
    networks = [_scaled_for(one, task.data.normalisation) for one in releases]
    encoded = {id(one.encoder): one.known(task.data) for one in releases}
    known = [encoded[id(one.encoder)] for one in releases]
    if all(data is task.data for data in known):
        return NetworkReference("old", networks, classes=mapping).to(task.device)
    inputs: list[Any] = [None if data is task.data else data.train.x for data in known]
    return OwnInputs("old", networks, inputs, classes=mapping).to(task.device)


def _ensemble(task: Task) -> Any:
    plan, (rank, world) = task.ensemble, place()
    if plan.spread and world > 1 and not plan.offline:
        return SpreadReference("ensemble", _own(task, rank, world), plan.members, rank, world).to(task.device)
    reference = NetworkReference("ensemble", _tempered(task, members(task))).to(task.device)
    if not plan.offline:
        return reference
    batches = Batches.asked(task.data.train, normalisation=task.data.normalisation, device=task.device)
    return CachedReference("ensemble", extract_logits(reference, batches))


def _own(task: Task, rank: int, world: int) -> list[nn.Module]:
    """This process's share of the members."""
    return _tempered(task, members(task, share=(rank, world)))


def _tempered(task: Task, networks: list[nn.Module]) -> list[nn.Module]:
    if not task.ensemble.calibrated:
        return networks
    return [calibrated(network, task.data, device=task.device) for network in networks]


def learned_from(task: Task, *, trained: bool = True) -> list[Release]:
    """The ensemble that a version learned from, each member as a release; untrained ones are for rehearsals."""
    plan, data = task.ensemble, task.data
    specs = [material.model_spec(model) for model in plan.model or ()]
    models = [specs[place % len(specs)] for place in range(plan.members)]
    networks = (
        _tempered(task, members(task)) if trained else [model.build(len(data.classes), 0).eval() for model in models]
    )
    return [
        Release(task.name, network, model, data.classes, data.normalisation, encoder=data.encoder)
        for model, network in zip(models, networks, strict=True)
    ]


REFERENCES: dict[str, Callable[[Task], Any]] = {"old": _old, "ensemble": _ensemble}


def ensembles_of(
    task: Task, start: ModelSpec | None = None, *, device: str | None = None
) -> list[tuple[range, MemberPlan, list[Seeds]]]:
    """For each of the ensemble's networks, which take turns: its members' places, what they share, their seeds."""
    plan, version = task.ensemble, task.version
    assert plan.model is not None
    assert plan.train is not None
    assert version.seeds is not None
    own = material.seeds_of(version.seeds)
    seeds = [material.shifted(own, 1 + j) for j in range(plan.members)]
    if start is not None:
        seeds = [replace(each, initialisation=own.initialisation) for each in seeds]
    models = [start] if start is not None else [material.model_spec(model) for model in plan.model]
    return [
        (
            range(turn, plan.members, len(models)),
            MemberPlan(
                model,
                # Members are held to nothing, and so know nothing of how references are asked.
                replace(recipe_of(plan.train), views=0, dealt=False),
                NoTreatment(label_smoothing=plan.train.label_smoothing or 0.0),
                material.augmentation(task.plan.augment),
                device or task.device,
                plan.train.checkpoint_every,
                plan.train.engine,
            ),
            seeds[turn :: len(models)],
        )
        for turn, model in enumerate(models[: plan.members])
    ]


def members_are_there(task: Task) -> bool:
    """Whether every member of a version's ensemble has been trained, and is kept."""
    homes = [
        home for _, plan, seeds in ensembles_of(task) for home in member_homes(plan, task.data, seeds, task.members)
    ]
    return all((home / MEMBER).exists() for home in homes)


def members(task: Task, start: ModelSpec | None = None, *, share: tuple[int, int] = (0, 1)) -> list[nn.Module]:
    """The ensemble's members, each trained once and kept; several networks take turns.

    With a `start` all of them are that network, and begin with the same weights: they differ in what they see. Of all
    members every `share[1]`-th is loaded, from number `share[0]` on.
    """
    total, train = task.ensemble.members, task.ensemble.train
    assert train is not None
    found: dict[int, nn.Module] = {}
    wanted, before = range(share[0], total, share[1]), 0
    for places, plan, seeds in ensembles_of(task, start):

        def tell(done: int, _: int, before: int = before) -> None:
            task.listener.members(task.name, before + done, total)

        networks = fit_members(
            plan.model,
            task.data,
            plan.recipe,
            seeds,
            folder=task.members,
            processes=train.processes,
            method=plan.method,
            augmentation=plan.augmentation,
            device=plan.device,
            checkpoint_every=plan.checkpoint_every,
            engine=plan.engine,
            on_member=tell,
            repair=task.repair,
            load=[j in wanted for j in places],
        )
        before += len(places)
        found.update(zip([j for j in places if j in wanted], networks, strict=True))
    return [found[j] for j in wanted]


def _scaled_for(release: Release, normalisation: Normalisation | None) -> nn.Module:
    """The network, taking inputs that are scaled as the student's."""
    if release.normalisation == normalisation:
        return release.network
    return Rescaled(release.network, normalisation, release.normalisation)


class Rescaled(nn.Module):
    """A network behind a change of scale: inputs come normalised in one way, and it knows another."""

    def __init__(self, network: nn.Module, given: Normalisation | None, known: Normalisation | None) -> None:
        super().__init__()
        self.network = network
        channels = len((given or known).mean)  # type: ignore[union-attr]
        plain = Normalisation((0.0,) * channels, (1.0,) * channels)
        came, wanted = _tensors(given or plain), _tensors(known or plain)
        # ((x · std + mean) - mean') / std' as one product and one sum.
        self.register_buffer("scale", (came[1] / wanted[1]).float(), persistent=False)
        self.register_buffer("shift", ((came[0] - wanted[0]) / wanted[1]).float(), persistent=False)

    def _known(self, x: Any) -> Any:
        shape = (-1, *[1] * (x.dim() - 2))
        return x * self.scale.reshape(shape) + self.shift.reshape(shape)

    def forward(self, x: Any) -> Tensor:
        logits: Tensor = self.network(self._known(x))
        return logits

    def features(self, x: Any) -> Tensor:
        found: Tensor = self.network.features(self._known(x))
        return found

    @property
    def head(self) -> nn.Module:
        head: nn.Module = self.network.head
        return head


def _tensors(normalisation: Normalisation) -> tuple[Tensor, Tensor]:
    return (
        torch.tensor(normalisation.mean, dtype=torch.float64),
        torch.tensor(normalisation.std, dtype=torch.float64),
    )
