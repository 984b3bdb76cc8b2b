"""LDI on the k highest of very many classes beside cross-entropy: time, and memory in (B, C) tensors.

    python benchmarks/many_classes.py [--classes 100000] [--batch 64] [--device cuda] [--json FILE]

Each side runs forward and backward on the same logits; sides take turns, and the fastest repetition counts. A side
holds, at its peak and beyond the logits, so many (B, C) tensors: torch's cross-entropy its log-probabilities, their
gradient and the logits'; flipguard's ("ours") writes the gradient over the log-probabilities.
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from flipguard.losses import cross_entropy, logit_difference_inhibition

K = 10


def at_most(loss: Callable[[], Tensor], shape: tuple[int, int], device: str) -> float:
    """The most memory that is held beyond what was there, in tensors of a place for every class."""
    one = 4 * shape[0] * shape[1]
    if device.startswith("cuda"):
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss().backward()
        return (torch.cuda.max_memory_allocated() - before) / one
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        loss().backward()
    taken = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    taken.sort(key=lambda event: event.start_ns())
    return max(accumulate(event.nbytes() for event in taken)) / one


def sides(student: Tensor, reference: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    def entropy() -> Tensor:
        return F.cross_entropy(student, y)

    def difference(ranked_by: Any) -> Tensor:
        return logit_difference_inhibition(student, reference, k=K, ranked_by=ranked_by).mean()

    return {
        "cross_entropy": entropy,
        "ldi_reference": lambda: difference("reference"),
        "ldi_either": lambda: difference("either"),
        "ours": lambda: cross_entropy(student, y).mean(),
        "ours + ldi_either": lambda: cross_entropy(student, y).mean() + difference("either"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--classes", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--json")
    given = parser.parse_args()
    draw = torch.Generator(given.device).manual_seed(0)
    shape = (given.batch, given.classes)
    student, reference = (torch.randn(shape, generator=draw, device=given.device) for _ in range(2))
    student.requires_grad_()
    y = torch.randint(given.classes, shape[:1], generator=draw, device=given.device)
    best: dict[str, float] = {}
    losses = sides(student, reference, y)
    for _ in range(given.repetitions):
        for name, loss in losses.items():
            student.grad = None
            waited(given.device)
            began = time.perf_counter()
            loss().backward()
            waited(given.device)
            best[name] = min(best.get(name, float("inf")), time.perf_counter() - began)
    held = {}
    for name, loss in losses.items():
        student.grad = None
        held[name] = at_most(loss, shape, given.device)
    print(f"{given.batch} samples, {given.classes:,} classes, k = {K}, {given.device}, torch {torch.__version__}")
    for name, seconds in best.items():
        ratio = seconds / best["cross_entropy"]
        print(f"{name:27s} {1e3 * seconds:9.3f} ms   {ratio:5.2f} x cross-entropy   holds {held[name]:.2f}")
    if given.json:
        found = {"shape": shape, "device": given.device, "seconds": best, "held": held}
        Path(given.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


def waited(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
