"""What makes two trainings of one network disagree, and what the churn paper's remedies do about it.

    python recipes/churn_study.py --data digits --out OUT
    python recipes/churn_study.py --data cifar100 --root DATA --out OUT

Networks are trained several times each, and all pairs of one row's runs are compared on the test part (Bhojanapalli et
al. 2021, Definitions 1 and 2). Three tables, as `--tables` asks:

    causes    the runs hold initialisation, order and augmentation fixed in any combination, or go without augmentation
              (Tables 1 and 6); with all held, what is left is the hardware's own nondeterminism: none on a CPU
    methods   the remedies and the paper's baselines, the 2-ensemble included (Tables 2 and 7), and co-distillation from
              a fixed initialisation, which is the same in every run but differs between its two networks
    decay     the remedies without weight decay (Table 3)

Coefficients are the paper's for that data (Table 5; for digits those of CIFAR-10). Nothing is chosen on the test part.
OUT/churn_study.json has each pair's figures, OUT/networks what each network said; one that is there is not trained
again, so other settings need another OUT. The ± is the standard deviation over pairs, which share runs: it is no
standard error.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard import metrics
from flipguard.checkpoints import load_checkpoint, save_checkpoint
from flipguard.data import Augmentation, DataSet, load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import METHODS, build_method
from flipguard.metrics import tally
from flipguard.training import ModelSpec, Recipe, Seeds, predict_logits, train_network

STREAMS = ("initialisation", "order", "augment")
GPU = Recipe(
    epochs=16,
    batch_size=512,
    learning_rate=0.4,
    weight_decay=5e-4,
    schedule="one_cycle",
    precision="bf16",
    channels_last=True,
    clip_norm=5.0,
)
CPU = Recipe(epochs=20, batch_size=64, learning_rate=0.1, weight_decay=5e-4, schedule="one_cycle", clip_norm=5.0)
# Network, recipe, augmentation, and the data set whose coefficients of Table 5 are taken.
PRESETS: dict[str, tuple[ModelSpec, Recipe, Augmentation, str]] = {
    "digits": (ModelSpec("mlp", {"hidden": (32,)}), CPU, Augmentation(crop_padding=1, flip=False), "cifar10"),
    "cifar10": (ModelSpec("resnet18", {"width": 32}), GPU, Augmentation(), "cifar10"),
    "cifar100": (ModelSpec("resnet18", {"width": 32}), GPU, Augmentation(), "cifar100"),
}
TEMPERATURES = {"cifar10": 3.0, "cifar100": 4.0}
FIGURES = {
    "accuracy": lambda pair: 1 - (metrics.error_rate_old(pair) + metrics.error_rate_new(pair)) / 2,
    "churn": metrics.churn,
    "surrogate churn": metrics.surrogate_churn,
    "churn correct": metrics.churn_correct,
    "churn incorrect": metrics.churn_incorrect,
}


@dataclass(frozen=True)
class Task:
    """One network: a row of a table, which of its runs, and for an ensemble which member."""

    row: str
    run: int
    method: str = "none"
    options: tuple[tuple[str, Any], ...] = ()
    held: tuple[str, ...] = ()
    augment: bool = True
    decay: bool = True
    member: int = 0
    held_to: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.row}-{self.run}-{self.member}".replace(" ", "_")

    def seeds(self) -> Seeds:
        """A stream that is held starts alike in every run."""
        own = 1_000 * (self.run + 1) + 100_003 * self.member
        return Seeds(*(7 if stream in self.held else own for stream in STREAMS))


@dataclass(frozen=True)
class Setting:
    data: str
    root: str | None
    out: str
    device: str
    model: ModelSpec
    recipe: Recipe
    augmentation: Augmentation


_DATA: DataSet | None = None


def run(task: Task, setting: Setting) -> tuple[str, float]:
    """Train one network, and write its weights and what it says of the test part."""
    global _DATA
    torch.set_num_threads(1)
    folder = Path(setting.out)
    if (folder / f"{task.name}.npy").exists():
        return task.name, 0.0
    began = time.perf_counter()
    if _DATA is None:
        _DATA = load_data(setting.data, folder=setting.root).to(setting.device)
    references = {}
    if task.held_to:
        networks = [restore(name, setting, len(_DATA.classes)) for name in task.held_to]
        references["ensemble"] = NetworkReference("ensemble", networks)
    network = train_network(
        setting.model,
        _DATA,
        build_method(task.method, **dict(task.options)),
        setting.recipe if task.decay else replace(setting.recipe, weight_decay=0.0),
        seeds=task.seeds(),
        references=references,
        augmentation=setting.augmentation if task.augment else None,
        device=setting.device,
    )
    save_checkpoint(folder / f"{task.name}.safetensors", network.state_dict(), {"model": setting.model.name})
    np.save(folder / f"{task.name}.npy", predict_logits(network, _DATA, device=setting.device))
    return task.name, time.perf_counter() - began


def restore(name: str, setting: Setting, classes: int) -> torch.nn.Module:
    network = setting.model.build(classes, 0)
    network.load_state_dict(load_checkpoint(Path(setting.out) / f"{name}.safetensors")[0])
    return network.to(setting.device)


def causes(runs: int) -> list[Task]:
    """Every combination of streams held, then the same without augmentation, which leaves two streams."""
    found = []
    for augment, streams in ((True, STREAMS), (False, STREAMS[:2])):
        for held in chain.from_iterable(combinations(streams, n) for n in range(len(streams) + 1)):
            row = f"{'' if augment else 'no augmentation, '}held: {', '.join(held) or 'nothing'}"
            found += [Task(row, r, held=held, augment=augment) for r in range(runs)]
    return found


def remedies(runs: int, coefficients: str, given: dict[str, dict[str, Any]], *, decay: bool) -> list[Task]:
    """The plain members first: the distilled networks are held to two of them."""
    end = "" if decay else ", no weight decay"
    plain = [Task(f"none{end}", r, decay=decay, member=j) for r in range(runs) for j in range(2)]
    variants: dict[str, tuple[str, dict[str, Any]]] = {
        name: (name, dict(METHODS[name].settings[coefficients]))
        for name in ("entropy", "skl", "codistill_ce", "codistill_skl")
    }
    variants["codistill_skl+entropy"] = (
        "codistill_skl",
        dict(METHODS["codistill_skl"].settings[f"{coefficients}+entropy"]),
    )
    variants["codistill_l1"] = ("codistill_l1", dict(METHODS["codistill_skl"].settings[coefficients]))
    variants["ensemble_kd"] = ("ensemble_kd", {"temperature": TEMPERATURES[coefficients]})
    found = []
    for row, (method, options) in variants.items():
        chosen = tuple({**options, **given.get(row, {})}.items())
        for r in range(runs):
            teachers = tuple(task.name for task in plain if task.run == r) if method == "ensemble_kd" else ()
            # Started like no treatment, but for the distilled network: that would be one of its own teachers again.
            member = len(teachers)
            found.append(Task(f"{row}{end}", r, method, chosen, decay=decay, member=member, held_to=teachers))
    chosen = tuple({**variants["codistill_skl"][1], **given.get("codistill_skl", {})}.items())
    fixed = ("initialisation",)
    found += [
        Task(f"codistill_skl, held: {fixed[0]}{end}", r, "codistill_skl", chosen, held=fixed, decay=decay)
        for r in range(runs)
    ]
    return plain + found


def said(tasks: list[Task], folder: Path) -> dict[str, list[np.ndarray]]:
    """Per row, the logits of each run. Two plain members of a run are also an ensemble."""
    found: dict[str, list[np.ndarray]] = {}
    members: dict[tuple[str, int], list[np.ndarray]] = {}
    for task in tasks:
        members.setdefault((task.row, task.run), []).append(np.load(folder / f"{task.name}.npy"))
    for (row, _), logits in members.items():
        found.setdefault(row, []).append(logits[0])
        if len(logits) > 1:
            found.setdefault(row.replace("none", "2-ensemble"), []).append(np.mean(logits, axis=0))
    return found


def figures(runs: list[np.ndarray], label: np.ndarray) -> dict[str, list[float]]:
    """In percent, for each pair of runs."""
    pairs = [tally(label, None, None, old_logits=a, new_logits=b) for a, b in combinations(runs, 2)]
    return {name: [100 * float(figure(pair)) for pair in pairs] for name, figure in FIGURES.items()}


def table(rows: dict[str, dict[str, list[float]]]) -> str:
    lines = [f"| | {' | '.join(f'{name} %' for name in FIGURES)} | pairs |", f"|---|{'---|' * (len(FIGURES) + 1)}"]
    for row, values in rows.items():
        cells = [
            f"{np.mean(pairs):.2f}" + (f" ± {np.std(pairs, ddof=1):.2f}" if len(pairs) > 1 else "")
            for pairs in values.values()
        ]
        lines.append(f"| {row} | {' | '.join(cells)} | {len(values['churn'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=PRESETS, default="digits")
    parser.add_argument("--root", help="the folder of the data; digits need none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tables", nargs="+", choices=("causes", "methods", "decay"), default=["causes", "methods"])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--model", help="another network by name, such as the paper's resnet56")
    parser.add_argument("--options", type=json.loads, default={}, help='per method: \'{"codistill_skl": {"beta": 1}}\'')
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    model, recipe, augmentation, coefficients = PRESETS[given.data]
    device = "cuda" if given.data != "digits" and torch.cuda.is_available() else "cpu"
    folder = given.out / "networks"
    folder.mkdir(parents=True, exist_ok=True)
    setting = Setting(
        given.data,
        given.root,
        str(folder),
        device,
        ModelSpec(given.model) if given.model else model,
        replace(recipe, epochs=given.epochs or recipe.epochs),
        augmentation,
    )
    tasks = causes(given.runs) if "causes" in given.tables else []
    for name, decay in (("methods", True), ("decay", False)):
        if name in given.tables:
            tasks += remedies(given.runs, coefficients, given.options, decay=decay)
    began, seconds = time.perf_counter(), {}
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for stage in ([t for t in tasks if not t.held_to], [t for t in tasks if t.held_to]):
            for name, took in pool.map(run, stage, [setting] * len(stage)):
                seconds[name] = round(took, 2)
    label = load_data(given.data, folder=given.root).test.y.numpy()
    rows = {row: figures(runs, label) for row, runs in said(tasks, folder).items()}
    record = {
        "data": given.data,
        "model": {"name": setting.model.name, **setting.model.options},
        "runs": given.runs,
        "epochs": setting.recipe.epochs,
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "wall_seconds": round(time.perf_counter() - began, 1),
        "seconds": seconds,
        "methods": {task.row: {"name": task.method, "options": dict(task.options)} for task in tasks},
        "rows": rows,
    }
    (given.out / "churn_study.json").write_text(json.dumps(record, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
