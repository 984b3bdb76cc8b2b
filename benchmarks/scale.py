"""What an update costs at ImageNet's scale: time, memory and GPU-hours, worked out from rates that were measured.

    python benchmarks/scale.py                      # the tables of docs/imagenet-scale.md
    python benchmarks/scale.py --price 3.0          # and what it costs at so much for a GPU-hour

Operations and stored activations are counted by running each network once on this machine. How fast a GPU does them is
taken from flipguard's own steps on an H200 with CIFAR-size networks (benchmarks/README.md): the share of the peak that
those reached, once in the plain loop, once captured. ImageNet's rates are extrapolated from that, not measured.
"""

import argparse
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from flipguard.models import build_model

PEAK = 790e12
"""bf16 operations a second of an H200, as matrix products reach them."""

MEASURED_MS = {"plain loop": 14.0, "captured step": 5.12}
"""A training step of ResNet-18 (width 64) on 512 images of 32 × 32, bf16, one H200. Captured: results/members.json. The
plain loop waits for the host: the mean of 9.7 and 18.3, the runs in results/members.json and results/growth.json."""

DECODED_PER_CORE = 289.4
"""JPEG images of 94 KB that a core decodes and cuts to 224 × 224 where all 16 of a machine do so: 4,630 / 16, measured
on the H200's machine (results/loading.json)."""

LEAST_ROWS = 32
"""Rows of a batch that a GPU must have to be kept busy; more processes than that leaves are no help."""


@dataclass(frozen=True)
class Network:
    """A network's size: parameters, operations of a forward pass and bytes kept for the backward pass, for an image."""

    parameters: int
    flops: float
    kept_bytes: float


@dataclass(frozen=True)
class Update:
    """An update by ELODI: two versions, each with an ensemble of its own kind."""

    name: str
    old: str
    new: str
    images: int
    classes: int
    epochs: int = 90
    batch: int = 256
    members: int = 8


UPDATES = (
    Update("ImageNet", "resnet18", "resnet50", images=1_281_167, classes=1_000),
    Update("iNaturalist 2017", "resnet18", "resnet50", images=579_184, classes=5_089),
)


@cache
def counted(model: str, classes: int, size: int = 224, **options: Any) -> Network:
    """A network as its own forward pass on three images shows it, in bf16 as in training."""
    network = build_model(model, classes=classes, **({"stem": "imagenet"} if size > 64 else {}), **options)
    kept: dict[int, torch.Tensor] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        # Held on to, so that no later tensor takes its place in memory; what has no rows does not grow with the batch.
        if value.shape[:1] == (3,):
            kept[value.untyped_storage().data_ptr()] = value
        return value

    watched = torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value)
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16), watched:
        network(torch.zeros(3, 3, size, size))
    held = sum(value.untyped_storage().nbytes() for value in kept.values())
    return Network(sum(p.numel() for p in network.parameters()), counter.get_total_flops() / 3, held / 3)


def rate(how: str) -> float:
    """Operations a second, from the step that was measured: three times a forward pass, for each of 512 images."""
    return 3 * 512 * counted("resnet18", 100, 32, width=64).flops / (MEASURED_MS[how] / 1000)


def member_hours(update: Update, model: str, flops_per_second: float) -> float:
    """One member on one GPU: forward and backward, three times a forward pass."""
    return update.epochs * update.images * 3 * counted(model, update.classes).flops / flops_per_second / 3600


