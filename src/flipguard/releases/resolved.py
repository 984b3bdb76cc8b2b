"""A spec with nothing left open: every version with its model, method, data, training and seeds written out."""

import re
from dataclasses import fields
from typing import Any

from flipguard._nearest import nearest, shortened
from flipguard.data import DATA, data_options
from flipguard.releases.heritage import has_heritage, inherited_from
from flipguard.releases.plan import (
    DataChanges,
    DataPlan,
    EnsemblePlan,
    MethodPlan,
    SeedStreams,
    TrainPlan,
    TrainSpec,
    VersionPlan,
)
from flipguard.releases.settled import card_of, needs_of, one_teacher_each, settled
from flipguard.training import Recipe
from flipguard.types import InputError

RUN_STRIDE, VERSION_STRIDE = 1_000_000, 1_000
"""Version i of a run by seed s draws from s·RUN_STRIDE + i·VERSION_STRIDE, and its members from the numbers after."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NETWORK = {"classes", "normalisation"}
_GIVEN = {
    "run": set[str](),
    "checkpoint": {"model", "output", *_NETWORK},
    "factory": _NETWORK,
    "predictions": set[str](),
}
"""The forms of a version that is there already, and what else can be said of each."""


def resolve(spec: TrainSpec) -> TrainSpec:
    """The same spec as a list of versions in which nothing is left to a default.

    The first version takes the spec's method when that needs no old model (ELODI treats every version), or can do
    without one (twins); else `none`, or `elodi` where the others are its heirs. A method that is left to us is chosen
    before (`chosen`).
    Resolving twice changes nothing.
    """
    if isinstance(spec.seed, list):
        raise InputError("a spec with several seeds is resolved one seed at a time.")
    check_data(spec.data, "data")
    every = listed(spec)
    _check_names([version.name for _, version in every])
    done: list[VersionPlan] = []
    for index, (place, version) in enumerate(every):
        given = [name for name in _GIVEN if getattr(version, name) is not None]
        if len(given) > 1:
            raise InputError(f"{place} has {' and '.join(given)}: a version is there in one form only.")
        done.append(_given(place, version, given[0]) if given else _trained(spec, place, version, index))
    for index, ((place, _), version) in enumerate(zip(every, done, strict=True)):
        if version.references == "ensemble":
            _check_heritage(version, inherited_from(done, index) if index else None, place)
    empty = {"old": None, "new": None, "method": MethodPlan(), "train": TrainPlan(), "seed": 0, "seeds": None}
    return spec.model_copy(update={**empty, "versions": done})


def _check_heritage(version: VersionPlan, before: VersionPlan | None, place: str) -> None:
    """A version that is held to an old ensemble needs one: of a version that learned from one, here or in its run."""
    assert version.method is not None
    assert version.train is not None
    if before is None or not _wants_old(version.method, version, version.train, f"{place}.method"):
        raise InputError(f"{place}.references has no meaning: {version.method.name} is not held to an old version.")
    if before.run is None and not has_heritage(before):
        raise InputError(
            f"{place}.references: ensemble: '{before.name}' did not learn from an ensemble here, as by elodi."
        )


def as_dict(spec: TrainSpec) -> dict[str, Any]:
    """A resolved spec ready for YAML: what says nothing is left out."""
    found = spec.model_dump(mode="json", exclude_none=True, exclude={"old", "new", "method", "train", "seed", "seeds"})
    if not found.get("gate"):
        found.pop("gate", None)
    return {name: found[name] for name in ("data", "members", "versions", "gate") if name in found}


def listed(spec: TrainSpec) -> list[tuple[str, VersionPlan]]:
    """Each version with its name, and its place in the spec as the user wrote it."""
    if spec.versions is None:
        pairs = [(name, version) for name in ("old", "new") if (version := getattr(spec, name)) is not None]
        return [(name, version.model_copy(update={"name": version.name or name})) for name, version in pairs]
    return [
        (f"versions.{index}", version.model_copy(update={"name": version.name or f"v{index}"}))
        for index, version in enumerate(spec.versions)
    ]


def _check_names(names: list[str | None]) -> None:
    seen: set[str] = set()
    for name in map(str, names):
        if not _NAME.fullmatch(name):
            raise InputError(
                f"'{name}' cannot name a version: a name becomes a folder, of letters, digits, '.', '_' and '-'."
            )
        if name.lower() in seen:
            raise InputError(f"two versions are called '{name}': give each a name of its own.")
        seen.add(name.lower())


def _given(place: str, version: VersionPlan, form: str) -> VersionPlan:
    """A version that is not trained here."""
    allowed = {"name", form} | _GIVEN[form]
    for name, field in type(version).model_fields.items():
        # A spec that was written out says what was left to a default, too.
        if name in version.model_fields_set - allowed and getattr(version, name) not in (None, field.default):
            raise InputError(f"{place} has {form}, so it is not trained, and {name} has no meaning there.")
    graph = str(version.checkpoint).endswith(".onnx")
    if form == "checkpoint" and version.model is None and not graph:
        raise InputError(f"{place}.model is missing: it says which network the checkpoint holds.")
    if graph and version.model is not None:
        raise InputError(f"{place}.model has no meaning: {version.checkpoint} says itself which network it is.")
    if version.output is not None and not graph:
        raise InputError(f"{place}.output names one of an .onnx file's outputs, and {version.checkpoint} is none.")
    return version


def _trained(spec: TrainSpec, place: str, version: VersionPlan, index: int) -> VersionPlan:
    if version.model is None:
        raise InputError(
            f"{place} needs a model to train, or run, checkpoint, factory or predictions of one that is there already."
        )
    if version.classes is not None:
        raise InputError(f"{place}.classes are those of a checkpoint; to train on fewer, set {place}.data.classes.")
    for name in ("normalisation", "output"):
        if getattr(version, name) is not None:
            raise InputError(f"{place}.{name} is a checkpoint's, and this version is trained here.")
    if version.seed is not None and version.seeds is not None:
        raise InputError(f"{place} has seed and seeds: give one of them.")
    train = laid_over(spec.train, version.train)
    recipe_of(train, f"{place}.train" if version.train is not None else "train")
    plan, method_place = (version.method, f"{place}.method") if version.method else (spec.method, "method")
    if version.method is None and index == 0 and _wants_old(plan, version, train, method_place):
        plan = _for_a_first(plan, method_place)
    method = settled(plan, train, method_place)
    needed = needs_of(method, train, method_place)
    if index == 0 and _wants_old(method, version, train, method_place):
        alone = "".join(f", or {name}: {value}" for name, value in card_of(method).first.items())
        raise InputError(
            f"{place} is the first version, and {method.name} needs an old one: give it another method{alone}."
        )
    if "ensemble" in needed:
        ensemble = _ensemble(plan, version, train, method_place)
        if one_teacher_each(card_of(method)):
            ensemble = ensemble.model_copy(update={"members": method.options["members"]})
        method = method.model_copy(update={"ensemble": ensemble})
    elif plan.ensemble is not None:
        raise InputError(f"{method_place}.ensemble has no meaning: {method.name} is not held to an ensemble.")
    inherits = card_of(method).heritage and "old" in needed
    if inherits and version.references not in ("chain", "ensemble"):
        raise InputError(
            f"{place}.references is {version.references}, and {method.name} is held to the ensemble that the version "
            "before learned from: leave it out, or take ldi or graft."
        )
    changes: dict[str, Any] = {"method": method, "train": train, "seed": None, "seeds": _seeds(spec, version, index)}
    if inherits:
        changes["references"] = "ensemble"
    if version.data is not None:
        changes["data"] = DataChanges.model_validate(data_of(spec, version, place).model_dump(exclude_unset=True))
    return version.model_copy(update=changes)


def _for_a_first(plan: MethodPlan, place: str) -> MethodPlan:
    """What makes the first version where the method of the others needs an old one."""
    card = card_of(plan, place)
    if card.first:
        return MethodPlan.model_validate({**plan.model_dump(exclude_unset=True), **card.first})
    # An heir needs an ensemble to inherit.
    return MethodPlan(name="elodi" if card.heritage else "none")


def laid_over(below: TrainPlan, above: TrainPlan | None) -> TrainPlan:
    """The training settings below, with those that were given above in their place."""
    if above is None:
        return below
    return below.model_copy(update={name: getattr(above, name) for name in above.model_fields_set})


def recipe_of(train: TrainPlan, place: str = "train") -> Recipe:
    """The loop's recipe; a value outside its range is an error that names the place."""
    if train.average and train.choose_epoch == "validation":
        raise InputError(f"{place}.average releases a mean over epochs, and choose_epoch: validation one: take either.")
    try:
        return Recipe(**{each.name: getattr(train, each.name) for each in fields(Recipe)})
    except InputError as error:
        raise InputError(f"{place}.{error}") from error


