"""What stops a training run, said so that the user knows what to do next."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from flipguard.training.distributed import Team
from flipguard.training.recipe import Recipe
from flipguard.types import Batch, FlipguardError

WATCH_EVERY = 50
_NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


class TrainingError(FlipguardError):
    """Training cannot go on; the message says at which step, on which samples, and what is safe."""


class OutOfMemory(TrainingError):
    """A step needs more memory than there is; the message names the knobs."""


class Diverged(TrainingError):
    """A loss was not finite: every process of a team says so, at the same step."""


def last_good(checkpoint: Path | None) -> str:
    """Where a run can go on from."""
    if checkpoint is None or not checkpoint.exists():
        return " Nothing was saved."
    return f" The last good state is {checkpoint}."


@contextmanager
def memory_explained(recipe: Recipe, place: str, checkpoint: Path | None) -> Iterator[None]:
    """Out of memory, on a GPU or on the host, as an error that names the knobs."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        lack = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not lack and not any(words in str(error) for words in _NO_MEMORY):
            raise
        knobs = [f"accumulate above {recipe.accumulate} (parts of a batch, one after another)"]
        knobs += [] if recipe.checkpoint_activations else ["checkpoint_activations=True"]
        knobs += [] if recipe.precision == "bf16" else ["precision='bf16'"]
        raise OutOfMemory(
            f"out of memory at {place} with batches of {recipe.batch_size}: set {', or '.join(knobs)}, or a smaller "
            f"batch_size.{last_good(checkpoint)}"
        ) from error


class Watch:
    """Notes the first loss that is not finite, on the device, and looks at it only every so many steps."""

    def __init__(self, team: Team, checkpoint: Path | None) -> None:
        self._team, self._checkpoint = team, checkpoint
        self._first: Tensor | None = None
        self._seen: list[tuple[int, int, Tensor]] = []

    def note(self, loss: Tensor, epoch: int, step: int, batch: Batch) -> None:
        place = torch.where(torch.isfinite(loss), 1 << 30, len(self._seen))
        self._first = place if self._first is None else torch.minimum(self._first, place)
        self._seen.append((epoch, step, batch.index))
        if len(self._seen) >= WATCH_EVERY:
            self.look()

    def look(self) -> None:
        """Raises when a loss since the last look was not finite, in any process of the team."""
        if self._first is None:
            return
        first = int(self._team.least(self._first))
        if first < len(self._seen):
            self.stop(*self._seen[first])
        self._first, self._seen = None, []

    def stop(self, epoch: int, step: int, index: Tensor) -> NoReturn:
        """Training cannot go on after this step, on these training rows."""
        rows = ", ".join(str(row) for row in index[:8].tolist()) + (", …" if len(index) > 8 else "")
        raise Diverged(
            f"the loss is not finite at epoch {epoch}, step {step} (training rows {rows}): lower the learning "
            f"rate, warm up longer, set clip_norm, or look at those rows.{last_good(self._checkpoint)}"
        )
