"""Training in several processes under an existing launcher (`torchrun`, `accelerate launch`), or in one."""

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.types import InputError, MissingExtra, Output

_ALONE: ContextVar[bool] = ContextVar("alone", default=False)
POLL_SECONDS = 0.05
_SHARDED = {
    "ACCELERATE_USE_FSDP": "sharding by FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}


def place() -> tuple[int, int]:
    """(rank, world) as the launcher has set them; (0, 1) without one."""
    if _ALONE.get():
        return 0, 1
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def alone() -> Iterator[None]:
    """Within, this process trains by itself, whatever launcher it was started by: members need no team."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def own_device(device: str) -> str:
    """Under a launcher, "cuda" is the GPU that it gave this process."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" and place()[1] > 1 else device


def wait_for(path: Path) -> None:
    """Until another process of the team has written a file, however long its work takes.

    A collective operation would give up after minutes; a process that fails is noticed by the launcher, which ends the
    others.
    """
    while not path.exists():
        time.sleep(POLL_SECONDS)


def check_not_sharded() -> None:
    """A configuration that cuts a network into pieces is refused: a checkpoint here holds whole weights and optimiser
    states, in each process the same, and on CPUs accelerate would pass such a configuration over in silence."""
    for variable, what in _SHARDED.items():
        if os.environ.get(variable, "false").lower() in ("true", "1"):
            raise InputError(
                f"{what} is not supported ({variable} is set): each process holds the whole student. For less memory "
                "set train.precision: bf16, train.accumulate, train.checkpoint_activations, or method.ensemble.spread."
            )


@dataclass(frozen=True)
class Team:
    """The processes that train one student together. Alone, every method here returns what it was given."""

    rank: int
    world: int
    accelerator: Any = None

    @classmethod
    def gather(cls, device: str) -> "Team":
        """The team that the launcher's environment speaks of."""
        rank, world = place()
        if world == 1:
            return cls(0, 1)
        check_not_sharded()
        try:
            accelerate = importlib.import_module("accelerate")
        except ImportError as error:
            raise MissingExtra(
                "training in several processes needs accelerate: pip install 'flipguard[train]'"
            ) from error
        return cls(rank, world, accelerate.Accelerator(cpu=torch.device(device).type == "cpu"))

    def device(self, device: str) -> str:
        """Where this process works: under a launcher on a GPU of its own."""
        return device if self.accelerator is None else str(self.accelerator.device)

    def prepare(self, student: nn.Module, optimiser: Any) -> tuple[Any, Any]:
        """The student as it is called in a step, and its optimiser: gradients are averaged over the team."""
        if self.accelerator is None:
            return student, optimiser
        parallel, prepared = self.accelerator.prepare(student, optimiser)
        return _Parallel(student, parallel), prepared

    def summing_later(self, student: Any) -> AbstractContextManager[Any]:
        """Within, gradients are not yet averaged over the team: a batch's parts travel once, with the last of them."""
        if self.accelerator is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self.accelerator.no_sync(student.parallel)
        return context

    def check_batch(self, batch_size: int, accumulate: int) -> None:
        """The mean of the processes' means is the batch's mean only when they have equally many rows."""
        if batch_size % (self.world * accumulate):
            raise InputError(
                f"batch_size {batch_size} does not divide into {self.world} processes × {accumulate} equal parts."
            )

    def total(self, value: Tensor) -> Tensor:
        """The sum over the team."""
        return value if self.accelerator is None else self.accelerator.reduce(value, reduction="sum")

    def least(self, value: Tensor) -> Tensor:
        """The smallest over the team."""
        return value if self.accelerator is None else self.accelerator.gather(value.reshape(1)).min()

    def wait(self) -> None:
        """Until all are here."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()


class _Parallel:
    """A student whose calls go through its parallel wrapper, with everything else as it was."""

    def __init__(self, student: nn.Module, parallel: Any) -> None:
        self._student, self.parallel = student, parallel

    def __call__(self, x: Any, *, features: bool = False) -> Output:
        answer: Output = self.parallel(x, features=features)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._student, name)
