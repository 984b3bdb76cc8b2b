"""One version of a chain: from its task to a release, by the kind of its method."""

import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flipguard import metrics
from flipguard._version import __version__
from flipguard.data import Batches, DataSet
from flipguard.ensembles import NetworkReference, SingleStudent
from flipguard.methods import Card
from flipguard.releases import material
from flipguard.releases.folder import EARLIER, METRICS, PREDICTIONS, STATE, Metrics, made
from flipguard.releases.recorded import Recorded
from flipguard.releases.references import Task, members, references_of
from flipguard.releases.release import Release
from flipguard.releases.resolved import build, card_of, recipe_of
from flipguard.training import Epoch, ModelSpec, predict_logits, train_network
from flipguard.types import FlipguardError, InputError, Reference

FLIPS = ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")
REHEARSED = 4


def make_version(task: Task) -> Release:
    """Train a version to its release: weights and predictions in its folder, model.json last."""
    card = _card(task)
    made(task.home)
    release = KINDS[card.kind](task)
    release.save(task.home)
    keep_predictions(release, task)
    keep_earlier(task)
    release.finish(task.home)
    (task.home / STATE).unlink(missing_ok=True)
    return release


def keep_predictions(release: Release, task: Task) -> None:
    """What a release says of the held-out parts."""
    folder = made(task.home / PREDICTIONS)
    for part in held_out(task.data):
        release.predictions(task.data, part, device=task.device).write(folder / f"{part}.parquet")


def keep_earlier(task: Task) -> None:
    """What earlier versions say of this one's test part, where it is another than theirs: the data grew."""
    for one in task.earlier:
        if isinstance(one, Release) and one.facts.get("test") != task.data.fingerprint("test"):
            said = one.predictions(task.data, "test", device=task.device)
            said.write(made(task.home / EARLIER) / f"{one.name}.parquet")


def held_out(data: DataSet) -> list[str]:
    return [part for part in ("validation", "test") if part in data.parts() and len(data.part(part))]


def _card(task: Task) -> Card:
    card = card_of(task.method)
    if card.kind not in KINDS:
        raise InputError(
            f"'{card.name}' is a {card.kind} method: it works on networks or predictions that are there, and "
            "flipguard train does not run it."
        )
    return card


def _objective(task: Task) -> Release:
    """A network trained by an objective, held to its references."""
    version = task.version
    assert version.model is not None
    assert version.train is not None
    assert version.seeds is not None
    method = build(task.method)
    model, watch = material.model_spec(version.model), Watcher(task)
    network = train_network(
        model,
        task.data,
        method,
        recipe_of(version.train),
        seeds=material.seeds_of(version.seeds),
        references=references_of(task, getattr(method, "needs", ())),
        augmentation=material.augmentation(task.plan.augment),
        device=task.device,
        checkpoint=task.home / STATE,
        checkpoint_every=version.train.checkpoint_every,
        choose_epoch=version.train.choose_epoch,
        on_epoch=watch,
    )
    return Release(
        task.name,
        network,
        model.for_method(method),
        task.data.classes,
        task.data.normalisation,
        facts=facts_of(task),
        encoder=task.data.encoder,
    )


def _paragon(task: Task) -> Release:
    """The ensemble itself, with its members' weights side by side in one file."""
    plan = task.ensemble
    assert plan.model is not None
    if len(plan.model) > 1:
        raise InputError(f"'{task.name}' releases its ensemble, whose members must all be of one network.")
    method = build(task.method)
    ensemble = method(members(task)).to(task.device)
    return Release(
        task.name,
        ensemble,
        material.model_spec(plan.model[0]),
        task.data.classes,
        task.data.normalisation,
        members=plan.members,
        combination=ensemble.combination,
        facts=facts_of(task),
        encoder=task.data.encoder,
    )


KINDS: dict[str, Callable[[Task], Release]] = {"objective": _objective, "paragon": _paragon}
"""How a version is made, by the kind on its method's card."""


def facts_of(task: Task) -> dict[str, Any]:
    """Where a release comes from, ready for JSON."""
    data = task.data
    plan = task.version.model_dump(mode="json", exclude_none=True, include={"method", "seeds", "train", "references"})
    x = data.train.x
    shape = list(x.shape[1:]) if isinstance(x, torch.Tensor) else None
    about = {"name": data.name, "kind": data.kind, "input_shape": shape, "train": data.fingerprint("train")}
    return {"data": about, "test": data.fingerprint("test"), **plan, "versions": versions_used()}


def versions_used() -> dict[str, str]:
    """What a run was made with."""
    return {
        "flipguard": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }


