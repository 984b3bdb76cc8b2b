"""A whole update on scikit-learn's digits, on two CPU cores: what each remedy does to error and flips.

An old network (32 hidden units) is replaced by a new one (128). Each treatment sees the same old/new pairs:

    none      both trained by cross-entropy
    fd_lm     the new one distilled from the old, harder where the old was right (focal distillation)
    elodi     both distilled from an ensemble of their own kind (m = 8), for twice as long
    paragon   the ensembles themselves, at m times the inference cost

The setting was chosen on the pairs of seeds 100 to 113; the demo shows seeds 0 to 5.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special

from flipguard import metrics
from flipguard.data import Augmentation, DataSet, load_data, subset
from flipguard.ensembles import NetworkReference
from flipguard.methods import Elodi, FocalDistillation, LogitDifference, NoTreatment
from flipguard.metrics import Tally, tally
from flipguard.training import ModelSpec, Recipe, Seeds, predict_logits, train_network
from flipguard.types import InputError, MissingExtra

OLD, NEW = ModelSpec("mlp", {"hidden": (32,)}), ModelSpec("mlp", {"hidden": (128,)})
MEMBERS = 8
RECIPE = Recipe(epochs=60, batch_size=50, learning_rate=0.1, weight_decay=5e-4, schedule="one_cycle", clip_norm=5.0)
# A patient student: the longer it is held to the ensemble, the nearer it comes.
PATIENT = replace(RECIPE, epochs=120)
SHIFT = Augmentation(crop_padding=1, flip=False)
ELODI = Elodi(alpha=0.8, difference=LogitDifference(reduction="sum"))
FOCAL = FocalDistillation(distance="logits", strength=0.1)
TREATMENTS = ("none", "fd_lm", "elodi", "paragon")
FIGURES = (
    "error_rate_old",
    "error_rate_new",
    "negative_flip_rate",
    "positive_flip_rate",
    "relative_negative_flip_rate",
    "churn",
)

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Outcome:
    """One treatment over all pairs: a tally for each pair."""

    method: str
    pairs: tuple[Tally, ...]

    def values(self, figure: str) -> npt.NDArray[np.float64]:
        """The figure of each pair, as a fraction."""
        return np.array([float(metrics.FIGURES[figure](pair)) for pair in self.pairs])

    def summary(self) -> dict[str, Any]:
        """Fields as in `flipguard compare --json`: the mean over pairs with Student's 95 % interval."""
        found: dict[str, Any] = {
            "method": self.method,
            "pairs": len(self.pairs),
            "members": MEMBERS,
            "n": int(self.pairs[0].count.sum()),
            "negative_flips": [int(pair.count[1]) for pair in self.pairs],
            "positive_flips": [int(pair.count[2]) for pair in self.pairs],
        }
        for figure in FIGURES:
            values = self.values(figure)
            reach = special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values))
            mean = float(values.mean())
            found[figure] = {"value": mean, "low": mean - float(reach), "high": mean + float(reach)}
        return found


def digits() -> DataSet:
    """40 samples of each digit to train on, 1,078 to test: few enough that retraining flips something."""
    return subset(load_data({"name": "digits", "test_size": 0.6}), per_class=40, seed=0)


def run_pair(seed: int) -> dict[str, Tally]:
    """All treatments of one old/new pair. Nothing is shared with another pair but the data."""
    torch.set_num_threads(1)
    data = digits()

    def train(model: ModelSpec, method: Any, place: int, references: Mapping[str, Any] | None = None) -> Any:
        recipe = PATIENT if method is ELODI else RECIPE
        seeds = Seeds.of(10_000 * seed + place)
        return train_network(model, data, method, recipe, seeds=seeds, references=references, augmentation=SHIFT)

    old = [train(OLD, NoTreatment(), place) for place in range(MEMBERS)]
    new = [train(NEW, NoTreatment(), 1_000 + place) for place in range(MEMBERS)]
    focal = train(NEW, FOCAL, 1_500, {"old": NetworkReference("old", old[:1])})
    elodi_old = train(OLD, ELODI, 1_600, {"ensemble": NetworkReference("ensemble", old)})
    elodi_new = train(NEW, ELODI, 1_601, {"ensemble": NetworkReference("ensemble", new)})

    def said(*networks: Any) -> Logits:
        mean: Logits = np.mean([predict_logits(network, data) for network in networks], axis=0)
        return mean

    pairs = {
        "none": (said(old[0]), said(new[0])),
        "fd_lm": (said(old[0]), said(focal)),
        "elodi": (said(elodi_old), said(elodi_new)),
        "paragon": (said(*old), said(*new)),
    }
    label = data.test.y.numpy()
    return {name: tally(label, a.argmax(axis=1), b.argmax(axis=1)) for name, (a, b) in pairs.items()}


def run(
    seeds: Sequence[int] = range(6), *, processes: int | None = None, on_pair: Callable[[int], None] | None = None
) -> list[Outcome]:
    """Every treatment on every pair; `on_pair` is told how many are done."""
    if len(seeds) < 2:
        raise InputError(f"the demo needs at least two pairs for its intervals, {len(seeds)} came.")
    workers = min(processes or os.cpu_count() or 1, len(seeds))
    found: dict[int, dict[str, Tally]] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        tasks = {pool.submit(run_pair, seed): seed for seed in seeds}
        for task in as_completed(tasks):
            found[tasks[task]] = task.result()
            if on_pair is not None:
                on_pair(len(found))
    return [Outcome(name, tuple(found[seed][name] for seed in seeds)) for name in TREATMENTS]


def draw(outcomes: Sequence[Outcome], path: str | Path) -> None:
    """Error of the new model against negative flip rate: a small point per pair, a large one for the mean."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("the picture needs matplotlib: pip install 'flipguard[demo]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4.5), layout="constrained")
    for outcome in outcomes:
        wrong, flips = 100 * outcome.values("error_rate_new"), 100 * outcome.values("negative_flip_rate")
        points = axes.scatter(wrong, flips, s=18, alpha=0.35)
        axes.scatter(wrong.mean(), flips.mean(), s=110, color=points.get_facecolor()[0, :3], label=outcome.method)
    axes.set(xlabel="error of the new model, %", ylabel="negative flip rate, %", xlim=(0, None), ylim=(0, None))
    axes.set_title("Lower left is better: fewer errors, fewer new ones")
    axes.legend()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
