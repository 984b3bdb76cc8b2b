"""`method: recommended`: a method in its place, before a spec is resolved; and what is told of it.

What was taken when a run began is taken again, whatever has become since of what it was chosen by.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flipguard.methods import RECOMMENDED
from flipguard.releases.plan import DataPlan, MethodPlan, TrainPlan, TrainSpec, VersionPlan
from flipguard.releases.recommended import FIRST, WAYS, Way, shows_images, shows_texts, way_after
from flipguard.releases.resolved import data_of, listed, recipe_of, resolve
from flipguard.types import InputError

Left = Callable[[TrainSpec, bool], bool | None]
"""Whether members are left that the last of these versions, which are resolved, learned from; None: it learned from
none. The second says whether to look, or to take them to be there."""


@dataclass(frozen=True)
class Chosen:
    """A spec in which nothing is left to us, and what is told before it is gone about."""

    spec: TrainSpec
    notes: tuple[str, ...] = ()


def chosen(spec: TrainSpec, begun: Mapping[str, MethodPlan], left: Left) -> Chosen:
    """The spec of one seed with a method in each place; `begun` has those of the versions that the run began with."""
    every = listed(spec)
    if not any(_is_open(spec, version) for _, version in every):
        return Chosen(spec, _hint(spec, begun, left))
    recipe_of(spec.train, "train")
    versions: list[VersionPlan] = []
    notes: list[str] = []
    for place, version in every:
        if not _is_open(spec, version):
            versions.append(version)
            continue
        plan, method_place = (version.method, f"{place}.method") if version.method else (spec.method, "method")
        _check(plan, version, place, method_place)
        data = data_of(spec, version, place)
        found = begun.get(str(version.name))
        way = next((way for way in WAYS if found is not None and way.is_of(found)), None)
        if way is None:
            way = way_after(left(_resolved(spec, versions), True), data) if versions else FIRST
        if version.method is not None and plan.ensemble is not None and way is not FIRST:
            raise InputError(f"{method_place}.ensemble has no meaning: {way.name} is not held to one of its own kind.")
        versions.append(_by(way, version, plan, spec.train))
        if found is None:
            epochs = versions[-1].train.epochs if versions[-1].train is not None else spec.train.epochs
            notes.append(_told(f"'{version.name}' is made by {way.name}, {epochs} epochs", way, data))
    if spec.method.ensemble is not None and spec.method.name == RECOMMENDED and not _first_is_open(spec):
        raise InputError(
            f"method.ensemble is for a first version that recommended makes, by elodi, and '{every[0][1].name}' is not "
            "made by it: leave it out."
        )
    return Chosen(_with(spec, versions), tuple(notes))


def _is_open(spec: TrainSpec, version: VersionPlan) -> bool:
    """Whether a version is trained here, by a method that is left to us."""
    return version.model is not None and version.checkpoint is None and _named(spec, version) == RECOMMENDED


def _named(spec: TrainSpec, version: VersionPlan) -> str:
    return (version.method or spec.method).name


def _first_is_open(spec: TrainSpec) -> bool:
    first = listed(spec)[0][1]
    return first.method is None and _is_open(spec, first)


def _check(plan: MethodPlan, version: VersionPlan, place: str, method_place: str) -> None:
    if plan.options:
        raise InputError(
            f"{method_place}: recommended chooses a method with its options, and cannot be given "
            f"{next(iter(plan.options))}: name the method that is to have it."
        )
    if version.references not in ("chain", "ensemble"):
        raise InputError(
            f"{place}.references is {version.references}, and recommended chooses what a version is held to: leave it "
            "out, or name a method."
        )


def _by(way: Way, version: VersionPlan, plan: MethodPlan, train: TrainPlan) -> VersionPlan:
    method: dict[str, Any] = {"name": way.name, **way.options}
    if plan.ensemble is not None and way is FIRST:
        method["ensemble"] = plan.ensemble
    own = version.train.model_dump(exclude_unset=True) if version.train is not None else {}
    wanted = TrainPlan.model_validate(way.train(train, own))
    return version.model_copy(update={"method": MethodPlan.model_validate(method), "train": wanted})


def _with(spec: TrainSpec, versions: Sequence[VersionPlan]) -> TrainSpec:
    """The spec with these versions, in the form in which it has its own."""
    method = MethodPlan() if spec.method.name == RECOMMENDED else spec.method
    if spec.versions is not None:
        return spec.model_copy(update={"versions": list(versions), "method": method})
    both = {place: version for (place, _), version in zip(listed(spec), versions, strict=False)}
    return spec.model_copy(update={"old": both.get("old"), "new": both.get("new"), "method": method})


def _resolved(spec: TrainSpec, versions: Sequence[VersionPlan]) -> TrainSpec:
    return resolve(_with(spec, versions))


def _hint(spec: TrainSpec, begun: Mapping[str, MethodPlan], left: Left) -> tuple[str, ...]:
    """Where nobody names a method, and an update is trained as if there were no old model: what there is."""
    every = listed(spec)
    versions = [version for _, version in every]
    last = versions[-1]
    names_one = "method" in spec.model_fields_set or any(version.method is not None for version in versions)
    # Of an old model that is a file of predictions we cannot see whether it has the training samples.
    if names_one or len(versions) < 2 or last.model is None or last.checkpoint or versions[-2].predictions:
        return ()
    if str(last.name) in begun:
        return ()
    # What is wrong with the spec, or with where it looks, is said by those who need it.
    with suppress(InputError):
        data = data_of(spec, last)
        way = way_after(left(_resolved(spec, versions[:-1]), False), data)
        place = every[-1][0]
        named = spec.versions is not None and spec.versions[-1].name is not None and "." not in str(last.name)
        key = f"versions.{last.name}" if named else place
        alone = f"'{last.name}' is trained without regard to '{versions[-2].name}'"
        return (_told(f"{alone}. {key}.method=recommended takes {way.name}", way, data),)
    return ()


def _told(what: str, way: Way, data: DataPlan) -> str:
    unsure = "" if way is FIRST or shows_images(data) or shows_texts(data) else " Tables are not measured."
    return f"{what}: {way.why} (docs/methods/{way.name}.md).{unsure}"
