"""One step of a version before any is trained: what cannot work is said before hours are spent."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from flipguard.data import Batches, DataSet
from flipguard.ensembles import (
    BranchedStudent,
    CachedReference,
    JointStudent,
    NetworkReference,
    SingleStudent,
    deal,
    extract_logits,
)
from flipguard.models import SplitClassifier, check_split
from flipguard.releases import material
from flipguard.releases.averaged import check_averaged
from flipguard.releases.recorded import Recorded
from flipguard.releases.references import Task, references_of
from flipguard.releases.release import Release
from flipguard.releases.settled import build, card_of
from flipguard.training import ModelSpec
from flipguard.training.distributed import Team, is_sharded
from flipguard.training.distributed import place as team_place
from flipguard.training.memory import recomputed
from flipguard.training.scales import scaled
from flipguard.training.views import check_views
from flipguard.types import Batch, FlipguardError, InputError, Normalisation, Reference

REHEARSED = 4


def rehearse(task: Task, place: str) -> None:
    """A step on a few rows with untrained networks.

    Catches a network that cannot take the data, a method that needs features or more classes than there are, a
    reference that cannot be had, old weights that cannot be averaged with.
    """
    version, data = task.version, task.data
    assert version.model is not None
    assert version.train is not None
    if version.train.choose_epoch == "validation" and "validation" not in material.held_out(data):
        raise InputError(
            f"{place}.train.choose_epoch is validation, and the data has no such part: set data.validation."
        )
    if task.ensemble.calibrated and "validation" not in material.held_out(data):
        raise InputError(
            f"{place}.method.ensemble.calibrated needs validation samples, and the data has none: set data.validation."
        )
    if version.train.batch_size > len(data.train):
        raise InputError(
            f"{place}.train.batch_size {version.train.batch_size} is above the {len(data.train):,} training samples."
        )
    _check_team(task, place)
    needs: tuple[str, ...] = getattr(build(task.method), "needs", ())
    if version.train.views and needs:
        try:
            check_views(data.train, team_place()[1])
        except InputError as error:
            raise InputError(f"{place}.train: {error}") from error
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
                f"{place}: {model.name} with {task.method.name} cannot take a step on {data.name}: {_line(error)}"
            ) from error


def _check_team(task: Task, place: str) -> None:
    """What several processes cannot do together."""
    assert task.version.train is not None
    rank, world = team_place()
    try:
        Team(rank, world).check_batch(task.version.train.batch_size, task.version.train.accumulate)
    except InputError as error:
        raise InputError(f"{place}.train: {error}") from error
    if world == 1:
        return
    is_sharded(asked=task.version.train.sharded)
    if task.ensemble.spread and task.ensemble.members < world:
        raise InputError(
            f"{place}.method.ensemble.spread: {task.ensemble.members} members cannot be spread over {world} processes."
        )
    if task.ensemble.spread and getattr(build(task.method), "perturbation", None) is not None:
        raise InputError(
            f"{place}.method.ensemble.spread: a perturbation needs gradients through every member; set one of them."
        )


def rehearse_given(task: Task, given: Release, place: str) -> None:
    """A version that is there already answers for a few rows, with as many logits as it has classes."""
    few = replace(task.data, test=task.data.test.select(range(min(REHEARSED, len(task.data.test)))))
    try:
        _check_split(given.network, few, given.normalisation)
        width = given.logits(few).shape[-1]
    except FlipguardError as error:
        raise InputError(f"{place}: {error}") from error
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise InputError(
            f"{place}: {given.model.name} cannot take the inputs of {task.data.name}: {_line(error)}"
        ) from error
    if width != len(given.classes):
        raise InputError(
            f"{place}: {given.model.name} gives {width} logits a sample and has {len(given.classes)} classes: name its "
            "own with classes."
        )


def _check_split(network: nn.Module, data: DataSet, normalisation: Normalisation | None) -> None:
    """Somebody else's network, whose head was taken out, must still say what it said."""
    if isinstance(network, SplitClassifier):
        check_split(network, next(iter(Batches(data.test, REHEARSED, normalisation=normalisation))).x)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _check_vocabulary(task: Task, network: nn.Module, batch: Batch) -> None:
    """The last of the encoder's tokens may be in none of the few rows that are tried."""
    encoder, x = task.data.encoder, batch.x
    if encoder is None or not isinstance(x, dict) or "input_ids" not in x:
        return
    ids = x["input_ids"].clone()
    ids[0, 0] = encoder.size - 1
    try:
        network({**x, "input_ids": ids})
    except IndexError as error:
        raise InputError(
            f"the network's embedding has fewer rows than the {encoder.size:,} tokens that the texts are encoded with: "
            "raise model.vocabulary, or lower data.encode.words."
        ) from error


