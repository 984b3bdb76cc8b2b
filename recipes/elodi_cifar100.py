"""ELODI against its baselines on CIFAR-100: ResNet-10 (width 32) is replaced by ResNet-18 (width 32).

    python recipes/elodi_cifar100.py --data DATA --seed 0 --out OUT

Members and treatments are networks like any other, each trained in a process of its own; several may share one GPU,
though on an H200 processes take turns: eight members together took about as long as one after another. 45,000
samples train, 5,000 are held out to choose on, 10,000 test. A network that OUT already holds is not trained again.

OUT/seed_<S>.json: per treatment the counts of the five outcomes, on validation and on test, and seconds per network.
`recipes/table.py OUT` turns them into results/elodi_cifar100.md.
"""

import argparse
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.checkpoints import load_checkpoint, save_checkpoint
from flipguard.data import Augmentation, DataSet, load_data, split_validation, subset
from flipguard.ensembles import NetworkReference
from flipguard.methods import Distillation, Elodi, FocalDistillation, Ldi, LogitDifference, NoTreatment
from flipguard.metrics import tally
from flipguard.training import ModelSpec, Recipe, Seeds, TrainingError, predict_logits, train_network

OLD, NEW = ModelSpec("resnet10", {"width": 32}), ModelSpec("resnet18", {"width": 32})
RECIPE = Recipe(
    epochs=16,
    batch_size=512,
    learning_rate=0.4,
    weight_decay=5e-4,
    schedule="one_cycle",
    precision="bf16",
    channels_last=True,
    clip_norm=5.0,
)
TEN = LogitDifference(k=10, ranked_by="either")
# Old and new alike are distilled by ELODI; the targeted methods leave the old model as it is.
ENSEMBLE_METHODS: dict[str, Any] = {
    "elodi": Elodi(),
    "elodi_long": Elodi(),
    "elodi_long_0.9": Elodi(alpha=0.9),
    "elodi_k10_long": Elodi(difference=TEN),
    "ensemble_kd_long": Distillation(reference="ensemble", alpha=0.9),
}
TARGETED_METHODS: dict[str, Any] = {
    "kd": Distillation(),
    "fd_lm": FocalDistillation(strength=0.02),
    "fd_kl": FocalDistillation(distance="kl", strength=0.1),
    "ldi": Ldi(),
}


@dataclass(frozen=True)
class Task:
    """One network to train: held to the networks named in `held_to`, as the reference of that name."""

    name: str
    model: ModelSpec
    method: Any
    seed: int
    reference: str = ""
    held_to: tuple[str, ...] = ()
    longer: float = 1.0


@dataclass(frozen=True)
class Setting:
    data: str
    out: str
    device: str
    epochs: int
    batch_size: int
    per_class: int | None


def load(setting: Setting) -> DataSet:
    data = load_data("mosaic:cifar100", folder=setting.data)
    data = split_validation(data, size=5_000, seed=0)
    if setting.per_class is None:
        return data
    few = {part: data.part(part).select(range(200)) for part in ("validation", "test")}
    return replace(subset(data, per_class=setting.per_class), **few)


_DATA: DataSet | None = None


def run(task: Task, setting: Setting) -> tuple[str, float]:
    """Train one network, and write its weights and what it says of validation and test."""
    global _DATA
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    folder = Path(setting.out)
    if (folder / f"{task.name}.npz").exists():
        return task.name, 0.0
    began = time.perf_counter()
    if _DATA is None:
        _DATA = load(setting).to(setting.device)
    recipe = replace(RECIPE, epochs=round(setting.epochs * task.longer), batch_size=setting.batch_size)
    references = {}
    if task.held_to:
        networks = [restore(name, folder, setting.device) for name in task.held_to]
        references[task.reference] = NetworkReference(task.reference, networks).to(setting.device)
    try:
        network = train_network(
            task.model,
            _DATA,
            task.method,
            recipe,
            seeds=Seeds.of(task.seed),
            references=references,
            augmentation=Augmentation(),
            device=setting.device,
        )
    except TrainingError as error:
        # A treatment that diverges is missing from the table; the others go on.
        print(f"{task.name}: {error}", flush=True)
        return task.name, float("nan")
    save_checkpoint(folder / f"{task.name}.safetensors", network.state_dict(), {"model": task.model.name})
    said = {part: predict_logits(network, _DATA, part, device=setting.device) for part in ("validation", "test")}
    np.savez(folder / f"{task.name}.npz", **said)
    return task.name, time.perf_counter() - began


