"""The one loop: every method, every student, on a CPU, a GPU, or several processes under an existing launcher."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any

import torch
from torch import nn

from flipguard.ensembles import recompute_statistics
from flipguard.training import pace, signals
from flipguard.training.accumulation import parts_of, whole_step
from flipguard.training.at_once import AtOnce
from flipguard.training.capture import Share
from flipguard.training.distributed import Team
from flipguard.training.engines import Engine, check_engine, engine_to_use, own_step
from flipguard.training.errors import Diverged, Watch, memory_explained
from flipguard.training.job import Job, OnEpoch, check_all_members
from flipguard.training.memory import recomputed
from flipguard.training.recipe import build_optimiser, rate
from flipguard.training.scales import at_scale, spans
from flipguard.training.sharding import Sharded
from flipguard.training.signals import Stopped
from flipguard.training.state import TrainingState
from flipguard.types import Batch, InputError, Method, Reference, Step


def fit(
    student: nn.Module,
    method: Method,
    job: Job,
    references: Mapping[str, Reference] | None = None,
    *,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a student by a method; returns the network to deploy.

    With `job.checkpoint` the state is saved every so many steps, after each epoch, and where a signal stops the run; a
    call that finds the file goes on where it was: on a CPU to the same bits. `on_epoch` sees each epoch's record and
    the network as it is then (with `average`, the epoch's own weights), before that epoch is saved: a run killed in
    between reports the epoch again, with the same figures. Under a launcher it is called in the first process alone.
    """
    run = Run(student, method, job, references or {}, on_epoch)
    for _ in run.updates():
        pass
    return run.released()


def take_turns(runs: Sequence["Run"]) -> None:
    """Several runs on one device to their end, an update of each in turn.

    Captured updates are only enqueued, each run's on a stream of its own: what one leaves idle another uses.
    """
    in_turn([run.updates() for run in runs])


def in_turn(alive: "Sequence[Iterator[None]]") -> None:
    """An update of each in turn, until all have ended. When one is told to stop, each saves where it is."""
    ended = object()
    try:
        while alive:
            alive = [updates for updates in alive if next(updates, ended) is not ended]
    except Stopped:
        for updates in alive:
            with suppress(Stopped):
                # After an epoch's last update it is the next call that saves.
                for _ in range(2):
                    next(updates, ended)
        raise


