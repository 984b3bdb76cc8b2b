"""Figures of a version while it is trained, one line per epoch."""

from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from flipguard import metrics
from flipguard.releases import material
from flipguard.releases.folder import METRICS, Metrics
from flipguard.releases.references import Task
from flipguard.training import Epoch, predict_logits

FLIPS = ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")


class Watcher:
    """Called after each epoch: measures the network as it would be released, and writes the epoch's line.

    Figures are taken on the validation part where there is one, so that the test part is not looked at while choices
    are open; else on the test part, which nothing here chooses by.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._part = "validation" if "validation" in material.held_out(task.data) else "test"
        self._label = task.data.part(self._part).y.cpu().numpy()
        self._before = task.earlier[-1] if task.earlier else None
        self._old: npt.NDArray[np.int64] | None = None
        if self._before is not None:
            self._old = self._before.says(task.data, self._part, device=task.device)
        self._metrics = Metrics(task.home / METRICS)

    def __call__(self, epoch: Epoch, network: nn.Module) -> None:
        task = self._task
        said = predict_logits(network, task.data, self._part, device=task.device).argmax(axis=-1)
        line = {
            "epoch": epoch.epoch,
            "epochs": epoch.epochs,
            "terms": dict(epoch.terms),
            "train_error": epoch.train_error,
            "validation_error": epoch.validation_error,
            "learning_rate": epoch.learning_rate,
            "seconds": round(epoch.seconds, 3),
            "part": self._part,
            **self._figures(said),
        }
        self._metrics.add(line)
        task.listener.epoch(task.name, line)

    def _figures(self, said: npt.NDArray[np.int64]) -> dict[str, Any]:
        known = self._label >= 0
        if self._old is None:
            wrong = said[known] != self._label[known]
            return {"old": None, "error_rate_new": float(wrong.mean()) if len(wrong) else None}
        counted = metrics.tally(self._label[known], self._old[known], said[known])
        found = {name: _number(metrics.FIGURES[name](counted)) for name in FLIPS}
        return {"old": self._before.name if self._before else None, **found}


def _number(value: Any) -> float | None:
    """JSON has no NaN: a rate over nothing is null."""
    return float(value) if np.isfinite(value) else None
