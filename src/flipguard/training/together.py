"""Several runs of one kind as one: their networks' passes are a single step, everything else stays each run's own.

Batches, losses, clipping, the optimiser, sums and states are those of the runs, so that each ends with the weights that
it has alone, up to rounding.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.ensembles import SingleStudent
from flipguard.training import signals
from flipguard.training.accumulation import detached
from flipguard.training.capture import CannotCapture, CapturedStep, Share, Update, first_line
from flipguard.training.engines import Engine, check_capturable, part_of
from flipguard.training.errors import memory_explained
from flipguard.training.grouped import grouped
from flipguard.training.joined import Joined, check_same, stacked
from flipguard.training.loop import Run
from flipguard.training.paired import paired
from flipguard.types import Batch, Output, Step

_JOIN: Mapping[str, Callable[[Sequence[nn.Module], torch.dtype | None], Joined]] = {
    "stacked": lambda networks, _: stacked(networks),
    "grouped": lambda networks, _: grouped(networks),
    "paired": paired,
}


def group_size(engine: Engine, networks: int) -> int:
    """How many of so many networks an engine trains in one step.

    >>> group_size("grouped", 8), group_size("paired", 8), group_size("paired", 1)
    (8, 2, 1)
    """
    return min(2, networks) if engine == "paired" else networks


class Together:
    """Runs at the same place of their training, an update of all at a time.

    Where that is not possible, `updates` raises CannotCapture before the first of them, and the runs are as before.
    """

    def __init__(self, runs: Sequence[Run], engine: Engine) -> None:
        self.runs, self.engine = list(runs), engine
        if len({run.resume() for run in self.runs}) > 1:
            raise ValueError("runs that go together must be at the same place.")

    def updates(self) -> Iterator[None]:
        """Yields after each update of all runs, from where they stand to the last."""
        first = self.runs[0]
        (epoch, step), job = first.resume(), first.job
        with ExitStack() as contexts:
            contexts.enter_context(signals.at_work())
            if epoch < job.recipe.epochs:
                with memory_explained(job.recipe, f"epoch {epoch}, step {step}", job.checkpoint):
                    joint = self._join()
                for number, run in enumerate(self.runs):
                    run.captured, run.engine, run.state.engine = Share(joint, number), self.engine, self.engine
                for now in range(epoch, job.recipe.epochs):
                    yield from self._epoch(joint, now, step if now == epoch else 0)
            for run in self.runs:
                run.captured = None

    def _epoch(self, joint: CapturedStep, epoch: int, step: int) -> Iterator[None]:
        first = self.runs[0]
        began, steps = time.perf_counter(), first.job.steps_per_epoch
        for run in self.runs:
            run.student.train()
        joint.seek(epoch, step)
        for done in range(step + 1, steps + 1):
            joint.replay()
            if done < steps and (signals.asked() or done % first.job.checkpoint_every == 0):
                if first.wants_saving():
                    began = [run.save(epoch, done, began) for run in self.runs][-1]
                signals.stop_if_asked()
            yield
        # One answer for all: runs that are saved at different places could not go on together.
        saves = first.wants_saving()
        for run in self.runs:
            run.end_epoch(epoch, began, saves=saves)
        if signals.asked() and not saves and first.job.checkpoint is not None:
            # Told to stop in the meantime.
            for run in self.runs:
                run.save(epoch + 1, 0, time.perf_counter())
        signals.stop_if_asked()

    def _join(self) -> CapturedStep:
        networks = [self._network(run) for run in self.runs]
        for run in self.runs:
            run.student.train()
        try:
            half = torch.bfloat16 if self.runs[0].job.recipe.precision == "bf16" else None
            joined = _JOIN[self.engine](networks, half)
            try:
                parts = [part_of(run) for run in self.runs]
                for part in parts:
                    part.data.seek(0, 0)
                check_same(joined, networks, [part.data.current().x for part in parts])
                return CapturedStep(parts, self._update(joined), self.runs[0].autocast, self.runs[0].device)
            finally:
                joined.forget()
                for run in self.runs:
                    run.optimiser.zero_grad(set_to_none=True)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise CannotCapture(f"the networks cannot be {self.engine} ({first_line(error)})") from error

    def _update(self, joined: Joined) -> Update:
        def update(batches: list[Batch], _: Any) -> list[Step]:
            with self.runs[0].autocast():
                logits = joined.call([batch.x for batch in batches]).unbind(0)
                found = [
                    run.method(_Said(run.student, batch.x, said), {}, batch)
                    for run, batch, said in zip(self.runs, batches, logits, strict=True)
                ]
            # Each loss knows its own network's weights only: the sum's gradient is that of every one.
            torch.stack([step.loss for step in found]).sum().backward()
            joined.hand_out()
            for run in self.runs:
                run.apply()
            return [detached(step) for step in found]

        return update

    def _network(self, run: Run) -> nn.Module:
        check_capturable(run)
        if not isinstance(run.student, SingleStudent):
            raise CannotCapture("the method trains something else than one plain network")
        if run.references:
            raise CannotCapture("the method has references")
        if any(scale < 1 for scale in run.job.recipe.scales):
            raise CannotCapture("images grow with the training")
        if run.job.recipe.accumulate > 1:
            raise CannotCapture("batches are accumulated in parts")
        return run.student.network


class _Said:
    """A student that has been asked already: it gives its logits on the batch, and knows nothing else."""

    members = 1

    def __init__(self, student: nn.Module, x: Any, logits: Tensor) -> None:
        self._student, self._x, self._logits = student, x, logits

    def __call__(self, x: Any, *, features: bool = False) -> Output:
        if features or x is not self._x:
            raise CannotCapture("the method asks its student for more than the logits of the batch")
        return Output(self._logits[None])

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_student"], name)
