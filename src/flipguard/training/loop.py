"""The one loop: every method, every student, on a CPU, a GPU, or several processes under an existing launcher."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard.training.distributed import Team
from flipguard.training.errors import TrainingError, Watch, memory_explained
from flipguard.training.memory import recomputed
from flipguard.training.recipe import Recipe, build_optimiser, rate
from flipguard.training.state import Epoch, TrainingState
from flipguard.types import Batch, Method, Reference, Step


@dataclass(frozen=True)
class Job:
    """What to train on: `batches(epoch, start)` yields an epoch's batches from step `start` on, always the same ones.

    `validate`, when given, is called with the network after each epoch and returns its error on validation samples; the
    epoch with the lowest is released, the first of several, instead of the last. `facts` describe the run: a checkpoint
    that was begun with others is refused.
    """

    batches: Callable[[int, int], Iterable[Batch]]
    steps_per_epoch: int
    recipe: Recipe
    device: str = "cpu"
    checkpoint: Path | None = None
    checkpoint_every: int = 200
    facts: Mapping[str, Any] | None = None
    validate: Callable[[nn.Module], float] | None = None


OnEpoch = Callable[[Epoch, nn.Module], None]


def fit(
    student: nn.Module,
    method: Method,
    job: Job,
    references: Mapping[str, Reference] | None = None,
    *,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a student by a method; returns the network to deploy.

    With `job.checkpoint` the state is saved every so many steps and after each epoch, and a call that finds the file
    goes on where it was: on a CPU to the same bits. `on_epoch` sees each epoch's record and the network as it would be
    released, before that epoch is saved: a run that is killed in between reports the epoch again, with the same
    figures. Under a launcher it is called in the first process alone.
    """
    team = Team.gather(job.device)
    team.check_batch(job.recipe.batch_size, job.recipe.accumulate)
    run = _Run(student, method, references or {}, job, team)
    first_epoch, first_step = run.resume()
    with recomputed(student, on=job.recipe.checkpoint_activations):
        for epoch in range(first_epoch, job.recipe.epochs):
            run.epoch(epoch, first_step if epoch == first_epoch else 0, on_epoch)
    student.eval()
    released: nn.Module = student.release()
    run.state.restore_best(released)
    return released


class _Run:
    """One call of `fit`: the student and all that moves with it."""

    def __init__(
        self, student: nn.Module, method: Method, references: Mapping[str, Reference], job: Job, team: Team
    ) -> None:
        device = team.device(job.device)
        student.to(device)
        if job.recipe.channels_last:
            student.to(memory_format=torch.channels_last)
        for reference in references.values():
            if isinstance(reference, nn.Module):
                reference.to(device)
        optimiser = build_optimiser(student.parameter_groups(), job.recipe)
        self.student, self.method, self.references, self.job, self.team = student, method, references, job, team
        self.called, self.optimiser = team.prepare(student, optimiser)
        self.state = TrainingState(student, self.optimiser, device, team)
        self.watch = Watch(team, job.checkpoint)
        self.device_type = torch.device(device).type

    def resume(self) -> tuple[int, int]:
        path = self.job.checkpoint
        return self.state.load(path, self.job.facts) if path is not None and path.exists() else (0, 0)

    def epoch(self, epoch: int, step: int, on_epoch: OnEpoch | None) -> None:
        """An epoch from a step on, to its record and its checkpoint."""
        job, began = self.job, time.perf_counter()
        self.student.train()
        for batch in job.batches(epoch, step):
            with memory_explained(job.recipe, f"epoch {epoch}, step {step}", job.checkpoint):
                result = self.step(batch, epoch * job.steps_per_epoch + step)
            self.state.add(result, batch.y)
            self.watch.note(result.loss, epoch, step, batch)
            step += 1
            if job.checkpoint is not None and step % job.checkpoint_every == 0 and step < job.steps_per_epoch:
                self.watch.look()
                began = self._clock(began)
                self.state.save(job.checkpoint, epoch, step, job.facts)
        self.watch.look()
        self.student.eval()
        released = self.student.release()
        error = None if job.validate is None else job.validate(released)
        if error is not None:
            self.state.keep_best(released, error)
        self._clock(began)
        record = self.state.epoch_record(epoch, job.recipe.epochs, error)
        if on_epoch is not None and self.team.rank == 0:
            on_epoch(record, released)
        if job.checkpoint is not None:
            self.state.save(job.checkpoint, epoch + 1, 0, job.facts)

    def _clock(self, began: float) -> float:
        now = time.perf_counter()
        self.state.seconds += now - began
        return now

    def step(self, batch: Batch, done: int) -> Step:
        """One update, the gradients of the batch's parts added up."""
        recipe = self.job.recipe
        share = rate(recipe, done, recipe.epochs * self.job.steps_per_epoch)
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.learning_rate * group.get("rate", 1.0) * share
        parts = _parts(batch, recipe.accumulate)
        results = []
        for part in parts:
            half = recipe.precision == "bf16"
            with torch.autocast(self.device_type, torch.bfloat16) if half else nullcontext():
                result = self.method(self.called, self.references, part)
            (result.loss * (len(part.y) / len(batch.y))).backward()
            results.append((len(part.y) / len(batch.y), result))
        if recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.student.parameters(), recipe.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        after_step = getattr(self.student, "after_step", None)
        if after_step is not None:
            after_step(done + 1)
        return _joined(results)


def _parts(batch: Batch, number: int) -> list[Batch]:
    """Nearly equal parts of a batch, along its rows."""
    if number == 1:
        return [batch]
    x = batch.x
    pieces = (
        [dict(zip(x, values, strict=True)) for values in zip(*(v.chunk(number) for v in x.values()), strict=True)]
        if isinstance(x, dict)
        else list(x.chunk(number))
    )
    rows = zip(pieces, batch.y.chunk(number), batch.index.chunk(number), strict=True)
    return [replace(batch, x=piece, y=y, index=index) for piece, y, index in rows]


def _joined(results: list[tuple[float, Step]]) -> Step:
    """The step of the whole batch: terms are means over rows, so each part counts by its share of them."""
    if len(results) == 1:
        one = results[0][1]
        return Step(one.loss.detach(), one.logits.detach(), {name: term.detach() for name, term in one.terms.items()})
    loss = sum((share * part.loss.detach() for share, part in results[1:]), results[0][0] * results[0][1].loss.detach())
    logits = torch.cat([part.logits.detach() for _, part in results], dim=1)
    terms = {
        name: torch.stack([share * part.terms[name].detach() for share, part in results]).sum()
        for name in results[0][1].terms
    }
    return Step(loss, logits, terms)


__all__ = ["Job", "OnEpoch", "TrainingError", "fit"]
