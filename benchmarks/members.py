"""Milliseconds per member-step: members side by side against the plain loop, in one run, on one GPU.

    python benchmarks/members.py --out results/members.json

Steps are timed after set-up (warm-up, capture, compilation), which is reported by itself. The inputs are random images
of CIFAR's size: speed does not depend on what they show.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.data import Augmentation, DataSet, Split
from flipguard.ensembles import NetworkReference, QuickReference
from flipguard.methods import Elodi, NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds
from flipguard.training.network import begin_network
from flipguard.types import Batch, Normalisation

RECIPE = Recipe(epochs=100, learning_rate=0.1, precision="bf16", channels_last=True, clip_norm=5.0)
AUGMENT = Augmentation()
JOBS = {
    "resnet18_w32_b512": ("resnet18", 32, 512),
    "resnet18_w32_b128": ("resnet18", 32, 128),
    "resnet18_w64_b512": ("resnet18", 64, 512),
    "resnet10_w32_b512": ("resnet10", 32, 512),
}
SMALL = {"tiny": ("resnet20", 8, 16)}


def random_images(rows: int, device: str) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 3, 32, 32), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 100, (rows,), generator=generator)
    split = Split(x, y, np.arange(rows)).to(device)
    normalisation = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return DataSet("random", split, split, tuple(map(str, range(100))), "image", normalisation=normalisation)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(turn: Callable[[], None], turns: int, device: str) -> float:
    """Milliseconds per turn."""
    synchronise(device)
    began = time.perf_counter()
    for _ in range(turns):
        turn()
    synchronise(device)
    return 1e3 * (time.perf_counter() - began) / turns


def steps(model: ModelSpec, batch: int, members: int, engine: Any, data: DataSet, device: str, turns: int) -> Any:
    """(ms per member-step, seconds of set-up, GiB) of so many members that take turns."""
    began = time.perf_counter()
    recipe = replace(RECIPE, batch_size=batch)
    runs = [
        begin_network(
            model, data, NoTreatment(), recipe, seeds=Seeds.of(j), augmentation=AUGMENT, device=device, engine=engine
        )
        for j in range(members)
    ]
    moving = [run.updates() for run in runs]

    def turn() -> None:
        for updates in moving:
            next(updates)

    turn()
    synchronise(device)
    set_up = time.perf_counter() - began
    for _ in range(3):
        turn()
    each = timed(turn, turns, device) / members
    memory = torch.cuda.memory_reserved() / 2**30 if device == "cuda" else 0.0
    runs.clear()
    moving.clear()
    if device == "cuda":
        torch.cuda.empty_cache()
    return {"ms": each, "set_up_s": set_up, "GiB": memory}


def teachers(model: ModelSpec, batch: int, members: int, device: str, turns: int) -> dict[str, float]:
    """ms per batch of frozen teachers: one after another under autocast, and quick, captured."""
    networks = [model.build(100, j).to(device, memory_format=torch.channels_last).eval() for j in range(members)]
    plain = NetworkReference("ensemble", networks).to(device)
    x = torch.randn(batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
    zero = torch.zeros((), device=device)
    given = Batch(x, torch.zeros(batch, dtype=torch.int64, device=device), torch.arange(batch), zero, zero)

    def plainly() -> None:
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            plain(given)

    plainly()
    found = {"plain_ms": timed(plainly, turns, device)}
    if device == "cuda":
        quick = QuickReference(plain, torch.bfloat16, torch.device(device))
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                said = quick(given).logits
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            quick(given)
        with torch.no_grad(), torch.autocast(device, torch.bfloat16):
            exact = plain(given).logits.float()
        found["difference"] = float((said - exact).norm() / exact.norm())
        found["quick_ms"] = timed(graph.replay, turns, device)
    return found


def student(model: ModelSpec, batch: int, members: int, engine: Any, data: DataSet, device: str, turns: int) -> float:
    """ms per step of a student that is held to an ensemble."""
    networks = [model.build(100, j).to(device, memory_format=torch.channels_last).eval() for j in range(members)]
    references = {"ensemble": NetworkReference("ensemble", networks)}
    recipe = replace(RECIPE, batch_size=batch)
    run = begin_network(
        model,
        data,
        Elodi(),
        recipe,
        seeds=Seeds.of(9),
        references=references,
        augmentation=AUGMENT,
        device=device,
        engine=engine,
    )
    updates = run.updates()
    for _ in range(4):
        next(updates)
    return timed(lambda: next(updates), turns, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--engines", nargs="*", default=["captured"])
    parser.add_argument("--members", type=int, nargs="*", default=[8])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=45_000)
    parser.add_argument("--no-benchmark", action="store_true", help="cuDNN's own choice of kernels, untested")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = not given.no_benchmark
    data = random_images(given.rows, device)
    record: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "jobs": {},
    }
    for name in given.jobs:
        kind, width, batch = {**JOBS, **SMALL}[name]
        options = {"width": width} if kind != "resnet20" else {}
        model = ModelSpec(kind, options)
        found: dict[str, Any] = {"plain_1": steps(model, batch, 1, "plain", data, device, given.turns)}
        for engine in given.engines:
            for members in given.members:
                runs = [steps(model, batch, members, engine, data, device, given.turns) for _ in range(given.runs)]
                found[f"{engine}_{members}"] = {
                    "ms": statistics.mean(run["ms"] for run in runs),
                    "runs": [run["ms"] for run in runs],
                    "set_up_s": [run["set_up_s"] for run in runs],
                    "GiB": runs[0]["GiB"],
                }
                best = found[f"{engine}_{members}"]["ms"]
                ratio = found["plain_1"]["ms"] / best
                print(
                    f"{name} {engine} × {members}: {best:.2f} ms against {found['plain_1']['ms']:.2f}: {ratio:.1f}×",
                    flush=True,
                )
        found["teachers"] = teachers(model, batch, 8, device, given.turns)
        found["student_plain_ms"] = student(model, batch, 8, "plain", data, device, given.turns)
        for engine in given.engines:
            found[f"student_{engine}_ms"] = student(model, batch, 8, engine, data, device, given.turns)
        print(name, json.dumps(found), flush=True)
        record["jobs"][name] = found
        if given.out is not None:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
