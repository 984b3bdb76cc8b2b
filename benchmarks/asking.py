"""How many samples a network is asked at once on a CPU: as many as we take, beside others.

    python benchmarks/asking.py
    python benchmarks/asking.py --threads 2

Untrained networks over random inputs, in eval mode: ResNets of width 32 on images of 32 and 64 pixels, a transformer on
sequences of 48 tokens, perceptrons on rows of 64 and of 10,000 numbers. All sizes take turns in one run; the fastest
repetition counts. The ratio is the time of 1,024 at once, which fills a GPU, over that of as many as we ask.
"""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from flipguard.data.batches import at_once
from flipguard.models import build_model

SIZES = (16, 32, 64, 128, 256, 1024)


def networks() -> Iterator[tuple[str, nn.Module, Tensor]]:
    images = torch.randn(1024, 3, 32, 32)
    for name in ("resnet10", "resnet18"):
        yield f"{name}, images of 32 pixels", build_model(name, classes=100, width=32), images
    yield "resnet18, images of 64 pixels", build_model("resnet18", classes=100, width=32), torch.randn(1024, 3, 64, 64)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    yield "transformer, 48 tokens", nn.TransformerEncoder(layer, 2), torch.randn(4096, 48, 128)
    yield "perceptron", build_model("mlp", classes=10, hidden=[128]), torch.randn(65536, 64)
    yield (
        "perceptron, wide rows",
        build_model("mlp", classes=10, hidden=[512], input_size=10000),
        torch.randn(4096, 10000),
    )


@torch.inference_mode()
def seconds(network: nn.Module, x: Tensor, size: int) -> float:
    began = time.perf_counter()
    for rows in x.split(size):
        network(rows)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    print(f"{given.threads} threads, torch {torch.__version__}; samples in a second by how many are asked at once")
    for name, network, x in networks():
        network.eval()
        # Of texts a network is given numbers of tokens.
        ours = at_once({"tokens": x} if name.startswith("transformer") else x, "cpu")
        found = dict.fromkeys(SIZES, float("inf"))
        for _ in range(given.repetitions):
            for size in SIZES:
                found[size] = min(found[size], seconds(network, x, size))
        rates = ", ".join(f"{size}: {len(x) / took:,.0f}" for size, took in found.items())
        print(f"{name}: {rates}; {ours} at once {found[1024] / found[ours]:.2f} times as fast as 1,024")


if __name__ == "__main__":
    main()
