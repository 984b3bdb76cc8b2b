"""The state of a training run: everything that a resume needs to give the same bits, and the sums of an epoch."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.checkpoints import load_checkpoint, load_weights, nested, save_checkpoint
from flipguard.training.distributed import Team
from flipguard.training.errors import TrainingError, last_good
from flipguard.training.sharding import cut_as, gathered
from flipguard.types import InputError, Step


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch: the mean of each loss term, the errors, and how long it took.

    `validation_error` is None unless the run chooses its epoch by it.
    """

    epoch: int
    epochs: int
    terms: Mapping[str, float]
    train_error: float
    learning_rate: float
    seconds: float
    validation_error: float | None = None


class TrainingState:
    """Weights, optimiser, random state, the epoch's sums so far, the best epoch's weights or a mean of several."""

    def __init__(self, student: nn.Module, optimiser: Any, device: str, team: Team) -> None:
        self._student, self._optimiser, self._device, self._team = student, optimiser, device, team
        self._sums: dict[str, Tensor] = {}
        self._best: dict[str, Tensor] = {}
        self._best_error = float("inf")
        self._mean: dict[str, Tensor] = {}
        self._averaged = 0
        # A network in pieces is one that a device has no room for twice.
        self._best_device = "cpu" if team.sharded else device
        self.seconds = 0.0
        self.engine: str | None = None
        """What carries the updates out; it is saved, as it decides the bits on a GPU."""

    def add(self, step: Step, y: Tensor) -> None:
        """Sums stay on the device: nothing here waits for it."""
        wrong = (step.logits[0].argmax(dim=-1) != y).double().sum()
        self._accumulate("wrong", wrong)
        self._accumulate("rows", torch.full_like(wrong, len(y)))
        for name, term in step.terms.items():
            self._accumulate(f"term.{name}", term.double() * len(y))

    def _accumulate(self, name: str, value: Tensor) -> None:
        # In place: a captured step adds to the same memory at every replay.
        if name not in self._sums:
            self._sums[name] = torch.zeros_like(value)
        self._sums[name].add_(value)

    def moving(self) -> list[Tensor]:
        """Every tensor that a step changes: weights, statistics, the optimiser's, the sums."""
        optimiser = [v for values in self._optimiser.state.values() for v in values.values() if isinstance(v, Tensor)]
        return [*self._student.state_dict().values(), *optimiser, *self._sums.values()]

    def _totals(self) -> dict[str, Tensor]:
        # In one order in every process: a loaded file's is not the order in which they were first added.
        return {name: self._team.total(self._sums[name]) for name in sorted(self._sums)}

    def epoch_record(self, epoch: int, epochs: int, validation_error: float | None) -> Epoch:
        """The epoch's means; the sums start anew."""
        totals = self._totals()
        rows = float(totals["rows"])
        terms = {name: float(total) / rows for name, total in nested(totals, "term.").items()}
        wrong, rate = float(totals["wrong"]) / rows, float(self._optimiser.param_groups[0]["lr"])
        record = Epoch(epoch, epochs, terms, wrong, rate, self.seconds, validation_error)
        self.forget()
        return record

    def forget(self) -> None:
        """The epoch's sums start anew."""
        for total in self._sums.values():
            total.zero_()
        self.seconds = 0.0

    def keep_best(self, network: nn.Module, error: float) -> None:
        """Keep a copy of the released weights when no earlier epoch was as good."""
        if error < self._best_error:
            self._best_error = error
            self._best = {
                name: value.detach().to(self._best_device, copy=True) for name, value in network.state_dict().items()
            }

    def restore_best(self, network: nn.Module) -> None:
        """Put the best epoch's weights into the released network, when one was chosen."""
        if self._best:
            network.load_state_dict(self._best)

    @torch.no_grad()
    def add_to_mean(self, network: nn.Module) -> None:
        """One more epoch's weights in the mean that is kept. Nothing here waits for the device."""
        self._averaged += 1
        for name, value in network.state_dict().items():
            if name not in self._mean or not value.is_floating_point():
                self._mean[name] = value.detach().clone()
            else:
                self._mean[name].lerp_(value.detach(), 1 / self._averaged)

    def restore_mean(self, network: nn.Module) -> bool:
        """Put the mean into what it was taken of; False when there is none."""
        if self._mean:
            network.load_state_dict(self._mean)
        return bool(self._mean)

    def save(self, path: Path, epoch: int, step: int, facts: Mapping[str, Any] | None) -> None:
        """Write what a resume needs; the first process of a team writes, weights that are not finite never."""
        tensors, scalars = self._tensors(self._totals())
        if self._team.rank == 0:
            for name, value in nested(tensors, "student.").items():
                if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                    raise TrainingError(
                        f"{name} is not finite before epoch {epoch}, step {step}, though the loss still was: lower the "
                        f"learning rate, warm up longer, or set clip_norm.{last_good(path)}"
                    )
            place = {"epoch": epoch, "step": step, "seconds": self.seconds, "best_error": self._best_error}
            if not self._best:
                place.pop("best_error")
            if self._mean:
                place["averaged"] = self._averaged
            how = {} if self.engine is None else {"engine": self.engine}
            save_checkpoint(path, tensors, {**place, **how, "optimiser": scalars, "run": facts or {}})
        self._team.wait()

    def _tensors(self, totals: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
        """In every process, as all have a part in what is in pieces; the first has the whole."""
        tensors = {f"student.{name}": value for name, value in self._student.state_dict().items()}
        tensors |= {f"best.{name}": value for name, value in self._best.items()}
        tensors |= {f"mean.{name}": value for name, value in self._mean.items()}
        tensors |= {f"sums.{name}": value for name, value in totals.items()}
        scalars: dict[str, dict[str, Any]] = {}
        for number, values in self._optimiser.state_dict()["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimiser.{number}.{name}"] = value
                else:
                    scalars.setdefault(str(number), {})[name] = value
        tensors["random.cpu"] = torch.get_rng_state()
        if torch.device(self._device).type == "cuda":
            tensors["random.cuda"] = torch.cuda.get_rng_state(self._device)
        return gathered(tensors, keep=self._team.rank == 0), scalars

    def load(self, path: Path, run: Mapping[str, Any] | None) -> tuple[int, int]:
        """Put everything back; returns the epoch and the step to go on with."""
        tensors, facts = load_checkpoint(path)
        if "epoch" not in facts or "random.cpu" not in tensors:
            raise InputError(f"{path} holds no training state: it is a network's weights, or another program's file.")
        _check_same_run(path, facts.get("run", {}), run or {})
        own = self._student.state_dict()
        weights = {name: cut_as(own.get(name, value), value) for name, value in nested(tensors, "student.").items()}
        load_weights(self._student, weights, path)
        state: dict[int, dict[str, Any]] = {}
        parameters = [p for group in self._optimiser.param_groups for p in group["params"]]
        for name, value in nested(tensors, "optimiser.").items():
            number, field = name.split(".", 1)
            like = parameters[int(number)]
            # In the parameter's own memory format, which fused updates insist on.
            fits = value.shape == like.shape
            laid_out = torch.empty_like(like).copy_(cut_as(like, value)) if fits else value
            state.setdefault(int(number), {})[field] = laid_out
        for number, values in facts.get("optimiser", {}).items():
            state.setdefault(int(number), {}).update(values)
        whole = self._optimiser.state_dict()
        self._optimiser.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
        # The file has the team's totals, and each process adds its own part to what it holds.
        self._sums = self._on_device(tensors, "sums.") if self._team.rank == 0 else {}
        self._best = {name: value.to(self._best_device) for name, value in nested(tensors, "best.").items()}
        self._best_error = float(facts.get("best_error", "inf"))
        self._mean, self._averaged = self._on_device(tensors, "mean."), int(facts.get("averaged", 0))
        self.seconds, self.engine = float(facts["seconds"]), facts.get("engine")
        self._set_random(tensors, int(facts["epoch"]), int(facts["step"]))
        return int(facts["epoch"]), int(facts["step"])

    def _on_device(self, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
        return {name: value.to(self._device) for name, value in nested(tensors, prefix).items()}

    def _set_random(self, tensors: Mapping[str, Tensor], epoch: int, step: int) -> None:
        if self._team.rank > 0:
            # The file has the first process's generator: with it, all would drop the same units from now on.
            torch.manual_seed(hash((self._team.rank, epoch, step)))
            return
        torch.set_rng_state(tensors["random.cpu"])
        if "random.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["random.cuda"], self._device)


def _check_same_run(path: Path, saved: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """A state goes on only with what it was begun with."""
    asked = json.loads(json.dumps(asked))
    for name in (*saved, *asked):
        if saved.get(name) != asked.get(name):
            raise InputError(
                f"{path} was begun with {name} {json.dumps(saved.get(name))}, and this run has "
                f"{json.dumps(asked.get(name))}: use the same, or another folder."
            )
