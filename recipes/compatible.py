"""The targeted baselines of ELODI's Table 1 that are not distillation, and what corruption and strange data do to them.

    python recipes/compatible.py --data digits --out OUT
    python recipes/compatible.py --data cifar100 --root DATA --out OUT --robust

Three groups, each with its own pair of old and new models. A small old network is replaced by a larger one (none, bct,
ract in both forms, bu_cr as an objective). The same pair without training: `bu_cr rewritten` stores what the CR rule
keeps of the untreated pair's predictions, its reliability estimated on validation data. An old network of half the data
is fine-tuned on all of it (`fine-tuned`), and its weights are mixed with the new ones (`weight_interpolation`, the
share chosen on validation data; `soup` of three). `--robust` adds the error under CIFAR-C's corruptions, the mean over
kinds and severities, and how well entropy tells re-cropped SVHN from the test part.

OUT/compatible.json has each seed's counts of the five outcomes and the rest; the table gives means over seeds.
"""

import argparse
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import flipguard
from flipguard import metrics
from flipguard.data import CORRUPTIONS, Augmentation, Batches, DataSet, corrupted, load_data, split_validation
from flipguard.ensembles import NetworkReference, SingleStudent
from flipguard.methods import build_method, choose_alpha
from flipguard.metrics import Tally, tally
from flipguard.training import Job, ModelSpec, Recipe, Seeds, as_predictions, fit, predict_logits, train_network

GPU = Recipe(
    epochs=16, batch_size=512, learning_rate=0.4, weight_decay=5e-4, precision="bf16", channels_last=True, clip_norm=5.0
)
CPU = Recipe(epochs=12, batch_size=64, learning_rate=0.05, weight_decay=5e-4)
# The old network, the new one, the recipe, augmentation.
PRESETS: dict[str, tuple[ModelSpec, ModelSpec, Recipe, Augmentation | None]] = {
    "digits": (ModelSpec("mlp", {"hidden": (12,)}), ModelSpec("mlp", {"hidden": (48,)}), CPU, None),
    "cifar100": (ModelSpec("resnet10", {"width": 32}), ModelSpec("resnet18", {"width": 32}), GPU, Augmentation()),
}
TREATMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "bct": ("bct", {}),
    "ract": ("ract", {}),
    "ract contrastive": ("ract", {"form": "contrastive"}),
    "bu_cr": ("bu_cr", {}),
}
FIGURES: dict[str, Callable[[Tally], Any]] = {
    "ER old": metrics.error_rate_old,
    "ER new": metrics.error_rate_new,
    "NFR": metrics.negative_flip_rate,
    "relative NFR": metrics.relative_negative_flip_rate,
    "churn": metrics.churn,
}


