"""What a plan speaks of, made real: data, networks, seeds, the device."""

from dataclasses import replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flipguard.data import Augmentation, DataSet, Encoder, encode_text, load_data, split_validation, subset
from flipguard.releases.plan import AugmentPlan, DataPlan, ModelPlan, NormalisationPlan, SeedStreams
from flipguard.training import ModelSpec, Seeds
from flipguard.training.distributed import own_device
from flipguard.types import FlipguardError, InputError, Normalisation


def load(plan: DataPlan, place: str = "data", *, encoder: Encoder | None = None) -> DataSet:
    """The data set: validation rows held out first, so that they do not depend on which part is kept.

    An `encoder`, a release's own, is taken for texts in place of what the plan says.
    """
    try:
        options = {name: value for name, value in plan.options.items() if name != "encode" or encoder is None}
        data = load_data({"name": plan.name, **options}, folder=plan.folder)
        if encoder is not None and isinstance(data.train.x, tuple):
            data = encode_text(data, encoder)
        if plan.validation is not None:
            data = split_validation(data, size=plan.validation, seed=plan.validation_seed)
        data = subset(data, classes=plan.classes, per_class=plan.per_class, seed=plan.subset_seed)
        data = replace(data, normalisation=scale_of(plan.normalisation, data, f"{place}.normalisation"))
    except FlipguardError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: {plan.name} cannot be loaded with {plan.options}: {_line(error)}") from error
    if isinstance(data.train.x, tuple):
        raise InputError(f"{place}: {plan.name} holds raw texts: say how they become numbers, by encode.")
    if plan.augment is not None and data.kind != "image":
        raise InputError(f"{place}.augment: {plan.name} holds {data.kind}, and only images are cropped and mirrored.")
    return data


def scale_of(plan: NormalisationPlan | Literal["none"] | None, data: DataSet, place: str) -> Normalisation | None:
    """How inputs are scaled: as the plan says, which must fit the data's channels, else as the data says itself."""
    if plan is None:
        return data.normalisation
    if data.kind == "text":
        raise InputError(f"{place} has no meaning: {data.name} holds text, which is not scaled.")
    if plan == "none":
        return None
    channels = data.train.x.shape[1] if isinstance(data.train.x, torch.Tensor) else 3
    if len(plan.mean) != channels:
        raise InputError(f"{place} has {len(plan.mean)} channels, and {data.name} has {channels}.")
    return Normalisation(tuple(plan.mean), tuple(plan.std))


def held_out(data: DataSet) -> list[str]:
    """The parts, of those that have samples, that a release's predictions are kept of."""
    return [part for part in ("validation", "test") if part in data.parts() and len(data.part(part))]


def augmentation(plan: AugmentPlan | None) -> Augmentation | None:
    return None if plan is None else Augmentation(**plan.model_dump())


def model_spec(plan: ModelPlan) -> ModelSpec:
    return ModelSpec.of(plan.name, plan.options)


def build(model: ModelSpec, classes: int, seed: int, place: str) -> nn.Module:
    """A new network; an option that its factory chokes on is an error that names the place."""
    try:
        return model.build(classes, seed)
    except FlipguardError as error:
        raise InputError(f"{place}: {error}") from error
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise InputError(f"{place}: {model.name} cannot be built with {dict(model.options)}: {_line(error)}") from error


def seeds_of(streams: SeedStreams) -> Seeds:
    return Seeds(streams.initialisation, streams.order, streams.augment)


def shifted(seeds: Seeds, by: int) -> Seeds:
    """Other seeds, `by` further on in every stream."""
    return Seeds(seeds.initialisation + by, seeds.order + by, seeds.augment + by)


def device_of(name: str) -> str:
    """The device to work on; `auto` is a GPU where there is one, and of several the one that a launcher gave."""
    if name in ("auto", "cuda"):
        name = own_device("cuda") if name == "cuda" or torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"the device '{name}' is not there: {_line(error)}") from error
    return name


def class_map(known: tuple[str, ...], data: DataSet, whose: str) -> tuple[int, ...] | None:
    """The student's class for each of a reference's, by name; None when they are the same."""
    if known == data.classes:
        return None
    places = {name: code for code, name in enumerate(data.classes)}
    unknown = next((name for name in known if name not in places), None)
    if unknown is not None:
        raise InputError(
            f"{whose} knows the class '{unknown}', which {data.name} has not: a class cannot be taken away between "
            "versions."
        )
    return tuple(places[name] for name in known)


def as_codes(said: npt.NDArray[np.int64], mapping: tuple[int, ...] | None) -> npt.NDArray[np.int64]:
    """Predicted columns as the data's class codes."""
    return said if mapping is None else np.asarray(mapping, np.int64)[said]


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split())[:200].rstrip('.')}."
