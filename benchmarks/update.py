"""Seconds of a whole update: 8 old and 8 new members and an ELODI student for each, plain loop and captured steps.

    python benchmarks/update.py --out results/update.json
    python benchmarks/update.py --plain-epochs 2 --out results/update.json    # the plain loop's other 14 are reckoned

ResNet-10 → ResNet-18 of width 32, batch 512, 16 epochs, on random images of CIFAR-100's number and size: speed does not
depend on what they show. Both sides run here, one after the other; set-up (warm-up, capture) counts. The plain loop has
next to none, so that some of its epochs may stand for all, set-up included; the record says so. The file is written
after every run; runs that are there already are not measured again, so that a call that was cut off goes on.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from flipguard.data import DataSet
from flipguard.ensembles import NetworkReference
from flipguard.files import whole_file
from flipguard.methods import Elodi
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, fit_members, take_turns
from flipguard.training.engines import for_one
from members import AUGMENT, RECIPE, random_images

SIDES = {"old": ModelSpec("resnet10", {"width": 32}), "new": ModelSpec("resnet18", {"width": 32})}


def update(data: DataSet, recipe: Recipe, members: int, engine: Any, device: str) -> dict[str, Any]:
    """Seconds of each part; what the log says of engines and references."""
    with training_log() as lines:
        seconds = parts(data, recipe, members, engine, device)
    return {"seconds": seconds, "log": lines}


def parts(data: DataSet, recipe: Recipe, members: int, engine: Any, device: str) -> dict[str, float]:
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


@contextmanager
def training_log() -> Iterator[list[str]]:
    """What is chosen in training is said in its log."""
    lines: list[str] = []
    log, handler = logging.getLogger("flipguard.training"), logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def for_all_epochs(found: dict[str, Any], measured: int, epochs: int) -> dict[str, Any]:
    """A run of some epochs as one of all, and how that was reckoned.

    >>> run = for_all_epochs({"seconds": {"both students": 2.0, "all": 5.0}, "log": []}, 2, 16)
    >>> run["seconds"], run["reckoned"]
    ({'both students': 16.0, 'all': 40.0}, '2 of 16 epochs measured, times 8')
    >>> for_all_epochs({"seconds": {"all": 5.0}, "log": []}, 16, 16)
    {'seconds': {'all': 5.0}, 'log': []}
    """
    if measured == epochs:
        return found
    times = epochs / measured
    seconds = {part: times * took for part, took in found["seconds"].items()}
    reckoned = f"{measured} of {epochs} epochs measured, times {times:g}"
    return {**found, "seconds": seconds, "measured_seconds": found["seconds"], "reckoned": reckoned}


def summary(record: dict[str, Any]) -> str:
    """One line about both sides, as far as they are there.

    >>> captured, plain = {"seconds": {"all": 40.0}}, {"seconds": {"all": 240.0}}
    >>> summary({"captured": [captured, captured], "plain": plain})
    'captured 40.0 s (mean of 2), plain 240.0 s: 6.0×'
    >>> summary({"captured": [captured], "plain": {**plain, "reckoned": "2 of 16 epochs measured, times 8"}})
    'captured 40.0 s (mean of 1), plain 240.0 s: 6.0× (plain loop: 2 of 16 epochs measured, times 8)'
    >>> summary({"captured": [], "plain": plain})
    'plain 240.0 s'
    """
    took, plain = [run["seconds"]["all"] for run in record["captured"]], record.get("plain")
    mean = sum(took) / len(took) if took else 0.0
    said = [f"captured {mean:.1f} s (mean of {len(took)})"] if took else []
    said += [f"plain {plain['seconds']['all']:.1f} s"] if plain else []
    faster = f": {plain['seconds']['all'] / mean:.1f}×" if took and plain else ""
    how = f" (plain loop: {plain['reckoned']})" if plain and "reckoned" in plain else ""
    return ", ".join(said) + faster + how


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
    parser.add_argument(
        "--plain-epochs", type=int, metavar="N", help="of the plain loop, the rest reckoned; default all"
    )
    given = parser.parse_args()
    measured = given.epochs if given.plain_epochs is None else given.plain_epochs
    if not 1 <= measured <= given.epochs:
        parser.error(f"--plain-epochs must be from 1 to {given.epochs}, got {measured}.")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = True
    record: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "engine": given.engine,
        "members": given.members,
        "epochs": given.epochs,
        "batch_size": given.batch_size,
        "rows": given.rows,
    }
    if given.out is not None and given.out.exists():
        there = json.loads(given.out.read_text())
        for name, value in record.items():
            if there.get(name) != value:
                parser.error(f"{given.out} has {name} {there.get(name)}, and this is {value}: give another --out.")
        record = there
    captured = record.setdefault("captured", [])

    def keep() -> None:
        print(summary(record), flush=True)
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(given.out) as beside:
                beside.write_text(json.dumps(record, indent=1))

    data = random_images(given.rows, device)
    recipe = replace(RECIPE, epochs=given.epochs, batch_size=given.batch_size)
    while len(captured) < given.runs:
        captured.append(update(data, recipe, given.members, given.engine, device))
        keep()
    if not given.no_plain and "plain" not in record:
        found = update(data, replace(recipe, epochs=measured), given.members, "plain", device)
        record["plain"] = for_all_epochs(found, measured, given.epochs)
        keep()
    print(json.dumps(record))


if __name__ == "__main__":
    main()