class Study:
    """One seed: its networks, and what they say."""

    def __init__(self, given: argparse.Namespace, seed: int) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.old, self.new, recipe, self.augmentation = PRESETS[given.data]
        self.recipe = recipe if given.epochs is None else replace(recipe, epochs=given.epochs)
        name = "digits" if given.data == "digits" else f"mosaic:{given.data}"
        self.data = split_validation(load_data(name, folder=given.root), size=0.1, seed=0)
        self.seed, self.robust, self.root = seed, given.robust, given.root
        self.label = self.data.test.y.numpy()

    def train(self, model: ModelSpec, name: str, options: dict[str, Any], seed: int, old: Any = None) -> nn.Module:
        references = {} if old is None else {"old": NetworkReference("old", [old])}
        return train_network(
            model,
            self.data,
            build_method(name, **options),
            self.recipe,
            seeds=Seeds.of(1000 * self.seed + seed),
            references=references,
            augmentation=self.augmentation,
            device=self.device,
        )

    def tuned(self, network: nn.Module, seed: int, *, half: bool = False) -> nn.Module:
        """A copy of the network, trained on from where it is."""
        split = self.data.train.select(list(range(len(self.data.train) // 2))) if half else self.data.train
        split = split.to(self.device)

        def batches(epoch: int, start: int) -> Batches:
            return Batches(
                split,
                self.recipe.batch_size,
                order_seed=1000 * self.seed + seed,
                augment_seed=1000 * self.seed + seed,
                epoch=epoch,
                epochs=self.recipe.epochs,
                start_step=start,
                drop_last=True,
                augmentation=self.augmentation,
                normalisation=self.data.normalisation,
                device=self.device,
                channels_last=self.recipe.channels_last,
            )

        job = Job(batches, len(batches(0, 0)), self.recipe, device=self.device)
        return fit(SingleStudent(copy.deepcopy(network)), build_method("none"), job)

    def part(self, name: str) -> list[Any]:
        chosen = self.data.part(name)
        return list(Batches(chosen, 1024, normalisation=self.data.normalisation, device=self.device))

    def says(self, network: nn.Module, data: DataSet | None = None, part: str = "test") -> np.ndarray:
        return predict_logits(network, data or self.data, part, device=self.device)

    def record(self, old: nn.Module, new: nn.Module) -> dict[str, Any]:
        before, after = (self.says(network) for network in (old, new))
        found: dict[str, Any] = {"counts": counts(self.label, before.argmax(1), after.argmax(1))}
        return found | (self.robustness(new, after) if self.robust else {})

    def robustness(self, network: nn.Module, said: np.ndarray) -> dict[str, float]:
        wrong = [
            float((self.says(network, corrupted(self.data, kind, severity)).argmax(1) != self.label).mean())
            for kind in CORRUPTIONS
            for severity in range(1, 6)
        ]
        strange = load_data("mosaic:svhn", folder=self.root)
        outside = self.says(network, replace(strange, normalisation=self.data.normalisation))
        entropies = (metrics.predictive_entropy_per_sample(logits) for logits in (said, outside))
        return {
            "corrupted error": float(np.mean(wrong)),
            "entropy outside": metrics.predictive_entropy(outside),
            "AUROC": metrics.auroc(*entropies),
        }


def counts(label: np.ndarray, old: np.ndarray, new: np.ndarray) -> list[int]:
    return [int(n) for n in tally(label, old, new).count[:5]]


def replaced(study: Study) -> dict[str, Any]:
    """A small network gives way to a larger one."""
    old = study.train(study.old, "none", {}, 1)
    networks = {row: study.train(study.new, name, options, 2, old) for row, (name, options) in TREATMENTS.items()}
    found = {row: study.record(old, network) for row, network in networks.items()}
    sides = (old, networks["none"])
    test, held = (
        [as_predictions(study.says(network, part=part), study.data, part) for network in sides]
        for part in ("test", "validation")
    )
    for ratio in (2, 5, 10):
        stored = flipguard.rewrite(test, rule="cr", cost_ratio=ratio, calibrate_on=held).predictions
        codes = stored.table(["prediction"])["prediction"].to_numpy()
        before = study.says(old).argmax(1)
        found[f"bu_cr rewritten, {ratio}"] = {"counts": counts(study.label, before, codes)}
    return found


def mixed(study: Study) -> dict[str, Any]:
    """A network of half the data is fine-tuned on all of it; then its weights and the new ones are averaged."""
    old = study.tuned(study.new.build(len(study.data.classes), 1000 * study.seed + 3), 3, half=True)
    news = [study.tuned(old, 4 + place) for place in range(3)]
    train, validation = study.part("train"), study.part("validation")
    choice = choose_alpha(old, news[0], validation, batches=train)
    between = build_method("weight_interpolation", alpha=choice.alpha)(old, news[0], batches=train)
    soup = build_method("soup")(news, batches=train)
    found = {"fine-tuned": news[0], "weight_interpolation": between, "soup": soup}
    records = {row: study.record(old, network) for row, network in found.items()}
    records["weight_interpolation"]["alpha"] = choice.alpha
    return records


def table(seeds: list[dict[str, Any]]) -> str:
    further = sorted({name for row in seeds[0].values() for name in row if name != "counts"})
    titles = [*FIGURES, *further]
    lines = [f"| treatment | {' | '.join(titles)} |", f"|---|{'---|' * len(titles)}"]
    for row in seeds[0]:
        tallies = [Tally(count=np.array([*s[row]["counts"], 0, 0]), missing=np.zeros(2, np.int64)) for s in seeds]
        cells = [f"{100 * np.mean([float(figure(t)) for t in tallies]):.2f}" for figure in FIGURES.values()]
        for name in further:
            values = [s[row][name] for s in seeds if name in s[row]]
            cells.append(f"{np.mean(values):.3f}" if values else "–")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=PRESETS, default="digits")
    parser.add_argument("--root", help="a folder that holds cifar100/ and svhn/ as mosaics")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--robust", action="store_true", help="corruptions and out-of-distribution data (not digits)")
    given = parser.parse_args()
    if given.robust and given.data == "digits":
        parser.error("--robust needs images of at least 16 by 16: use --data cifar100")
    given.out.mkdir(parents=True, exist_ok=True)
    found = []
    for seed in range(given.seeds):
        study = Study(given, seed)
        found.append(replaced(study) | mixed(study))
        (given.out / "compatible.json").write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