class Watcher:
    """Called after each epoch: measures the network as it would be released, and writes the epoch's line.

    Figures are taken on the validation part where there is one, so that the test part is not looked at while choices
    are open; else on the test part, which nothing here chooses by.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._part = "validation" if "validation" in held_out(task.data) else "test"
        self._label = task.data.part(self._part).y.cpu().numpy()
        self._before = task.earlier[-1] if task.earlier else None
        self._old: npt.NDArray[np.int64] | None = None
        if self._before is not None:
            self._old = self._before.says(task.data, self._part, device=task.device)
        self._metrics = Metrics(task.home / METRICS)

    def __call__(self, epoch: Epoch, network: nn.Module) -> None:
        task = self._task
        said = predict_logits(network, task.data, self._part, device=task.device).argmax(axis=-1)
        line = {
            "epoch": epoch.epoch,
            "epochs": epoch.epochs,
            "terms": dict(epoch.terms),
            "train_error": epoch.train_error,
            "validation_error": epoch.validation_error,
            "learning_rate": epoch.learning_rate,
            "seconds": round(epoch.seconds, 3),
            "part": self._part,
            **self._figures(said),
        }
        self._metrics.add(line)
        task.listener.epoch(task.name, line)

    def _figures(self, said: npt.NDArray[np.int64]) -> dict[str, Any]:
        known = self._label >= 0
        if self._old is None:
            wrong = said[known] != self._label[known]
            return {"old": None, "error_rate_new": float(wrong.mean()) if len(wrong) else None}
        counted = metrics.tally(self._label[known], self._old[known], said[known])
        found = {name: _number(metrics.FIGURES[name](counted)) for name in FLIPS}
        return {"old": self._before.name if self._before else None, **found}


def _number(value: Any) -> float | None:
    """JSON has no NaN: a rate over nothing is null."""
    return float(value) if np.isfinite(value) else None


def rehearse(task: Task, place: str) -> None:
    """One step on a few rows with untrained networks: what cannot work is said before hours are spent.

    Catches a network that cannot take the data, a method that needs features or more classes than there are, a
    reference that cannot be had.
    """
    _card(task)
    version, data = task.version, task.data
    assert version.model is not None
    assert version.train is not None
    if version.train.choose_epoch == "validation" and "validation" not in held_out(data):
        raise InputError(
            f"{place}.train.choose_epoch is validation, and the data has no such part: set data.validation."
        )
    if version.train.batch_size > len(data.train):
        raise InputError(
            f"{place}.train.batch_size {version.train.batch_size} is above the {len(data.train):,} training samples."
        )
    for one in task.earlier:
        known = one.classes(data) if isinstance(one, Recorded) else one.classes
        material.class_map(known, data, f"the version '{one.name}'")
    method = build(task.method)
    with torch.random.fork_rng(devices=[]):
        model = material.model_spec(version.model).for_method(method)
        material.build(model, len(data.classes), 0, f"{place}.model")
        try:
            _one_step(task, model, method)
        except FlipguardError as error:
            raise InputError(f"{place}: {error}") from error
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            raise InputError(
                f"{place}: {model.name} with {task.method.name} cannot take a step on {data.name}: "
                f"{' '.join(str(error).split())[:200]}"
            ) from error


def _one_step(task: Task, model: ModelSpec, method: Any) -> None:
    data, classes = task.data, len(task.data.classes)
    rows = min(REHEARSED, len(data.train))
    shift = material.augmentation(task.plan.augment)
    batch = next(iter(Batches(data.train, rows, augmentation=shift, normalisation=data.normalisation)))

    def build_member(member: int) -> nn.Module:
        return model.build(classes, member)

    if _card(task).kind != "objective":
        build_member(0).eval()(batch.x)
        return
    made = getattr(method, "student", None)
    student = SingleStudent(build_member(0)) if made is None else made(build_member, decay_all=True)
    references = {need: _stand_in(task, need) for need in getattr(method, "needs", ())}
    method(student, references, batch)


def _stand_in(task: Task, need: str) -> Reference:
    """The reference itself, but an ensemble of untrained members."""
    if need != "ensemble":
        return references_of(task, [need])[need]
    plans = task.ensemble.model or []
    # One of each kind is enough, unless every member of the student asks for a teacher of its own.
    count = task.ensemble.members if "members" in task.method.options else len(plans)
    specs = [material.model_spec(plans[place % len(plans)]) for place in range(count)]
    return NetworkReference(need, [spec.build(len(task.data.classes), 0) for spec in specs])