def restore(name: str, folder: Path, device: str) -> torch.nn.Module:
    spec = OLD if "old" in name else NEW
    network = spec.build(100, 0)
    network.load_state_dict(load_checkpoint(folder / f"{name}.safetensors")[0])
    return network.to(device, memory_format=torch.channels_last)


def tasks(seed: int, members: int, wanted: list[str]) -> tuple[list[Task], list[Task]]:
    base = 100_000 * (seed + 1)
    sides = (("old", OLD), ("new", NEW))
    first = [
        Task(f"{side}_{j}", spec, NoTreatment(), base + 1_000 * k + j)
        for k, (side, spec) in enumerate(sides)
        for j in range(members)
    ]
    second = []
    for place, (name, method) in enumerate(ENSEMBLE_METHODS.items()):
        for k, (side, spec) in enumerate(sides):
            held_to = tuple(f"{side}_{j}" for j in range(members))
            number = base + 10_000 + 100 * place + k
            second.append(
                Task(f"{name}_{side}", spec, method, number, "ensemble", held_to, 2.0 if "long" in name else 1.0)
            )
    for place, (name, method) in enumerate(TARGETED_METHODS.items()):
        second.append(Task(f"{name}_new", NEW, method, base + 20_000 + place, "old", ("old_0",)))
    kept = [task for task in second if not wanted or task.name.rsplit("_", 1)[0] in wanted]
    # The longest first, so that no process is left alone with one at the end.
    return first, sorted(kept, key=lambda task: -task.longer * (1 + len(task.held_to)))


def pairs(members: int, trained: set[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Which networks make up the old and the new model of each treatment."""
    everyone = {side: [f"{side}_{j}" for j in range(members)] for side in ("old", "new")}
    found = {f"none_{j}": ([f"old_{j}"], [f"new_{j}"]) for j in range(members)}
    found |= {f"paragon_{m}": (everyone["old"][:m], everyone["new"][:m]) for m in (2, 4, 8, 16) if m <= members}
    found |= {name: (["old_0"], [f"{name}_new"]) for name in TARGETED_METHODS}
    found |= {name: ([f"{name}_old"], [f"{name}_new"]) for name in ENSEMBLE_METHODS}
    return {name: (old, new) for name, (old, new) in found.items() if {*old, *new} <= trained}


def outcomes(setting: Setting, members: int, data: DataSet) -> dict[str, dict[str, list[int]]]:
    folder = Path(setting.out)
    trained = {path.stem for path in folder.glob("*.npz")}
    said = {name: dict(np.load(folder / f"{name}.npz")) for name in trained}
    found: dict[str, dict[str, list[int]]] = {}
    for name, (old, new) in pairs(members, trained).items():
        found[name] = {}
        for part in ("validation", "test"):
            label = data.part(part).y.cpu().numpy()
            old_says, new_says = (np.mean([said[n][part] for n in side], axis=0).argmax(1) for side in (old, new))
            found[name][part] = tally(label, old_says, new_says).count[:5].tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a folder that holds cifar100/ as mosaics")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where networks are kept (default: OUT)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--batch-size", type=int, default=RECIPE.batch_size)
    parser.add_argument("--per-class", type=int, help="a trial run: so few training samples, and 200 to test")
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--treatments", nargs="*", default=[], help="only these (default: all)")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = (given.work or given.out) / f"seed_{given.seed}"
    work.mkdir(parents=True, exist_ok=True)
    setting = Setting(given.data, str(work), device, given.epochs, given.batch_size, given.per_class)
    began, seconds = time.perf_counter(), {}
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for stage in tasks(given.seed, given.members, given.treatments):
            for name, took in pool.map(run, stage, [setting] * len(stage)):
                seconds[name] = round(took, 1)
                print(f"{time.perf_counter() - began:7.1f} s  {name}  {took:.1f} s", flush=True)
    record = {
        "seed": given.seed,
        "members": given.members,
        "epochs": given.epochs,
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "wall_seconds": round(time.perf_counter() - began, 1),
        "seconds": seconds,
        "outcomes": outcomes(setting, given.members, load(setting)),
    }
    (given.out / f"seed_{given.seed}.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
