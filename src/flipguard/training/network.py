"""One network by one method on one data set, from seeds to what it says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flipguard.data import Augmentation, Batches, DataSet, ResidentBatches
from flipguard.ensembles import SingleStudent, deal
from flipguard.predictions import Predictions
from flipguard.training.distributed import own_device, place
from flipguard.training.engines import Engine
from flipguard.training.errors import memory_explained
from flipguard.training.job import Job, OnEpoch
from flipguard.training.loop import Run
from flipguard.training.model_spec import ModelSpec as ModelSpec
from flipguard.training.recipe import Recipe
from flipguard.training.views import Shared, kept_views, seen_views
from flipguard.types import InputError, Method, Reference


@dataclass(frozen=True)
class Seeds:
    """Where a run's randomness comes from: each stream can be held fixed alone (churn paper, Table 1).

    `augment` also seeds dropout, the other noise that a sample meets on its way.

    >>> Seeds.of(7).order
    7
    """

    initialisation: int
    order: int
    augment: int

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        return cls(seed, seed, seed)


def described(
    model: ModelSpec,
    data: DataSet | Mapping[str, Any],
    method: Method,
    recipe: Recipe,
    seeds: Seeds,
    augmentation: Augmentation | None,
    *,
    choose_epoch: Literal["last", "validation"] = "last",
) -> dict[str, Any]:
    """Everything that decides a run's weights, ready for JSON, so that a checkpoint can tell whose it is.

    Who describes many runs on one data set can give what `described_data` says of it.
    """
    # A method that is a plain function has no parameters to write down.
    parameters: Any = method if is_dataclass(method) else None
    return {
        "data": described_data(data) if isinstance(data, DataSet) else dict(data),
        "model": model.described(),
        "method": {"name": getattr(method, "__name__", type(method).__name__), "parameters": _plain(parameters)},
        "recipe": _recipe(recipe),
        "seeds": asdict(seeds),
        "augmentation": _plain(augmentation),
        "choose_epoch": choose_epoch,
    }


def _recipe(recipe: Recipe) -> dict[str, Any]:
    """Without what came later and is not used, so that a run from before goes on."""
    later = ("floor", "tail", "average", "views", "dealt", "scales")
    return {name: value for name, value in asdict(recipe).items() if value or name not in later}


def described_data(data: DataSet) -> dict[str, Any]:
    """The samples that a run is trained on."""
    encoding = {} if data.encoder is None else {"encoder": data.encoder.fingerprint()}
    facts = {"name": data.name, "train": data.fingerprint("train"), "normalisation": _plain(data.normalisation)}
    return {**facts, **encoding}


def _plain(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


class RunOptions(TypedDict, total=False):
    """What `train_network` and `begin_network` can be told beyond the essentials; see there."""

    references: Mapping[str, Reference] | None
    augmentation: Augmentation | None
    device: str
    checkpoint: Path | None
    checkpoint_every: int
    choose_epoch: Literal["last", "validation"]
    engine: Engine
    sharded: bool
    all_members: bool
    on_epoch: OnEpoch | None
    shared: Shared | None


def train_network(
    model: ModelSpec, data: DataSet, method: Method, recipe: Recipe, *, seeds: Seeds, **options: Unpack[RunOptions]
) -> nn.Module:
    """A trained network. The same arguments give the same bits on a CPU, also when killed and started again.

    `choose_epoch="validation"` releases the epoch with the lowest error on the data's validation part; the test part is
    never looked at. On a GPU the step is captured where it can be (`engine`). Under a launcher each process trains on
    its share of every batch and, when `sharded`, holds its share of the weights. `all_members` is for those who begin a
    run themselves and want every network of a student of several at its end (`Run.members`), each averaged if any is.
    `shared` is for those who begin several with `views`: what one asks of a network, the others need not.
    """
    run = begin_network(model, data, method, recipe, seeds=seeds, **options)
    for _ in run.updates():
        pass
    return run.released()


def begin_network(
    model: ModelSpec,
    data: DataSet,
    method: Method,
    recipe: Recipe,
    *,
    seeds: Seeds,
    references: Mapping[str, Reference] | None = None,
    augmentation: Augmentation | None = None,
    device: str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_every: int = 200,
    choose_epoch: Literal["last", "validation"] = "last",
    engine: Engine = "auto",
    sharded: bool = False,
    all_members: bool = False,
    on_epoch: OnEpoch | None = None,
    shared: Shared | None = None,
) -> Run:
    """The run of `train_network` before its first step, for those who let several take turns."""
    if recipe.average and choose_epoch == "validation":
        raise InputError("average releases a mean over epochs, and choose_epoch: validation one of them: take either.")
    rank, world = place()
    model = model.for_method(method)
    student = new_student(model, len(data.classes), method, recipe, seeds)
    # Processes of a team must not drop the same units.
    torch.manual_seed(seeds.augment + rank * 1_000_003)
    device = own_device(device)
    on_device = data.train.to(device)
    views = seen_views(recipe, references or {}, augmentation, on_device, world)

    def batches(epoch: int, start: int) -> Batches:
        return Batches(
            on_device,
            recipe.batch_size,
            order_seed=seeds.order,
            augment_seed=seeds.augment,
            epoch=epoch,
            epochs=recipe.epochs,
            start_step=start,
            drop_last=True,
            augmentation=augmentation,
            normalisation=data.normalisation,
            device=device,
            channels_last=recipe.channels_last,
            shard=(rank, world),
            views=views,
        )

    def resident() -> ResidentBatches:
        return ResidentBatches(batches(0, 0))

    facts = None
    if checkpoint is not None:
        facts = described(model, data, method, recipe, seeds, augmentation, choose_epoch=choose_epoch)
        if all_members and recipe.average:
            # The mean in its state is that of every member.
            facts["averaged"] = "every member"
    job = Job(
        batches=batches,
        steps_per_epoch=batches(0, 0).steps,
        recipe=recipe,
        device=device,
        checkpoint=checkpoint,
        checkpoint_every=checkpoint_every,
        facts=facts,
        validate=_validation_error(data, device) if choose_epoch == "validation" else None,
        resident=resident if isinstance(on_device.x, torch.Tensor | dict) and world == 1 else None,
        engine=engine,
        sharded=sharded,
        all_members=all_members,
    )
    held_to = dict(references or {})
    if recipe.dealt:
        held_to = deal(held_to, recipe.batch_size // (recipe.accumulate * world))
    with memory_explained(recipe, "the references' answers", checkpoint):
        held_to = kept_views(held_to, batches(0, 0), recipe, shared)
    return Run(student, method, job, held_to, on_epoch)


def new_student(model: ModelSpec, classes: int, method: Method, recipe: Recipe, seeds: Seeds) -> nn.Module:
    """What the method trains: one plain network, unless it says otherwise."""

    def build(member: int) -> nn.Module:
        return model.build(classes, seeds.initialisation + 15_485_863 * member)

    made = getattr(method, "student", None)
    student: nn.Module = (
        SingleStudent(build(0), decay_all=recipe.decay_all) if made is None else made(build, decay_all=recipe.decay_all)
    )
    return student


def _validation_error(data: DataSet, device: str) -> Callable[[nn.Module], float]:
    if data.validation is None or not len(data.validation):
        raise InputError(
            f"{data.name} has no validation part to choose an epoch by: make one with split_validation, or take the "
            "last epoch."
        )
    y = data.validation.y.cpu().numpy()

    def error(network: nn.Module) -> float:
        return float((predict_logits(network, data, "validation", device=device).argmax(-1) != y).mean())

    return error


@torch.inference_mode()
def predict_logits(
    network: nn.Module, data: DataSet, part: str = "test", *, device: str = "cpu", batch_size: int | None = None
) -> npt.NDArray[np.float32]:
    """(N, C) over a part of the data, in its stored order, without augmentation."""
    network.to(device).eval()
    batches = Batches.asked(data.part(part), normalisation=data.normalisation, device=device, batch_size=batch_size)
    return np.concatenate([network(batch.x).float().cpu().numpy() for batch in batches])


def as_predictions(
    logits: npt.NDArray[np.float32],
    data: DataSet,
    part: str = "test",
    *,
    classes: Sequence[str] | None = None,
    **facts: Any,
) -> Predictions:
    """Logits over a part of the data as a prediction file's rows: `facts` are model, version, metadata.

    `classes` are the network's own when they are not the data's: a model from before the data grew. Labels are then
    written by name, as some are of no class that it knows.
    """
    split = data.part(part)
    label: Any = split.y.cpu().numpy()
    if classes is not None and tuple(classes) != data.classes:
        label = [data.classes[code] if code >= 0 else None for code in label.tolist()]
    return Predictions.from_arrays(
        id=split.ids,
        label=label,
        logits=logits,
        slices=dict(split.slices),
        classes=data.classes if classes is None else classes,
        **facts,
    )
