"""LDI on the k highest of very many classes beside cross-entropy: time, and tensors with a place for every class.

    python benchmarks/many_classes.py [--classes 100000] [--batch 64] [--device cuda] [--json FILE]

Each side runs forward and backward on the same logits; sides take turns, and the fastest repetition counts. `made` is
how many (B, C) tensors a side allocates on its way; cross-entropy has its log-probabilities and its gradient.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from flipguard.losses import logit_difference_inhibition

K = 10


class Made(TorchDispatchMode):
    """Counts results of a shape that are memory of their own."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.places = shape, set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, Tensor) and one.shape == self.shape:
                self.places.add(one.untyped_storage().data_ptr())
        return found


def sides(student: Tensor, reference: Tensor, y: Tensor) -> dict[str, Callable[[], Tensor]]:
    def entropy() -> Tensor:
        return F.cross_entropy(student, y)

    def difference(ranked_by: Any) -> Tensor:
        return logit_difference_inhibition(student, reference, k=K, ranked_by=ranked_by).mean()

    return {
        "cross_entropy": entropy,
        "ldi_reference": lambda: difference("reference"),
        "ldi_either": lambda: difference("either"),
        "cross_entropy + ldi_either": lambda: entropy() + difference("either"),
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
    made = {}
    for name, loss in losses.items():
        student.grad = None
        with Made(shape) as counter:
            loss().backward()
        made[name] = len(counter.places - {student.data_ptr(), reference.data_ptr()})
    print(f"{given.batch} samples, {given.classes:,} classes, k = {K}, {given.device}, torch {torch.__version__}")
    for name, seconds in best.items():
        ratio = seconds / best["cross_entropy"]
        print(f"{name:27s} {1e3 * seconds:9.3f} ms   {ratio:5.2f} x cross-entropy   made {made[name]}")
    if given.json:
        found = {"shape": shape, "device": given.device, "seconds": best, "made": made}
        Path(given.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


def waited(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
