"""A BatchEnsemble's convolution: each member's weight over its own rows, beside factors over activations.

    python benchmarks/factors.py                    # on this machine's CPU
    python benchmarks/factors.py --device cuda

Forward and backward of four members' convolutions of 3 by 3, of the sizes that ResNet-18 of width 32 has on images of
32 pixels. "Activations" is s ∘ (θ (r ∘ x)), one convolution of all rows between two products; "weights" is θ ∘ (s rᵀ),
one convolution for each member, as `ensembles/rank_one.py` has it; "plain" has no factors. All take turns in one run;
the fastest repetition counts.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from flipguard.ensembles import BatchEnsemble

SIZES = ((32, 32), (64, 16), (128, 8), (256, 4))
"""Channels, and pixels a side."""


def over_activations(layer: nn.Module, rows: int) -> Callable[[Tensor], Tensor]:
    """s ∘ (θ (r ∘ x)) of a converted layer, in the activations' precision."""
    weight, r, s = (layer.get_parameter(name) for name in ("weight", "weight_r", "weight_s"))

    def spread(factor: Tensor, like: Tensor) -> Tensor:
        return (1 + factor)[:, None].expand(-1, rows, -1).reshape(like.shape[0], -1, 1, 1).to(like.dtype)

    def forward(x: Tensor) -> Tensor:
        y = nn.functional.conv2d(x * spread(r, x), weight.to(x.dtype), padding=1)
        return y * spread(s, y)

    return forward


def seconds(layer: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> float:
    """One forward and backward."""
    x.grad = None
    wait = torch.cuda.synchronize if x.device.type == "cuda" else (lambda: None)
    wait()
    began = time.perf_counter()
    layer(x).backward(gradient)
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
    torch.backends.cudnn.benchmark = True
    print(f"{asked.members} members of {asked.rows} rows, {asked.precision}, {asked.device}, torch {torch.__version__}")
    for channels, side in SIZES:
        shape = (asked.members * asked.rows, channels, side, side)
        x, gradient = (
            torch.randn(shape, device=asked.device, dtype=dtype).to(memory_format=torch.channels_last) for _ in range(2)
        )
        x.requires_grad_()
        plain = nn.Conv2d(channels, channels, 3, padding=1, bias=False).to(
            asked.device, memory_format=torch.channels_last
        )
        converted = BatchEnsemble(plain, asked.members, std=0.1).network
        half = plain.to(dtype)
        sides = {"activations": over_activations(converted, asked.rows), "weights": converted, "plain": half}
        found = dict.fromkeys(sides, float("inf"))
        for _ in range(asked.repetitions):
            for name, layer in sides.items():
                found[name] = min(found[name], seconds(layer, x, gradient))
        print(
            f"{shape}: "
            + ", ".join(f"{name} {1e3 * took:.2f} ms" for name, took in found.items())
            + f"; weights {found['activations'] / found['weights']:.2f} times as fast as activations, "
            + f"{found['weights'] / found['plain']:.2f} times plain"
        )


if __name__ == "__main__":
    main()
