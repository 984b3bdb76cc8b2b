"""A BatchEnsemble's factors: one pass over the activations each way, beside the expression that they stand for.

    python benchmarks/factors.py                    # on this machine's CPU
    python benchmarks/factors.py --device cuda

Forward and backward of (1 + d_m) ∘ x in the activations' precision for four members of the sizes that ResNet-18 of
width 32 has on images of 32 pixels. "As written" multiplies by the factors in float32 and rounds the product. Both
sides take turns in one run; the fastest repetition counts.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from flipguard.ensembles.rank_one import by_member

SIZES = ((32, 32), (64, 16), (128, 8), (256, 4))
"""Channels, and pixels a side."""


def as_written(x: Tensor, deviation: Tensor) -> Tensor:
    """The factors as a tensor of x's rows, in their own precision."""
    rows = (1 + deviation)[:, None].expand(-1, x.shape[0] // len(deviation), -1).reshape(x.shape[0], -1, 1, 1)
    return (x * rows).to(x.dtype)


def seconds(scale: Callable[[Tensor, Tensor], Tensor], x: Tensor, deviation: Tensor) -> float:
    """One forward and backward."""
    x.grad = deviation.grad = None
    wait = torch.cuda.synchronize if x.device.type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    scale(x, deviation).backward(torch.ones_like(x))
    wait()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=128, help="of one member")
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--precision", choices=("bf16", "float32"), default="bf16")
    asked = parser.parse_args()
    dtype = torch.bfloat16 if asked.precision == "bf16" else torch.float32
    sides = {"as written": as_written, "by_member": lambda x, d: by_member(x, d, last=False)}
    print(f"{asked.members} members of {asked.rows} rows, {asked.precision}, {asked.device}, torch {torch.__version__}")
    for channels, side in SIZES:
        shape = (asked.members * asked.rows, channels, side, side)
        x = torch.randn(shape, device=asked.device, dtype=dtype).to(memory_format=torch.channels_last).requires_grad_()
        deviation = torch.zeros(asked.members, channels, device=asked.device, requires_grad=True)
        found = {name: float("inf") for name in sides}
        for _ in range(asked.repetitions):
            for name, scale in sides.items():
                found[name] = min(found[name], seconds(scale, x, deviation))
        written, ours = found.values()
        print(f"{shape}: as written {1e3 * written:.2f} ms, by_member {1e3 * ours:.2f} ms, {written / ours:.2f} times")


if __name__ == "__main__":
    main()