class Run:
    """One student on its way through training: `updates` moves it step by step to the end.

    Several runs share a GPU by taking turns: a captured update is only enqueued, on the run's own stream.
    """

    def __init__(
        self,
        student: nn.Module,
        method: Method,
        job: Job,
        references: Mapping[str, Reference],
        on_epoch: OnEpoch | None = None,
    ) -> None:
        check_engine(job.engine)
        self.team = Team.gather(job.device, sharded=job.sharded)
        if self.team.sharded and job.recipe.average:
            raise InputError("average has no form for a student in pieces: train it whole, or leave average out.")
        if job.all_members:
            check_all_members(student, job, sharded=self.team.sharded)
        self.team.check_batch(job.recipe.batch_size, job.recipe.accumulate)
        device = self.team.device(job.device)
        self.device = torch.device(device)
        self.pieces: Sharded | None = None
        if self.team.sharded:
            self.pieces = Sharded(student, self.device, self.team.world, next(iter(job.batches(0, 0))).x)
        else:
            student.to(device)
            if job.recipe.channels_last:
                student.to(memory_format=torch.channels_last)
        for reference in references.values():
            if isinstance(reference, nn.Module):
                reference.to(device)
        self.student, self.method, self.references, self.job, self.on_epoch = student, method, references, job, on_epoch
        fused = self.device.type == "cuda" and self.pieces is None
        optimiser = build_optimiser(student.parameter_groups(), job.recipe, fused=fused)
        self.called, self.optimiser = self.team.prepare(self.pieces or student, optimiser)
        self.shown = self.called
        self.state = TrainingState(student, self.optimiser, device, self.team)
        self.watch = Watch(self.team, job.checkpoint)
        self.captured: Share | None = None
        self.casts: list[AtOnce] = []
        self.engine: Engine = "plain"
        self.saved = pace.OF_THIS_PROCESS.clock()
        self._place: tuple[int, int] | None = None

    def updates(self) -> Iterator[None]:
        """Yields after each update, from where the checkpoint stands to the last."""
        recipe, place = self.job.recipe, self.resume()
        with ExitStack() as contexts:
            contexts.enter_context(signals.at_work())
            contexts.enter_context(self.team.at_work(Diverged, Stopped))
            contexts.enter_context(recomputed(self.student, on=recipe.checkpoint_activations))
            for scale, epochs in spans(recipe):
                if place[0] < epochs.stop:
                    first = place[0] in epochs
                    engine = engine_to_use(self.job.engine, self.state.engine) if first else self.engine
                    self.shown = at_scale(self.called, scale)
                    yield from self._span(range(max(place[0], epochs.start), epochs.stop), place, engine)

    def _span(self, epochs: range, place: tuple[int, int], engine: Engine) -> Iterator[None]:
        """Epochs whose images have one size, by one step."""
        with ExitStack() as contexts:
            self.student.train()
            step = place[1] if epochs.start == place[0] else 0
            with memory_explained(self.job.recipe, f"epoch {epochs.start}, step {step}", self.job.checkpoint):
                self.engine, self.captured = own_step(self, engine, contexts)
            self.state.engine = self.engine
            for epoch in epochs:
                yield from self._epoch(epoch, step if epoch == epochs.start else 0)
            # The next step has a stream of its own, and begins with what this one has left.
            self._look()
            self.captured = None

    def resume(self) -> tuple[int, int]:
        """The epoch and the step to go on with: those of the checkpoint if there is one, which is read once."""
        if self._place is None:
            path = self.job.checkpoint
            found = path is not None and path.exists()
            self._place = self.state.load(path, self.job.facts) if path is not None and found else (0, 0)
        return self._place

    def members(self) -> list[nn.Module]:
        """Every network of a student of several, with its weights of the last epoch, or its mean of the last ones."""
        if not self.job.all_members:
            raise InputError("members are kept by a run that was begun with all_members.")
        self.student.eval()
        averaged = self.state.restore_mean(self.student)
        networks: list[nn.Module] = list(self.student.networks)
        for network in networks if averaged else ():
            self._measure_statistics(network)
        return networks

    def released(self) -> nn.Module:
        """The network to deploy, with the weights of the epoch that was chosen, or the mean of the last ones."""
        if self.job.all_members:
            return self.members()[0]
        self.student.eval()
        network = self._network()
        assert network is not None
        self.state.restore_best(network)
        if self.state.restore_mean(network):
            self._measure_statistics(network)
        return network

    def _measure_statistics(self, network: nn.Module) -> None:
        """BatchNorm's, of weights that never saw a batch together: each process on its share, then their mean."""
        recompute_statistics(network, self.job.batches(0, 0))
        for name, value in network.named_buffers():
            if value.is_floating_point() and name.endswith(("running_mean", "running_var")):
                value.copy_(self.team.total(value) / self.team.world)

    def _network(self, *, keep: bool = True) -> nn.Module | None:
        """The network as it would be released now. One in pieces is put together by all processes, for those that
        `keep` it."""
        if self.pieces is None:
            network: nn.Module = self.student.release()
            return network
        whole = self.pieces.whole(keep=keep)
        return None if whole is None else whole.eval().to(self.device).release()

    def _epoch(self, epoch: int, step: int) -> Iterator[None]:
        """An epoch from a step on, to its record and its checkpoint."""
        job, began = self.job, time.perf_counter()
        self.student.train()
        for done in self._replayed(epoch, step) if self.captured is not None else self._stepped(epoch, step):
            if done < job.steps_per_epoch and (signals.asked() or done % job.checkpoint_every == 0):
                if self.wants_saving():
                    began = self.save(epoch, done, began)
                signals.stop_if_asked()
            yield
        self.end_epoch(epoch, began)
        signals.stop_if_asked()

    def end_epoch(self, epoch: int, began: float, *, saves: bool | None = None) -> None:
        """The epoch's record, and its checkpoint; `saves` is what runs that go together have agreed on."""
        job = self.job
        error = None
        if epoch >= job.recipe.epochs - job.recipe.average:
            with nullcontext() if self.captured is None else self.captured.turn():
                self.state.add_to_mean(self.student if job.all_members else self.student.release())
        if self.captured is None or self.on_epoch is not None or job.validate is not None:
            self._look()
            self.student.eval()
            told = self.on_epoch is not None and self.team.rank == 0
            released = self._network(keep=told or job.validate is not None)
            if job.validate is not None and released is not None:
                error = job.validate(released)
                self.state.keep_best(released, error)
            self._clock(began)
            record = self.state.epoch_record(epoch, job.recipe.epochs, error)
            if self.on_epoch is not None and self.team.rank == 0 and released is not None:
                self.on_epoch(record, released)
        else:
            # Nobody asks: the next epoch can be enqueued at once.
            with self.captured.turn():
                self.state.forget()
        if self.wants_saving() if saves is None else saves:
            self._look()
            self._save(epoch + 1, 0)
        elif epoch + 1 == job.recipe.epochs:
            self._look()

    def wants_saving(self) -> bool:
        """Whether a state is to be saved where one may be; a captured run, of quick steps, saves seldom."""
        if self.job.checkpoint is None:
            return False
        at_once = self.captured is None or self.device.type == "cpu" or signals.asked()
        return at_once or pace.OF_THIS_PROCESS.allows(self.saved)

    def save(self, epoch: int, done: int, began: float) -> float:
        """The state within an epoch that was gone on with at `began`; returns when it goes on from here."""
        self._look()
        now = self._clock(began)
        self._save(epoch, done)
        return now

    def _save(self, epoch: int, step: int) -> None:
        assert self.job.checkpoint is not None
        with nullcontext() if self.captured is None else pace.OF_THIS_PROCESS.saving():
            self.state.save(self.job.checkpoint, epoch, step, self.job.facts)
        self.saved = pace.OF_THIS_PROCESS.clock()

    def _look(self) -> None:
        """Raises when a loss was not finite; of a captured run all that was enqueued is done afterwards."""
        if self.captured is None:
            self.watch.look()
            return
        bad = self.captured.first_bad()
        if bad is not None:
            epoch, step = divmod(bad, self.job.steps_per_epoch)
            self.watch.stop(epoch, step, self.captured.rows(epoch, step))

    def _clock(self, began: float) -> float:
        now = time.perf_counter()
        self.state.seconds += now - began
        return now

    def _stepped(self, epoch: int, step: int) -> Iterator[int]:
        """The plain loop: yields how many of the epoch's updates are done."""
        job, after_step = self.job, getattr(self.student, "after_step", None)
        for done, batch in enumerate(job.batches(epoch, step), start=step + 1):
            before = epoch * job.steps_per_epoch + done - 1
            with memory_explained(job.recipe, f"epoch {epoch}, step {done - 1}", job.checkpoint):
                share = rate(job.recipe, before, job.recipe.epochs * job.steps_per_epoch)
                for group in self.optimiser.param_groups:
                    group["lr"] = job.recipe.learning_rate * group.get("rate", 1.0) * share
                result = self.update(batch, self.references)
            self.state.add(result, batch.y)
            self.watch.note(result.loss, epoch, done - 1, batch)
            if after_step is not None:
                after_step(before + 1)
            yield done

    def _replayed(self, epoch: int, step: int) -> Iterator[int]:
        """The captured loop: the same updates, only enqueued."""
        assert self.captured is not None
        after_step = getattr(self.student, "after_step", None)
        self.captured.step.seek(epoch, step)
        for done in range(step + 1, self.job.steps_per_epoch + 1):
            self.captured.step.replay()
            if after_step is not None:
                with self.captured.turn():
                    after_step(epoch * self.job.steps_per_epoch + done)
            yield done

    def autocast(self) -> AbstractContextManager[Any]:
        if self.job.recipe.precision != "bf16":
            return nullcontext()
        # A cast weight that is kept for a second use would be part of one replay and stale in the next.
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=self.device.type != "cuda")

    def update(self, batch: Batch, references: Mapping[str, Reference]) -> Step:
        """One update, the gradients of the batch's parts added up."""
        recipe = self.job.recipe
        results = []
        parts = parts_of(batch, recipe.accumulate)
        for number, part in enumerate(parts, 1):
            with nullcontext() if number == len(parts) else self.team.summing_later(self.called):
                for casts in self.casts:
                    casts.begin()
                with self.autocast():
                    result = self.method(self.shown, references, part)
                (result.loss * (len(part.y) / len(batch.y))).backward()
                for casts in self.casts:
                    casts.end()
            results.append((len(part.y) / len(batch.y), result))
        self.apply()
        return whole_step(results)

    def apply(self) -> None:
        """The optimiser's step by the gradients that are there, which are gone afterwards."""
        if self.job.recipe.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.student.parameters(), self.job.recipe.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
