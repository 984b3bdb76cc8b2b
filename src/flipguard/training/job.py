"""What a run is told: the data, the recipe, the device, where its state is kept."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from flipguard.data import ResidentBatches
from flipguard.training.engines import Engine
from flipguard.training.recipe import Recipe
from flipguard.training.state import Epoch
from flipguard.types import Batch, InputError


@dataclass(frozen=True)
class Job:
    """What to train on: `batches(epoch, start)` yields an epoch's batches from step `start` on, always the same ones.

    `resident` makes the same batches where they are found on the device: with it a step on a GPU is captured and
    replayed, unless `engine` is "plain". `validate`, when given, is called with the network after each epoch and
    returns its error on validation samples; the epoch with the lowest is released, the first of several, instead of the
    last. `facts` describe the run: a checkpoint that was begun with others is refused. `sharded` cuts the student into
    pieces, one for each process of a team; it says nothing when one process trains alone. With `all_members` every
    network of a student of several is wanted at the end (`Run.members`), and `average` is a mean of each.
    """

    batches: Callable[[int, int], Iterable[Batch]]
    steps_per_epoch: int
    recipe: Recipe
    device: str = "cpu"
    checkpoint: Path | None = None
    checkpoint_every: int = 200
    facts: Mapping[str, Any] | None = None
    validate: Callable[[nn.Module], float] | None = None
    resident: Callable[[], ResidentBatches] | None = None
    engine: Engine = "auto"
    sharded: bool = False
    all_members: bool = False


OnEpoch = Callable[[Epoch, nn.Module], None]


def check_all_members(student: nn.Module, job: Job, *, sharded: bool) -> None:
    """Refuses where there are no members to keep, or no way to keep them all."""
    if getattr(student, "networks", None) is None:
        raise InputError("all_members keeps the networks of a student of several, and this one trains one network.")
    if sharded:
        raise InputError("all_members has no form for a student in pieces: train it whole.")
    if job.validate is not None:
        raise InputError("an epoch is chosen by the network that is released, and all_members keeps them all.")