def data_of(spec: TrainSpec, version: VersionPlan, place: str = "version") -> DataPlan:
    """The spec's data with the version's changes; another data set takes nothing over."""
    if version.data is None:
        return spec.data
    changes = version.data.model_dump(exclude_unset=True)
    same = changes.get("name", spec.data.name) == spec.data.name
    plan = DataPlan.model_validate({**(spec.data.model_dump(exclude_unset=True) if same else {}), **changes})
    check_data(plan, f"{place}.data")
    return plan


def check_data(plan: DataPlan, place: str) -> None:
    """The data set is known, and so is every option."""
    if plan.name not in DATA:
        raise InputError(f"{place}.name: there is no data set '{shortened(plan.name)}'{nearest(plan.name, DATA)}")
    options = data_options(plan.name)
    for option in plan.options:
        if option not in options:
            raise InputError(f"{place} has no key '{option}'{nearest(option, [*options, *DataPlan.model_fields])}")


def starts_from_old(method: MethodPlan, version: VersionPlan) -> bool:
    """Networks whose weights are averaged share a start: the old one's weights, unless the model names another."""
    assert version.model is not None
    return card_of(method).kind == "post-hoc" and "init" not in version.model.options


def _wants_old(method: MethodPlan, version: VersionPlan, train: TrainPlan, place: str) -> bool:
    return "old" in needs_of(method, train, place) or starts_from_old(method, version)