def student_hours(update: Update, model: str, flops_per_second: float, gpus: int) -> float:
    """A student that is shown to every member at each step, by as many GPUs as its batch keeps busy."""
    busy = min(gpus, max(1, update.batch // LEAST_ROWS))
    work = (3 + update.members) * counted(model, update.classes).flops
    return update.epochs * update.images * work / flops_per_second / 3600 / busy


def members_hours(update: Update, flops_per_second: float, gpus: int) -> float:
    """Both versions' members, one to a GPU, the long ones first, each to the GPU that is free the soonest."""
    free = [0.0] * gpus
    for model in (update.new, update.old):
        for _ in range(update.members):
            soonest = min(range(gpus), key=free.__getitem__)
            free[soonest] += member_hours(update, model, flops_per_second)
    return max(free)


def hours(update: Update, flops_per_second: float, gpus: int) -> float:
    """The whole update: all members, and then one student after the other."""
    students = sum(student_hours(update, model, flops_per_second, gpus) for model in (update.old, update.new))
    return members_hours(update, flops_per_second, gpus) + students


def memory_gb(update: Update, model: str, rows: int, *, teachers: int) -> float:
    """A student's process: weights, gradients and momentum in float32, frozen teachers, activations of its rows."""
    network = counted(model, update.classes)
    return (network.parameters * (12 + 4 * teachers) + rows * network.kept_bytes) / 1e9


def cores(update: Update, model: str, flops_per_second: float) -> float:
    """Cores that decode as fast as one GPU trains a member."""
    return flops_per_second / (3 * counted(model, update.classes).flops) / DECODED_PER_CORE


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def head(*cells: str) -> list[str]:
    return ["", row(*cells), row(*["---"] * len(cells))]


def tables(price: float | None = None) -> str:
    """The tables as Markdown."""
    speeds = plain, captured = rate("plain loop"), rate("captured step")
    lines = [
        f"Plain loop {plain / 1e12:.0f} TFLOP/s, {plain / PEAK:.0%} of the {PEAK / 1e12:.0f} that matrix products "
        f"reach, captured {captured / 1e12:.0f} TFLOP/s ({captured / PEAK:.0%})."
    ]
    lines += head("network", "classes", "parameters", "GFLOP an image", "MB kept an image")
    for update in UPDATES:
        for model in (update.old, update.new):
            found = counted(model, update.classes)
            sizes = f"{found.flops / 1e9:.2f}", f"{found.kept_bytes / 1e6:.0f}"
            lines.append(row(model, f"{update.classes:,}", f"{found.parameters / 1e6:.1f} M", *sizes))
    lines += head("update", "batch", "GPUs", "hours, plain loop", "hours, captured share", "GPU-hours held")
    for update in UPDATES:
        for gpus, batch in ((1, 256), (8, 256), (64, 256), (64, 2048)):
            slow, fast = (hours(replace(update, batch=batch), speed, gpus) for speed in speeds)
            cost = "" if price is None else f", {fast * gpus * price:,.0f} to {slow * gpus * price:,.0f}"
            held = f"{fast * gpus:.0f} to {slow * gpus:.0f}{cost}"
            lines.append(row(update.name, batch, gpus, f"{slow:.1f}", f"{fast:.1f}", held))
    lines += head("a student's process, GB", "256 rows, 8 teachers", "32 rows, 8 teachers", "32 rows, spread over 8")
    for update in UPDATES:
        sizes = (memory_gb(update, update.new, rows, teachers=t) for rows, t in ((256, 8), (32, 8), (32, 1)))
        lines.append(row(f"{update.name}, {update.new}", *(f"{size:.1f}" for size in sizes)))
    lines += head(
        "to keep one GPU busy", "images/s, plain loop", "images/s, captured share", "cores that decode so fast"
    )
    for model in (UPDATES[0].old, UPDATES[0].new):
        need = [f"{speed / (3 * counted(model, UPDATES[0].classes).flops):,.0f}" for speed in speeds]
        many = [f"{cores(UPDATES[0], model, speed):.0f}" for speed in speeds]
        lines.append(row(f"a member of {model}", *need, " to ".join(many)))
    base = UPDATES[0]
    changed = {
        "as it is": base,
        "4 members": replace(base, members=4),
        "16 members": replace(base, members=16),
        "10,000 classes": replace(base, classes=10_000),
        "twice the images": replace(base, images=2 * base.images),
    }
    lines += head("ImageNet", "hours on one GPU, plain loop", "of the first", "a student's GB, 256 rows")
    for name, update in changed.items():
        took = hours(update, plain, 1)
        size = memory_gb(update, update.new, 256, teachers=update.members)
        lines.append(row(name, f"{took:.0f}", f"{took / hours(base, plain, 1):.2f}", f"{size:.1f}"))
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--price", type=float, help="of a GPU-hour, in any currency")
    print(tables(parser.parse_args().price), end="")


if __name__ == "__main__":
    main()
