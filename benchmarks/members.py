"""Milliseconds per member-step: every engine against the plain loop, in one run, on one GPU.

    python benchmarks/members.py --out results/members.json          # the four jobs, 8 members, teachers and a student
    python benchmarks/members.py --grow --out results/growth.json    # 1 to 16 members, two batches, two widths
    python benchmarks/members.py --grow --engines captured --members 1 8 --turns 10 --runs 1 --out growth_few.json
    python benchmarks/members.py --plot results/growth.json --out benchmarks/members.svg
    python benchmarks/members.py --small                             # a minute on a CPU: does it run?

Steps are timed after set-up (warm-up, capture, compilation), which is reported by itself. The inputs are random images
of CIFAR's size: speed does not depend on what they show. The file is written after every figure; figures that are there
already are not measured again, so that a call that was cut off goes on. The share of the peak is operations counted in
one forward and backward pass over time over `--peak`, the card's dense bf16 rate (989e12 a second for an H200).
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from flipguard.data import Augmentation, DataSet, Split
from flipguard.ensembles import NetworkReference, QuickReference
from flipguard.files import whole_file
from flipguard.methods import Elodi, NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds
from flipguard.training.capture import CannotCapture
from flipguard.training.choice import trial
from flipguard.training.engines import check_engine
from flipguard.training.errors import OutOfMemory
from flipguard.training.network import begin_network
from flipguard.types import Batch, InputError, Normalisation
from growth import plot

RECIPE = Recipe(epochs=100, learning_rate=0.1, precision="bf16", channels_last=True, clip_norm=5.0)
AUGMENT = Augmentation()
H200_PEAK = 989e12
CLASSES = 100


@dataclass(frozen=True)
class Shape:
    """A network and its batch."""

    kind: str
    width: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.kind}_w{self.width}_b{self.batch}"

    @property
    def model(self) -> ModelSpec:
        return ModelSpec(self.kind, {"width": self.width})

    def flops(self) -> int:
        """Of a step, forward and backward, counted on one image."""
        x = torch.zeros(1, 3, 32, 32)
        network = self.model.build(CLASSES, 0).eval()
        with FlopCounterMode(display=False) as counter:
            network(x).sum().backward()
        return int(counter.get_total_flops()) * self.batch


JOBS = [Shape("resnet18", 32, 512), Shape("resnet18", 32, 128), Shape("resnet18", 64, 512), Shape("resnet10", 32, 512)]
GROWN = [Shape("resnet18", width, batch) for width in (32, 64) for batch in (512, 128)]
SMALL = [Shape("resnet20", 4, 8)]
ENGINES = {
    "cuda": ("captured", "paired", "grouped", "stacked", "compiled"),
    "cpu": ("plain", "paired", "grouped", "stacked"),
}


def random_images(rows: int, device: str) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (rows, 3, 32, 32), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, CLASSES, (rows,), generator=generator)
    split = Split(x, y, np.arange(rows)).to(device)
    normalisation = Normalisation((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return DataSet("random", split, split, tuple(map(str, range(CLASSES))), "image", normalisation=normalisation)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def emptied(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def timed(turn: Callable[[], Any], turns: int, device: str) -> float:
    """Milliseconds per turn."""
    synchronise(device)
    began = time.perf_counter()
    for _ in range(turns):
        turn()
    synchronise(device)
    return 1e3 * (time.perf_counter() - began) / turns


@dataclass
class Bench:
    """The figures so far, in a file, and how they are measured."""

    data: DataSet
    device: str
    turns: int
    runs: int
    peak: float
    out: Path | None
    record: dict[str, Any]

    def measured(self, shape: Shape, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A figure of a shape: from the file, or measured and written there."""
        figures: dict[str, Any] = self.record["jobs"].setdefault(shape.name, {"flops": shape.flops()})
        if name not in figures:
            try:
                figures[name] = measure()
            except (CannotCapture, OutOfMemory) as reason:
                figures[name] = {"not": str(reason)}
            emptied(self.device)
            print(f"{shape.name} {name}: {_said(figures[name])}", flush=True)
            if self.out is not None:
                self.out.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(self.out) as beside:
                    beside.write_text(json.dumps(self.record, indent=1))
        found: dict[str, Any] = figures[name]
        return found

    def steps(self, shape: Shape, engine: Any, members: int) -> dict[str, Any]:
        """ms per member-step of so many members, the mean of several runs, set-up and memory."""
        found = []
        for _ in range(1 if engine == "plain" else self.runs):
            found.append(self._steps(shape, engine, members))
            emptied(self.device)
        ms = statistics.mean(each["ms"] for each in found)
        flops = self.record["jobs"][shape.name]["flops"]
        return {
            "ms": ms,
            "runs": [each["ms"] for each in found],
            "set_up_s": [each["set_up_s"] for each in found],
            "GiB": found[0]["GiB"],
            "share_of_peak": flops / (ms / 1e3) / self.peak,
        }

    def _steps(self, shape: Shape, engine: Any, members: int) -> dict[str, float]:
        began = time.perf_counter()
        recipe = replace(RECIPE, batch_size=shape.batch)

        def begin(seed: int) -> Any:
            return begin_network(
                shape.model,
                self.data,
                NoTreatment(),
                recipe,
                seeds=Seeds.of(seed),
                augmentation=AUGMENT,
                device=self.device,
                engine=engine,
            )

        moving = trial(lambda: [begin(seed) for seed in range(members)], engine)
        next(moving)
        synchronise(self.device)
        set_up = time.perf_counter() - began
        for _ in range(3):
            next(moving)
        each = timed(partial(next, moving), self.turns, self.device) / members
        memory = torch.cuda.max_memory_reserved() / 2**30 if self.device == "cuda" else 0.0
        return {"ms": each, "set_up_s": set_up, "GiB": memory}

    def teachers(self, shape: Shape, members: int) -> dict[str, Any]:
        """ms per batch of frozen teachers: one after another under autocast; quick, captured, and what each took."""
        device, networks = self.device, self._networks(shape, members)
        plain = NetworkReference("ensemble", networks).to(device)
        x = torch.randn(shape.batch, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)
        zero, rows = torch.zeros((), device=device), torch.arange(shape.batch)
        given = Batch(x, torch.zeros(shape.batch, dtype=torch.int64, device=device), rows, zero, zero)

        def plainly() -> None:
            with torch.no_grad(), torch.autocast(device, torch.bfloat16):
                plain(given)

        plainly()
        found: dict[str, Any] = {"plain_ms": timed(plainly, self.turns, device)}
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
            found["runs"] = [timed(graph.replay, self.turns, device) for _ in range(self.runs)]
            found["quick_ms"] = statistics.mean(found["runs"])
            found["took"] = quick.took
        return found

    def student(self, shape: Shape, engine: Any, members: int) -> dict[str, Any]:
        """ms per step of a student that is held to an ensemble."""
        run = begin_network(
            shape.model,
            self.data,
            Elodi(),
            replace(RECIPE, batch_size=shape.batch),
            seeds=Seeds.of(9),
            references={"ensemble": NetworkReference("ensemble", self._networks(shape, members))},
            augmentation=AUGMENT,
            device=self.device,
            engine=engine,
        )
        updates = run.updates()
        for _ in range(4):
            next(updates)
        runs = [timed(lambda: next(updates), self.turns, self.device) for _ in range(self.runs)]
        return {"ms": statistics.mean(runs), "runs": runs}

    def _networks(self, shape: Shape, members: int) -> list[Any]:
        built = [shape.model.build(CLASSES, j).to(self.device) for j in range(members)]
        return [network.to(memory_format=torch.channels_last).eval() for network in built]


