"""A training step on a CPU where freed memory stays with the process, as in `flipguard train`, beside glibc's default.

    python benchmarks/freed.py
    python benchmarks/freed.py --processes 1

ResNet-18 of width 32 on images of 32 pixels, batch 128, a transformer with the sizes of MiniLM (22 million weights)
on texts of 16 tokens, batch 64, and a perceptron: forward, backward, update, in two processes side by side, each with
one thread, as members are trained. Both sides take turns in fresh processes; of each the fastest repetition counts.
The last loss of both sides is the same to the bit, or this ends with an error.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import nn

from flipguard._heap import keep_freed_memory
from flipguard.models import build_model
from flipguard.training.recipe import Recipe, build_optimiser

JOBS = ("resnet18", "transformer", "mlp")


class Texts(nn.Module):
    """Embeddings, six blocks, the mean over a text's tokens, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30_522, 384)
        layer = nn.TransformerEncoderLayer(384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 6)
        self.head = nn.Linear(384, 150)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(x)).mean(1))


def made(job: str) -> tuple[nn.Module, torch.Tensor, int, Recipe]:
    if job == "transformer":
        recipe = Recipe(optimiser="adamw", learning_rate=1e-4)
        return Texts(), torch.randint(0, 30_522, (64, 16)), 150, recipe
    if job == "mlp":
        return build_model("mlp", classes=10, hidden=[128]), torch.randn(128, 64), 10, Recipe()
    network = build_model(job, classes=100, width=32).to(memory_format=torch.channels_last)
    return network, torch.randn(128, 3, 32, 32).to(memory_format=torch.channels_last), 100, Recipe()


def measure(job: str, steps: int) -> dict[str, float]:
    """Milliseconds of a step, the share of them that the system took, the largest memory, the last loss."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    network, x, classes, recipe = made(job)
    y = torch.randint(0, classes, (len(x),))
    optimiser = build_optimiser([{"params": list(network.parameters())}], recipe)
    for step in range(steps + 3):
        if step == 3:
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    system = (after.ru_stime - before.ru_stime) / took
    return {"ms": took / steps * 1e3, "system": system, "peak": after.ru_maxrss / 2**20, "loss": loss.item()}


def side(job: str, steps: int, processes: int, *, kept: bool) -> dict[str, float]:
    """The mean over processes side by side."""
    call = [sys.executable, __file__, "--child", job, "--steps", str(steps), *(["--kept"] if kept else [])]
    running = [subprocess.Popen(call, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    found = [json.loads(one.communicate()[0]) for one in running]
    return {name: sum(one[name] for one in found) / len(found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="of one repetition; by default what fits the job")
    parser.add_argument("--child", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--kept", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        if given.kept and not keep_freed_memory():
            sys.exit("this C library is not glibc, or its variables are set: there is nothing to compare.")
        print(json.dumps(measure(given.child, given.steps)))
        return
    print(f"{given.processes} processes of one thread, torch {torch.__version__}: a step, and the most memory")
    for job in JOBS:
        steps = given.steps or {"mlp": 3000}.get(job, 12)
        rounds = [
            [side(job, steps, given.processes, kept=kept) for kept in (False, True)] for _ in range(given.repetitions)
        ]
        default, ours = (min((both[kept] for both in rounds), key=lambda one: one["ms"]) for kept in (0, 1))
        if default["loss"] != ours["loss"]:
            sys.exit(f"{job}: the losses differ, {default['loss']} and {ours['loss']}.")
        said = [
            f"{one['ms']:.2f} ms, {one['system']:.0%} the system's, {one['peak']:.2f} GB" for one in (default, ours)
        ]
        print(f"{job}: {said[0]}; kept {said[1]}: {default['ms'] / ours['ms']:.2f} times as fast")


if __name__ == "__main__":
    main()
