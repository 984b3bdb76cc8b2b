"""References that are asked once of every view of every sample, before the first step.

A reference costs a third of a training for each of its members, however often it saw the same sample: with as many
members as ELODI has, that is most of what a student costs. Crops and flips are drawn anew in each epoch, so an answer
of one epoch is no use in the next (an answer to the plain image is: `offline`, at the price that reference and student
see different images). If V draws come round again and again, V answers for each sample do for any number of epochs.
And where several students see the same draws, the answers that one of them asked for serve all (`Answers`).
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from weakref import ref

import torch
from torch import Tensor

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


class Answers:
    """What networks said of views, each (V·N, C'), for several runs that show them the same ones.

    `wanted` has a network's key once for everybody who will ask it. An answer is kept until the last of them has it.
    Who has begun holds what all of its networks said together, once: twice the room until the last one has begun.

    >>> answers = Answers(["first", "first", "second"])
    >>> answers.put("first", torch.zeros(2, 3)), answers.put("second", torch.zeros(2, 3))
    (None, None)
    >>> "first" in answers, "second" in answers
    (True, False)
    """

    def __init__(self, wanted: Iterable[Hashable]) -> None:
        self._left, self._said = Counter(wanted), {}  # type: Counter[Hashable], dict[Hashable, Tensor]
        self._whole: dict[tuple[Hashable, ...], ref[Tensor]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._said

    def put(self, key: Hashable, said: Tensor) -> None:
        """By the first who asks; kept where others will."""
        self._left[key] -= 1
        if self._left[key] > 0:
            # A copy: what is asked together is one tensor, of which any part would hold the whole.
            self._said[key] = said.clone() if _fits_often(said) else said.cpu()

    def take(self, key: Hashable, device: torch.device) -> Tensor:
        """By everybody after it."""
        self._left[key] -= 1
        said = self._said[key] if self._left[key] > 0 else self._said.pop(key)
        return said.to(device)

    def hold(self, keys: Sequence[Hashable], said: Tensor) -> None:
        """What all of these said, (M, V·N, C'), for as long as somebody has it."""
        self._whole[tuple(keys)] = ref(said)

    def whole(self, keys: Sequence[Hashable], device: torch.device) -> Tensor | None:
        """It, for who is held to the same networks at the same time: side by side, students need no copy each."""
        held = self._whole.get(tuple(keys))
        said = None if held is None else held()
        if said is None:
            return None
        for key in {*keys}:
            self._left[key] -= 1
            if self._left[key] <= 0:
                self._said.pop(key, None)
        return said.to(device)


def _fits_often(said: Tensor) -> bool:
    """Whether so much can stay where it is: a device is for training, and this waits."""
    return said.device.type == "cpu" or torch.cuda.mem_get_info(said.device)[0] > 32 * said.nbytes


@dataclass(frozen=True)
class Shared:
    """Where a run finds what others have asked for: for each of its references a key for each of the networks.

    Equal keys stand for the same weights and the same views of the same samples.
    """

    answers: Answers
    keys: Mapping[str, Sequence[Hashable]]


def kept_views(
    references: Mapping[str, Reference], like: Batches, recipe: Recipe, shared: Shared | None = None
) -> dict[str, Reference]:
    """The references, each network among them as its answers to the views of `like`; without views as they are."""
    kept: dict[str, Any] = dict(references)
    for name, reference in references.items():
        if like.views and isinstance(reference, NetworkReference):
            if shared is None:
                said = _asked(reference, like, recipe)
            else:
                said = _asked_once(reference, like, recipe, shared.answers, shared.keys[name])
            kept[name] = ViewedReference(
                name, said, classes=reference.classes, views=like.views, steps_per_epoch=like.steps
            )
    return kept


def _asked_once(
    reference: NetworkReference, like: Batches, recipe: Recipe, answers: Answers, keys: Sequence[Hashable]
) -> Tensor:
    """Only those networks are asked whose answers nobody has left."""
    distinct = dict(zip(keys, reference.networks, strict=True))
    device = torch.device(like.device)
    if (whole := answers.whole(keys, device)) is not None:
        return whole
    said = {key: answers.take(key, device) for key in distinct if key in answers}
    missing = [key for key in distinct if key not in said]
    if missing:
        some = NetworkReference(reference.name, [distinct[key] for key in missing], classes=reference.classes)
        asked = _asked(some, like, recipe)
        for key, rows in zip(missing, asked, strict=True):
            answers.put(key, rows)
            said[key] = rows
        if len(missing) == len(keys):
            # Nothing to put together, which would take the room twice.
            answers.hold(keys, asked)
            return asked
    together = torch.stack([said[key] for key in keys])
    answers.hold(keys, together)
    return together


def _asked(reference: NetworkReference, like: Batches, recipe: Recipe) -> Tensor:
    """(M, V·N, C'), one view after another."""
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
    return torch.cat(said, dim=1)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Streams that are made within belong to this device, of whichever number."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