def _said(figure: dict[str, Any]) -> str:
    if "ms" not in figure:
        return json.dumps(figure)
    share = f", {figure['share_of_peak']:.1%} of the peak" if "share_of_peak" in figure else ""
    return f"{figure['ms']:.2f} ms{share}"


def measure(bench: Bench, shapes: list[Shape], members: list[int], engines: list[str], *, around: bool) -> None:
    """Every engine at every number of members; with `around`, teachers and a student too."""
    for shape in shapes:
        plain = bench.measured(shape, "plain_1", lambda s=shape: bench.steps(s, "plain", 1))
        for engine in engines:
            for number in members:
                name = f"{engine}_{number}"
                found = bench.measured(shape, name, lambda s=shape, e=engine, n=number: bench.steps(s, e, n))
                if "ms" in found and "ms" in plain:
                    print(f"  {name} is {plain['ms'] / found['ms']:.1f}× as fast as the plain loop", flush=True)
        if around:
            number = members[-1]
            bench.measured(shape, f"teachers_{number}", lambda s=shape, n=number: bench.teachers(s, n))
            for engine in ("plain", "captured") if bench.device == "cuda" else ("plain",):
                bench.measured(
                    shape, f"student_{engine}_{number}", lambda s=shape, e=engine, n=number: bench.student(s, e, n)
                )
        # What torch.compile keeps of one shape would count against the next one's limit of recompilations.
        torch._dynamo.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--grow", action="store_true", help="1, 2, 4, 8 and 16 members, two batches, two widths")
    parser.add_argument("--small", action="store_true", help="a tiny network, three members, few steps")
    parser.add_argument(
        "--plot", type=Path, metavar="JSON", help="draw how cost grows from a file of --grow into --out"
    )
    parser.add_argument("--jobs", nargs="*", help=f"of {', '.join(shape.name for shape in JOBS + GROWN)}")
    parser.add_argument("--engines", nargs="*")
    parser.add_argument("--members", type=int, nargs="*")
    parser.add_argument("--turns", type=int, help="steps that are timed; default 20")
    parser.add_argument("--runs", type=int, help="of every engine, default 3; the plain loop runs once")
    parser.add_argument("--rows", type=int, help="of the random data; default 45,000")
    parser.add_argument("--peak", type=float, default=H200_PEAK, help="the card's dense bf16 operations a second")
    parser.add_argument("--no-benchmark", action="store_true", help="cuDNN's own choice of kernels, untested")
    given = parser.parse_args()
    if given.plot is not None:
        try:
            plot(given.plot, given.out or given.plot.with_suffix(".svg"))
        except InputError as error:
            parser.error(str(error))
        return
    try:
        for engine in given.engines or ():
            check_engine(engine)
    except InputError as error:
        parser.error(str(error))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.benchmark = not given.no_benchmark
    rows, turns, runs = (512, 3, 1) if given.small else (45_000, 20, 3)
    given.rows, given.turns, given.runs = given.rows or rows, given.turns or turns, given.runs or runs
    known = {shape.name: shape for shape in JOBS + GROWN + SMALL}
    default = SMALL if given.small else GROWN if given.grow else JOBS
    if unknown := set(given.jobs or ()) - set(known):
        parser.error(f"no such job: {', '.join(sorted(unknown))}.")
    shapes = [known[name] for name in given.jobs] if given.jobs else default
    members = given.members or ([1, 3] if given.small else [1, 2, 4, 8, 16] if given.grow else [8])
    record: dict[str, Any] = {
        "hardware": torch.cuda.get_device_name(0) if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "peak": given.peak,
        "turns": given.turns,
        "jobs": {},
    }
    if given.out is not None and given.out.exists():
        there = json.loads(given.out.read_text())
        for name in ("hardware", "torch", "peak", "turns"):
            if there.get(name) != record[name]:
                parser.error(
                    f"{given.out} has {name} {there.get(name)}, and this is {record[name]}: give another --out."
                )
        record = there
    bench = Bench(random_images(given.rows, device), device, given.turns, given.runs, given.peak, given.out, record)
    measure(bench, shapes, members, list(given.engines or ENGINES[device]), around=not given.grow)


if __name__ == "__main__":
    main()
