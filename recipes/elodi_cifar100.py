"""ELODI against its baselines on CIFAR-100: ResNet-10 (width 32) is replaced by ResNet-18 (width 32).

    python recipes/elodi_cifar100.py --data DATA --seed 0 --out OUT [--treatments elodi kd …]

45,000 samples train, 5,000 are held out to choose on, 10,000 test. Members train for 16 epochs, students for 32: no
treatment has a row of 32 epochs too. On a GPU the members take turns, then all students do. A network that WORK already
holds is not trained again, so more treatments can be added to a seed later.

OUT/seed_<S>.json: per treatment the counts of the five outcomes, on validation and on test. `recipes/table.py OUT`
turns them into results/elodi_cifar100_long.md.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flipguard.data import Augmentation, DataSet, load_data, split_validation, subset
from flipguard.ensembles import NetworkReference
from flipguard.methods import Distillation, Elodi, FocalDistillation, Ldi, LogitDifference, NoTreatment
from flipguard.metrics import tally
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, fit_members, predict_logits, take_turns

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
PATIENCE = 2
TEN = LogitDifference(k=10, ranked_by="either")
# Old and new alike are distilled by ELODI; the targeted methods leave the old model as it is.
ENSEMBLE_METHODS: dict[str, Any] = {
    "none_long": NoTreatment(),
    "elodi": Elodi(alpha=0.9),
    "elodi_0.8": Elodi(),
    "elodi_0.95": Elodi(alpha=0.95),
    "elodi_k10": Elodi(alpha=0.9, difference=TEN),
    "elodi_k10_0.8": Elodi(difference=TEN),
    "ensemble_kd": Distillation(reference="ensemble", alpha=0.9),
}
TARGETED_METHODS: dict[str, Any] = {
    "kd": Distillation(),
    "kd_0.9": Distillation(alpha=0.9),
    "fd_lm": FocalDistillation(strength=0.02),
    "fd_lm_0.005": FocalDistillation(strength=0.005),
    "fd_lm_0.1": FocalDistillation(strength=0.1),
    "fd_kl": FocalDistillation(distance="kl", strength=0.1),
    "fd_kl_0.3": FocalDistillation(distance="kl", strength=0.3),
    "fd_kl_1": FocalDistillation(distance="kl", strength=1.0),
    "ldi": Ldi(),
}


@dataclass(frozen=True)
class Student:
    """A network to train, held to others as the reference of that name."""

    name: str
    model: ModelSpec
    method: Any
    seed: int
    reference: str
    held_to: tuple[str, ...]


def load(folder: str, per_class: int | None) -> DataSet:
    data = split_validation(load_data("mosaic:cifar100", folder=folder), size=5_000, seed=0)
    if per_class is None:
        return data
    few = {part: data.part(part).select(range(200)) for part in ("validation", "test")}
    return replace(subset(data, per_class=per_class), **few)


def students(seed: int, members: int, wanted: list[str]) -> list[Student]:
    base = 100_000 * (seed + 1)
    found = []
    for place, (name, method) in enumerate(ENSEMBLE_METHODS.items()):
        for k, (side, model) in enumerate((("old", OLD), ("new", NEW))):
            held_to = tuple(f"{side}_{j}" for j in range(members))
            number = base + 10_000 + 100 * place + k
            found.append(Student(f"{name}_{side}", model, method, number, "ensemble", held_to))
    for place, (name, method) in enumerate(TARGETED_METHODS.items()):
        found.append(Student(f"{name}_new", NEW, method, base + 20_000 + place, "old", ("old_0",)))
    return [student for student in found if not wanted or student.name.rsplit("_", 1)[0] in wanted]


def pairs(members: int, trained: set[str]) -> dict[str, tuple[list[str], list[str]]]:
    """Which networks make up the old and the new model of each treatment."""
    everyone = {side: [f"{side}_{j}" for j in range(members)] for side in ("old", "new")}
    found = {f"none_{j}": ([f"old_{j}"], [f"new_{j}"]) for j in range(members)}
    found |= {f"paragon_{m}": (everyone["old"][:m], everyone["new"][:m]) for m in (2, 4, 8, 16) if m <= members}
    found |= {name: (["old_0"], [f"{name}_new"]) for name in TARGETED_METHODS}
    found |= {name: ([f"{name}_old"], [f"{name}_new"]) for name in ENSEMBLE_METHODS}
    return {name: (old, new) for name, (old, new) in found.items() if {*old, *new} <= trained}


def outcomes(said: dict[str, Any], members: int, data: DataSet) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for name, (old, new) in pairs(members, set(said)).items():
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
    parser.add_argument("--work", type=Path, help="where networks and predictions are kept (default: OUT)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=RECIPE.epochs)
    parser.add_argument("--batch-size", type=int, default=RECIPE.batch_size)
    parser.add_argument("--per-class", type=int, help="a trial run: so few training samples, and 200 to test")
    parser.add_argument("--treatments", nargs="*", default=[], help="only these (default: all)")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    work = (given.work or given.out) / f"seed_{given.seed}"
    work.mkdir(parents=True, exist_ok=True)
    data = load(given.data, given.per_class).to(device)
    recipe = replace(RECIPE, epochs=given.epochs, batch_size=given.batch_size)
    patient = replace(recipe, epochs=PATIENCE * given.epochs)
    began, seconds = time.perf_counter(), {}
    networks: dict[str, nn.Module] = {}
    for k, (side, model) in enumerate((("old", OLD), ("new", NEW))):
        seeds = [100_000 * (given.seed + 1) + 1_000 * k + j for j in range(given.members)]
        found = fit_members(
            model, data, recipe, seeds, folder=work / "members", augmentation=Augmentation(), device=device
        )
        networks |= {f"{side}_{j}": network.to(device) for j, network in enumerate(found)}
        seconds[f"members_{side}"] = round(time.perf_counter() - began, 1)
        print(f"{time.perf_counter() - began:7.1f} s  {given.members} {side} members", flush=True)
    kept = work / "said.npz"
    said: dict[str, dict[str, Any]] = {}
    if kept.exists():
        with np.load(kept) as before:
            for key in before:
                name, part = key.rsplit(".", 1)
                said.setdefault(name, {})[part] = before[key]
    todo = [student for student in students(given.seed, given.members, given.treatments) if student.name not in said]
    runs = {
        student.name: begin_network(
            student.model,
            data,
            student.method,
            patient,
            seeds=Seeds.of(student.seed),
            references={
                student.reference: NetworkReference(student.reference, [networks[name] for name in student.held_to])
            }
            if getattr(student.method, "needs", ())
            else None,
            augmentation=Augmentation(),
            device=device,
        )
        for student in todo
    }
    take_turns(list(runs.values()))
    networks |= {name: run.released() for name, run in runs.items()}
    seconds["students"] = round(time.perf_counter() - began, 1)
    print(f"{time.perf_counter() - began:7.1f} s  {len(runs)} students", flush=True)
    for name, network in networks.items():
        said[name] = {part: predict_logits(network, data, part, device=device) for part in ("validation", "test")}
    np.savez(kept, **{f"{name}.{part}": logits for name, parts in said.items() for part, logits in parts.items()})
    record = {
        "seed": given.seed,
        "members": given.members,
        "epochs": {"members": recipe.epochs, "students": patient.epochs},
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "seconds": seconds,
        "outcomes": outcomes(said, given.members, data),
    }
    (given.out / f"seed_{given.seed}.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
