"""Seconds of a whole update: 8 old and 8 new members and an ELODI student for each, plain loop and captured steps.

    python benchmarks/update.py --out results/update.json

ResNet-10 → ResNet-18 of width 32, batch 512, 16 epochs, on random images of CIFAR-100's number and size: speed does not
depend on what they show. Both sides run here, one after the other; set-up (warm-up, capture) counts.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flipguard.data import DataSet
from flipguard.ensembles import NetworkReference
from flipguard.methods import Elodi
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, fit_members, take_turns
from flipguard.training.engines import for_one
from members import AUGMENT, RECIPE, random_images

SIDES = {"old": ModelSpec("resnet10", {"width": 32}), "new": ModelSpec("resnet18", {"width": 32})}


def update(data: DataSet, recipe: Recipe, members: int, engine: Any, device: str) -> dict[str, float]:
    """Seconds of each part."""
    began, took = time.perf_counter(), {}
    runs = []
    for place, (side, model) in enumerate(SIDES.items()):
        seeds = [1_000 * place + j for j in range(members)]
        found = fit_members(model, data, recipe, seeds, augmentation=AUGMENT, device=device, engine=engine)
        took[f"{members} {side} members"] = time.perf_counter() - began - sum(took.values())
        runs.append(
            begin_network(
                model,
                data,
                Elodi(),
                recipe,
                seeds=Seeds.of(9_000 + place),
                references={"ensemble": NetworkReference("ensemble", [network.to(device) for network in found])},
                augmentation=AUGMENT,
                device=device,
                engine=for_one(engine),
            )
        )
    if engine == "plain":
        for run in runs:
            take_turns([run])
    else:
        take_turns(runs)
    for run in runs:
        run.released()
    took["both students"] = time.perf_counter() - began - sum(took.values())
    took["all"] = time.perf_counter() - began
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--rows", type=int, default=45_000)
    parser.add_argument("--runs", type=int, default=3, help="of the captured side; the plain one runs once")
    parser.add_argument("--engine", default="auto", help="of the members; the students' steps are captured")
    parser.add_argument("--no-plain", action="store_true")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    data = random_images(given.rows, device)
    recipe = replace(RECIPE, epochs=given.epochs, batch_size=given.batch_size)
    record: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "engine": given.engine,
        "captured": [update(data, recipe, given.members, given.engine, device) for _ in range(given.runs)],
    }
    if not given.no_plain:
        record["plain"] = update(data, recipe, given.members, "plain", device)
        mean = sum(run["all"] for run in record["captured"]) / given.runs
        print(f"captured {mean:.1f} s, plain {record['plain']['all']:.1f} s: {record['plain']['all'] / mean:.1f}×")
    print(json.dumps(record))
    if given.out is not None:
        given.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