def _ensemble(method: MethodPlan, version: VersionPlan, train: TrainPlan, place: str) -> EnsemblePlan:
    plan = method.ensemble or EnsemblePlan()
    kind = card_of(method, place).kind
    for name in ("offline", "calibrated"):
        if kind != "objective" and getattr(plan, name):
            raise InputError(f"{place}.ensemble.{name} has no meaning: {method.name} is not held to the ensemble.")
    if kind == "paragon" and len(plan.model or []) > 1:
        raise InputError(f"{place}.ensemble.model: {method.name} releases its ensemble, all of it of one network.")
    if plan.offline and train.views:
        raise InputError(f"{place}.ensemble.offline asks the members of plain samples, train.views of augmented ones.")
    if plan.offline and train.dealt:
        raise InputError(f"{place}.ensemble.offline keeps what all members say, train.dealt asks one: take either.")
    if plan.spread and train.dealt:
        raise InputError(f"{place}.ensemble.spread has each process ask its own members, train.dealt all: take either.")
    own = laid_over(train, plan.train)
    recipe_of(own, f"{place}.ensemble.train")
    # Members are released by their last epoch, so that they do not depend on a validation part.
    own = own.model_copy(update={"choose_epoch": "last"})
    return plan.model_copy(update={"train": own, "model": plan.model or [version.model]})


def _seeds(spec: TrainSpec, version: VersionPlan, index: int) -> SeedStreams:
    """A version's own seeds as they are; the run's spread over its versions, so that no two of them draw alike."""
    if version.seeds is not None:
        return version.seeds
    if version.seed is not None:
        return SeedStreams(initialisation=version.seed, order=version.seed, augment=version.seed)
    seed = spec.seed if isinstance(spec.seed, int) else 0
    run = spec.seeds or SeedStreams(initialisation=seed, order=seed, augment=seed)
    spread = {name: value * RUN_STRIDE + index * VERSION_STRIDE for name, value in run.model_dump().items()}
    return SeedStreams(**spread)
