"""References that are asked once of every view of every sample, before the first step.

A reference costs a third of a training for each of its members, however often it saw the same sample: with as many
members as ELODI has, that is most of what a student costs. Crops and flips are drawn anew in each epoch, so an answer
of one epoch is no use in the next (an answer to the plain image is: `offline`, at the price that reference and student
see different images). If V draws come round again and again, V answers for each sample do for any number of epochs.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from flipguard.data import Augmentation, Batches, Split
from flipguard.data.files import ImageFiles
from flipguard.ensembles import NetworkReference, QuickReference, ViewedReference, extract_logits
from flipguard.training.recipe import Recipe
from flipguard.types import InputError, Reference


def check_views(split: Split, world: int) -> None:
    """Refuses what views are not for."""
    if isinstance(split.x, ImageFiles):
        raise InputError("views keeps what references say of all data, and these are files on disk: leave it out.")
    if world > 1:
        raise InputError("views is for one process, as each would ask the references of all samples: leave it out.")


def number_of_views(recipe: Recipe, augmentation: Augmentation | None, split: Split) -> int:
    """Of each sample: no more than epochs, and one where nothing is augmented, as no text is."""
    if augmentation is None or isinstance(split.x, dict):
        return min(1, recipe.views)
    return min(recipe.views, recipe.epochs)


def seen_views(
    recipe: Recipe, references: Mapping[str, Reference], augmentation: Augmentation | None, split: Split, world: int
) -> int:
    """How many views a network meets: 0, new ones in each epoch, where it is held to no network."""
    if not recipe.views or not any(isinstance(reference, NetworkReference) for reference in references.values()):
        return 0
    check_views(split, world)
    return number_of_views(recipe, augmentation, split)


def kept_views(references: Mapping[str, Reference], like: Batches, recipe: Recipe) -> dict[str, Reference]:
    """The references, each network among them as its answers to the views of `like`; without views as they are."""
    kept: dict[str, Any] = dict(references)
    for name, reference in references.items():
        if like.views and isinstance(reference, NetworkReference):
            kept[name] = _kept(reference, like, recipe)
    return kept


def _kept(reference: NetworkReference, like: Batches, recipe: Recipe) -> ViewedReference:
    device = torch.device(like.device)
    half = torch.bfloat16 if recipe.precision == "bf16" else None
    reference.to(device)
    said = []
    with _on(device), nullcontext() if half is None else torch.autocast(device.type, half):
        quick = half is not None and device.type == "cuda" and reference.differentiable
        asked = QuickReference(reference, torch.bfloat16, device) if quick else reference
        # As many at a time as a step has: what helps where memory is short helps here.
        size = recipe.batch_size // recipe.accumulate
        for view in range(like.views):
            whole = replace(like, batch_size=size, order_seed=None, drop_last=False, start_step=0, epoch=view)
            said.append(extract_logits(asked, whole).to(half))
    if device.type == "cuda":
        # It has said all that it is asked for.
        reference.to("cpu")
    return ViewedReference(
        reference.name,
        torch.cat(said, dim=1),
        classes=reference.classes,
        views=like.views,
        steps_per_epoch=like.steps,
    )


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Streams that are made within belong to this device, of whichever number."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
