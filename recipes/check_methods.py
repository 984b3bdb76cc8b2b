"""Every objective for two epochs in bf16 on CIFAR-100: does it train, is its step captured, how long does it take?

    python recipes/check_methods.py --data DATA --out OUT

A short look on a GPU before the long tables. Writes OUT/check_methods.json.
"""

import argparse
import json
import logging
import time
from pathlib import Path
from typing import Any

import torch

from flipguard.data import Augmentation, load_data, split_validation
from flipguard.ensembles import NetworkReference
from flipguard.methods import METHODS
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, fit_members, predict_logits

MODEL = ModelSpec("resnet10", {"width": 32})
RECIPE = Recipe(epochs=2, batch_size=512, learning_rate=0.2, precision="bf16", channels_last=True, clip_norm=5.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a folder that holds cifar100/ as mosaics")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = split_validation(load_data("mosaic:cifar100", folder=given.data), size=5_000, seed=0).to(device)
    members = [
        m.to(device) for m in fit_members(MODEL, data, RECIPE, [1, 2, 3], augmentation=Augmentation(), device=device)
    ]
    y = data.part("validation").y.cpu().numpy()
    found: dict[str, Any] = {}
    for name, card in METHODS.items():
        if card.kind != "objective" or (given.only and name not in given.only):
            continue
        began = time.perf_counter()
        references = {
            "old": NetworkReference("old", members[:1]),
            "ensemble": NetworkReference("ensemble", members),
        }
        try:
            run = begin_network(
                MODEL,
                data,
                card.build(),
                RECIPE,
                seeds=Seeds.of(5),
                references={key: references[key] for key in card.references},
                augmentation=Augmentation(),
                device=device,
            )
            captured = False
            for _ in run.updates():
                captured = run.captured is not None
            wrong = float((predict_logits(run.released(), data, "validation", device=device).argmax(-1) != y).mean())
            found[name] = {"error": wrong, "captured": captured, "seconds": round(time.perf_counter() - began, 1)}
        except Exception as error:
            found[name] = {"failed": f"{type(error).__name__}: {error}"[:300]}
        print(name, found[name], flush=True)
        (given.out / "check_methods.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
