"""Seconds of a student that is held to an ensemble, by the ways in which its references are asked. One run.

    python benchmarks/views.py                                          # a minute on a CPU
    python benchmarks/views.py --device cuda --rows 45000 --width 32 --batch 512 --epochs 32 --precision bf16

All members at every step; all of them once of each view (`train.views`); each of its share of every batch
(`train.dealt`); or that, with images that grow for the student (`train.scales`). The sides take turns, and the fastest
of `--runs` counts. Images are random ones of CIFAR's size: speed does not depend on what they show. Beside the seconds
stands the ratio of the operations, a step taken as three forward passes, an answer of each member as one, and an image
by its pixels.
"""

import argparse
import time
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch

from flipguard.data import Augmentation, DataSet, Split
from flipguard.ensembles import NetworkReference
from flipguard.methods import Elodi
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.types import Normalisation

CLASSES = 100
SCALES = (0.625, 0.75, 0.875, 1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    members, views = options.members, options.views
    # What is said of it, the recipe's change, and its operations in steps of a network by itself.
    ways: list[tuple[str, dict[str, Any], float]] = [
        ("asked at every step", {}, 1 + members / 3),
        (f"asked once of {views} views", {"views": views}, 1 + members * views / options.epochs / 3),
        ("each asked of its share", {"dealt": True}, 1 + 1 / 3),
        ("the same, growing images", {"dealt": True, "scales": SCALES}, fmean(s * s for s in SCALES) + 1 / 3),
    ]
    seconds: list[list[float]] = [[] for _ in ways]
    for _ in range(options.runs):
        for took, (_, change, _) in zip(seconds, ways, strict=True):
            took.append(trained(options, change))
    for took, (name, _, counted) in zip(seconds, ways, strict=True):
        ratio, expected = min(seconds[0]) / min(took), ways[0][2] / counted
        print(f"{name:26} {min(took):8.2f} s   {ratio:6.2f} x as fast ({expected:.2f} x by operations)")


def trained(options: Any, change: dict[str, Any]) -> float:
    """A training from its references' first answer to its last step."""
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.integers(0, 256, (options.rows, 3, 32, 32), dtype=np.uint8))
    split = Split(x, torch.from_numpy(generator.integers(0, CLASSES, options.rows)), np.arange(options.rows))
    names = tuple(f"c{i}" for i in range(CLASSES))
    data = DataSet("random", split, split, names, "image", normalisation=Normalisation((0.5,) * 3, (0.25,) * 3))
    model = ModelSpec(options.model, {"width": options.width})
    recipe = Recipe(epochs=options.epochs, batch_size=options.batch, precision=options.precision, clip_norm=5.0)
    members = NetworkReference("ensemble", [model.build(CLASSES, 1 + j) for j in range(options.members)])
    began = time.perf_counter()
    train_network(
        model,
        data,
        Elodi(),
        replace(recipe, channels_last=True, **change),
        seeds=Seeds.of(0),
        references={"ensemble": members.to(options.device)},
        augmentation=Augmentation(),
        device=options.device,
    )
    if options.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
