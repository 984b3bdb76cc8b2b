"""For a notebook: the user's own network and loader, any method, in a few lines."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, RandomSampler

from flipguard.predictions import Predictions
from flipguard.training.distributed import is_sharded, place
from flipguard.training.given import index_of, moved_to, objective_of, references_of, row_of, student_of
from flipguard.training.job import Job, OnEpoch
from flipguard.training.loop import fit as run
from flipguard.training.recipe import Recipe
from flipguard.types import Batch, InputError, Method, Reference

CAREFUL = Recipe(learning_rate=0.05, clip_norm=1.0)


def fit(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    method: str | Method = "none",
    options: Mapping[str, Any] | None = None,
    old: nn.Module | Reference | None = None,
    ensemble: Sequence[nn.Module] | Reference | None = None,
    peers: Sequence[nn.Module] = (),
    epochs: int | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    device: str | None = None,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a network in place by a method, held to the old model or to an ensemble; returns the one to deploy.

    That is the given one, in evaluation mode, unless the method makes another of it.

    `loader` yields (x, y) or (x, y, id), as a DataLoader does. `options` are the method's parameters, as `flipguard
    methods` lists them; `recipe` has learning rate, schedule and the like. A method that works on logits takes any
    network whose `forward(x)` gives logits (B, C); one that works on features needs `features` and `head` too. A plain
    network as `old` has the same classes; for one that knows fewer, pass `NetworkReference("old", [network],
    classes=…)`. The references are copied first, so `old=model` holds the model to what it is now. `peers` are further
    networks for co-distillation, trained in place too. The seed decides dropout, and the order of a DataLoader that
    shuffles without a generator of its own. Without a recipe gradients are clipped, so that a strong pull towards a
    reference (focal distillation at the paper's weights) does not make training diverge.

    >>> net = nn.Linear(2, 3)
    >>> rows = torch.utils.data.TensorDataset(torch.eye(2).repeat(3, 1), torch.tensor([0, 1, 0, 1, 0, 1]))
    >>> loader = torch.utils.data.DataLoader(rows, batch_size=2, shuffle=True)
    >>> fit(net, loader, method="kd", old=nn.Linear(2, 3), epochs=30)(torch.eye(2)).argmax(-1)
    tensor([0, 1])
    """
    recipe = recipe or CAREFUL
    recipe = recipe if epochs is None else replace(recipe, epochs=epochs)
    chosen = objective_of(method, options or {})
    _check_given(model, loader, old)
    if recipe.views:
        raise InputError("views needs to know what a loader shows next: use a training spec (flipguard train).")
    if recipe.dealt:
        raise InputError("dealt needs a new order in each epoch, which a loader may not have: use a training spec.")
    references = references_of(chosen, old, ensemble)
    where = device or str(next(model.parameters()).device)
    if not isinstance(loader, Sized):
        raise InputError("the loader has no length, which the learning rate's schedule needs: give it a __len__.")
    job = Job(_Epochs(loader, recipe.epochs, seed, where), len(loader), recipe, device=where)
    with torch.random.fork_rng(devices=[where] if torch.device(where).type == "cuda" else []):
        torch.manual_seed(seed)
        # Within: a method's own student may draw its start.
        student = student_of(chosen, model, peers, decay_all=recipe.decay_all)
        try:
            return run(student, chosen, job, references, on_epoch=on_epoch)
        except IndexError as error:
            # How many classes a network of the user's own tells apart shows only when it is asked.
            label = re.fullmatch(r"Target (-?\d+) is out of bounds\.", str(error))
            if label is None:
                raise
            raise InputError(
                f"the loader has the label {label[1]}, which is no output of the network: labels count outputs from 0."
            ) from error


@torch.inference_mode()
def predict(
    model: nn.Module,
    loader: Iterable[Any],
    /,
    *,
    classes: Sequence[str] | None = None,
    device: str | None = None,
    **facts: Any,
) -> Predictions:
    """What a network says about the rows of a loader: (x, y) or (x, y, id). `facts` are model, version, metadata.

    Rows without ids are numbered in the loader's order, so two models can be compared only if it does not shuffle.

    >>> rows = torch.utils.data.TensorDataset(torch.eye(2), torch.tensor([0, 1]))
    >>> said = predict(nn.Identity(), torch.utils.data.DataLoader(rows, batch_size=1), classes=["cat", "dog"])
    >>> said.table(["logits"]).column(0).to_pylist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    where = device or str(next((p.device for p in model.parameters()), "cpu"))
    model.to(where).eval()
    logits, labels, ids = [], [], []
    for x, y, names in map(row_of, loader):
        logits.append(model(moved_to(x, where)).float().cpu())
        labels.append(torch.as_tensor(y).cpu())
        ids.append(names)
    if not logits:
        raise InputError("the loader gave no batches: there is nothing to predict.")
    if classes is not None and len(classes) != logits[0].shape[-1]:
        raise InputError(f"{len(classes)} class names for {logits[0].shape[-1]} logits: give one for each.")
    if ids[0] is None and isinstance(getattr(loader, "sampler", None), RandomSampler):
        raise InputError("the loader shuffles and gives no ids: pass shuffle=False, or yield (x, y, id).")
    return Predictions.from_arrays(
        id=None if ids[0] is None else np.concatenate([np.asarray(part) for part in ids]),
        label=torch.cat(labels).numpy(),
        logits=torch.cat(logits).numpy(),
        classes=classes,
        **facts,
    )


def _check_given(model: Any, loader: Any, old: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, it is a {type(model).__name__}.")
    if place()[1] > 1 and is_sharded(asked=False):
        raise InputError(
            "fit trains the given network in place, and the launcher's configuration cuts it into pieces (FSDP): use a "
            "training spec (flipguard train), or a configuration without it."
        )
    if isinstance(loader, Dataset):
        raise InputError("this is a data set, not a loader: wrap it in torch.utils.data.DataLoader(…, batch_size=…).")
    if old is not None and not isinstance(old, nn.Module) and not callable(old):
        raise InputError(
            f"old must be a network or a reference, it is a {type(old).__name__}; for a model that left only a "
            "prediction file use a training spec (flipguard train)."
        )


class _Epochs:
    """A loader's batches by epoch, each epoch's order decided by the seed."""

    def __init__(self, loader: Any, epochs: int, seed: int, device: str) -> None:
        self._loader, self._seed, self._device = loader, seed, device
        self._total = epochs * len(loader)

    def __call__(self, epoch: int, start: int) -> Iterator[Batch]:
        first = 0
        for step, (x, y, names) in enumerate(map(row_of, self._in_order(epoch)), epoch * len(self._loader)):
            y = torch.as_tensor(y).to(self._device)
            if step - epoch * len(self._loader) >= start:
                yield Batch(
                    x=moved_to(x, self._device),
                    y=y,
                    index=index_of(names, first, len(y)).to(self._device),
                    progress=torch.full((), step / self._total, device=self._device),
                    step=torch.full((), step, dtype=torch.int64, device=self._device),
                    seed=self._seed,
                )
            first += len(y)

    def _in_order(self, epoch: int) -> Iterator[Any]:
        # A shuffling sampler draws its order when the first batch is asked for, from the global generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed * 1_000_003 + epoch)
            batches = iter(self._loader)
            first = next(batches, None)
        if first is not None:
            yield first
            yield from batches