def _one_step(task: Task, model: ModelSpec, method: Any) -> None:
    data, classes = task.data, len(task.data.classes)
    rows = min(REHEARSED, len(data.train))
    shift = material.augmentation(task.plan.augment)
    batch = next(iter(Batches(data.train, rows, augmentation=shift, normalisation=data.normalisation)))

    def build_member(member: int) -> nn.Module:
        return model.build(classes, member)

    network, kind = build_member(0).eval(), card_of(task.method).kind
    if isinstance(network, SplitClassifier):
        check_split(network, batch.x)
    _check_vocabulary(task, network, batch)
    _check_scales(task, model, batch)
    if kind != "objective":
        network(batch.x)
        if kind == "post-hoc":
            check_averaged(task, network)
        return
    made = getattr(method, "student", None)
    student = SingleStudent(build_member(0)) if made is None else made(build_member, decay_all=True)
    if isinstance(student, JointStudent | BranchedStudent):
        _check_apart(student, batch)
    references: dict[str, Any] = {need: _stand_in(task, need) for need in getattr(method, "needs", ())}
    train = task.version.train
    if train is not None and train.views:
        # A method that asks for more than logits is refused by what holds nothing else.
        references = {
            need: CachedReference(need, extract_logits(one, [batch]), classes=one.classes)
            for need, one in references.items()
        }
    if train is not None and train.dealt:
        references = deal(references, train.batch_size // (train.accumulate * team_place()[1]))
    again = train is not None and train.checkpoint_activations
    with recomputed(student, on=again):
        made = method(student, references, batch)
        if again:
            made.loss.backward()


@torch.no_grad()
def _check_apart(student: nn.Module, batch: Batch) -> None:
    """Networks that learn from each other alone differ by their start, or by dropout: else two cost what one gives."""
    first, *others = student(batch.x).logits
    if all(torch.equal(first, other) for other in others):
        raise InputError(
            "the networks that are trained together start from the same weights and would stay equal: leave init out, "
            "or give the model dropout where it is each one's own."
        )


def _check_scales(task: Task, model: ModelSpec, batch: Batch) -> None:
    """Every network that is to meet small images takes them: the version's own, and its ensemble's."""
    plans = task.ensemble.model or []
    trained = [(model, task.version.train), *((material.model_spec(plan), task.ensemble.train) for plan in plans)]
    for spec, train in trained:
        for scale in {*(train.scales if train is not None else ())} - {1.0}:
            small = scaled(batch.x, scale)
            try:
                spec.build(len(task.data.classes), 0).eval()(small)
            except (RuntimeError, ValueError, AssertionError) as error:
                raise InputError(
                    f"{spec.name} takes whole images and none at {scale} of their sides ({_line(error)}): leave "
                    "train.scales out."
                ) from error


def _stand_in(task: Task, need: str) -> Reference:
    """The reference itself, but an ensemble of untrained members."""
    if need != "ensemble":
        return references_of(task, [need])[need]
    plans = task.ensemble.model or []
    # All of them: a method may refuse their number.
    specs = [material.model_spec(plans[place % len(plans)]) for place in range(task.ensemble.members)]
    return NetworkReference(need, [spec.build(len(task.data.classes), 0) for spec in specs])
