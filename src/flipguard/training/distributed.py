"""Training in several processes under an existing launcher (`torchrun`, `accelerate launch`), or in one."""

import atexit
import importlib
import logging
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.training.sharding import asked_by_launcher
from flipguard.types import InputError, MissingExtra, Output

LOG = logging.getLogger("flipguard.training")
_ALONE: ContextVar[bool] = ContextVar("alone", default=False)
_broken = False
POLL_SECONDS, LET_GO_SECONDS = 0.05, 0.2
_OTHERS = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM"}


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


def is_sharded(*, asked: bool) -> bool:
    """Whether a team's student is cut into pieces: when the run asks for it, or the launcher's configuration.

    Other engines that such a configuration can name are refused: on CPUs accelerate would pass them over in silence.
    """
    for variable, what in _OTHERS.items():
        if os.environ.get(variable, "false").lower() in ("true", "1"):
            raise InputError(
                f"{what} is not supported ({variable} is set): a student is cut into pieces by train.sharded: true, or "
                "by an accelerate configuration that uses FSDP."
            )
    return asked_by_launcher() or asked


@dataclass(frozen=True)
class Team:
    """The processes that train one student together. Alone, every method here returns what it was given."""

    rank: int
    world: int
    accelerator: Any = None
    sharded: bool = False

    @classmethod
    def gather(cls, device: str, *, sharded: bool = False) -> "Team":
        """The team that the launcher's environment speaks of."""
        rank, world = place()
        if world == 1:
            if sharded:
                LOG.warning("sharded: nothing is cut into pieces, as one process trains alone.")
            return cls(0, 1)
        sharded = is_sharded(asked=sharded)
        try:
            accelerate = importlib.import_module("accelerate")
        except ImportError as error:
            raise MissingExtra(
                "training in several processes needs accelerate: pip install 'flipguard[train]'"
            ) from error
        cpu = torch.device(device).type == "cpu"
        if cpu:
            _leave_at_exit()
        if sharded:
            # Its processes and their device, without what an Accelerator would make of its own configuration.
            return cls(rank, world, accelerate.PartialState(cpu=cpu), sharded)
        return cls(rank, world, accelerate.Accelerator(cpu=cpu))

    def device(self, device: str) -> str:
        """Where this process works: under a launcher on a GPU of its own."""
        return device if self.accelerator is None else str(self.accelerator.device)

    def prepare(self, student: nn.Module, optimiser: Any) -> tuple[Any, Any]:
        """The student as it is called in a step, and its optimiser: gradients are averaged over the team.

        One in pieces averages them by itself.
        """
        if self.accelerator is None or self.sharded:
            return student, optimiser
        parallel, prepared = self.accelerator.prepare(student, optimiser)
        return _Parallel(student, parallel), prepared

    def summing_later(self, student: Any) -> AbstractContextManager[Any]:
        """Within, gradients are not yet averaged over the team: a batch's parts travel once, with the last of them.

        In pieces they travel with each part, as whole gradients are what no process is to hold.
        """
        if self.accelerator is None or self.sharded:
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
        return value if self.accelerator is None else _operations().reduce(value, reduction="sum")

    def least(self, value: Tensor) -> Tensor:
        """The smallest over the team."""
        return value if self.accelerator is None else _operations().gather(value.reshape(1)).min()

    @contextmanager
    def at_work(self, *whole: type[BaseException]) -> Iterator[None]:
        """Within, the team takes its steps. After an error other than these it counts as broken, until it has trained
        again."""
        global _broken
        try:
            yield
        except whole:
            raise
        except BaseException:
            _broken = _broken or self.world > 1
            raise
        _broken = _broken and self.world == 1

    def wait(self) -> None:
        """Until all are here."""
        if self.accelerator is not None:
            self.accelerator.wait_for_everyone()


def _leave_at_exit() -> None:
    """Before the first training of a team on CPUs: its processes will leave it while Python still runs.

    Gloo's threads let go of an operation a moment after it is done, and one that does so when Python has ended aborts
    the process, although its work is complete. A group that is there already belongs to whoever made it.
    """
    if not torch.distributed.is_initialized():
        with suppress(ImportError):
            # Its functions keep the group of their import as a default for good: they are to find none.
            importlib.import_module("torch.distributed.nn")
        atexit.register(leave)


def leave() -> None:
    """Ends this process's part in its team; not in a broken one, where it could wait for others that wait for it."""
    if not _broken and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        # Its threads have ended with it, unless a cache of torch's holds it (those of tensors in pieces do).
        time.sleep(LET_GO_SECONDS)


def _operations() -> Any:
    return importlib.import_module("accelerate.utils")


class _Parallel:
    """A student whose calls go through its parallel wrapper, with everything else as it was."""

    def __init__(self, student: nn.Module, parallel: Any) -> None:
        self._student, self.parallel = student, parallel

    def __call__(self, x: Any, *, features: bool = False) -> Output:
        answer: Output = self.parallel(x, features=features)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._student, name)
