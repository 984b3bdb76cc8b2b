"""Single networks distilled from an ensemble, as LatentBE compares them (Nam et al. 2022, Tables 1, 2, 3 and 8).

    python recipes/ensemble_distillation.py --data digits --out OUT
    python recipes/ensemble_distillation.py --data cifar100 --root DATA --out OUT

M teachers differ by seed alone; each student learns from all of them. Every row is measured on the test part: error,
negative log-likelihood and calibration error, the latter two also after temperature scaling on the validation part
(App. B.3), and negative flips against the first teacher, as if that were the model in production. `batch_ensemble`
answers with M passes, the others with one. (α, τ) are the paper's for the data (Eq. 26; for digits those of CIFAR).

OUT/seed_<S>.json has the figures, OUT/seed_<S>/ what each network said. A row that is there is not trained again, so
other settings need another OUT.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flipguard.checkpoints import load_checkpoint, save_checkpoint
from flipguard.data import Augmentation, DataSet, load_data, split_validation, subset
from flipguard.ensembles import DeepEnsemble, NetworkReference
from flipguard.methods import build_method
from flipguard.methods.latent_be import PAPER_SETTINGS
from flipguard.metrics import figures, fit_temperature, tally
from flipguard.training import ModelSpec, Recipe, Seeds, predict_logits, train_network

GPU = Recipe(
    epochs=16,
    batch_size=512,
    learning_rate=0.4,
    weight_decay=5e-4,
    schedule="one_cycle",
    precision="bf16",
    channels_last=True,
    clip_norm=5.0,
)
CPU = Recipe(epochs=10, batch_size=64, learning_rate=0.05, weight_decay=5e-4, schedule="one_cycle", clip_norm=5.0)
# Where the data comes from, network, recipe, augmentation, and how many samples validate.
PRESETS: dict[str, tuple[str, ModelSpec, Recipe, Augmentation, int]] = {
    "digits": ("digits", ModelSpec("mlp", {"hidden": (32,)}), CPU, Augmentation(1, flip=False), 200),
    "cifar10": ("cifar10", ModelSpec("wrn28_1"), GPU, Augmentation(), 5_000),
    "cifar100": ("mosaic:cifar100", ModelSpec("wrn28_4"), GPU, Augmentation(), 5_000),
}
# Method, options, and whether it takes the paper's α and τ.
ROWS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "none": ("none", {}, False),
    "ensemble_kd": ("ensemble_kd", {}, True),
    "ae_kd": ("ae_kd", {}, True),
    "proxy_end2": ("proxy_end2", {}, False),
    "latent_be": ("latent_be", {}, True),
    "latent_be+conf_ods": ("latent_be", {"perturbation": "conf_ods"}, True),
    "latent_be+tdiv": ("latent_be", {"perturbation": "tdiv"}, True),
    "latent_be+tdiv_sdiv": ("latent_be", {"perturbation": "tdiv_sdiv"}, True),
    "batch_ensemble": ("batch_ensemble", {}, True),
    "batch_ensemble+tdiv_sdiv": ("batch_ensemble", {"perturbation": "tdiv_sdiv"}, True),
}
SHOWN = ("error_rate_new", "nll_new", "ece_new", "cnll_new", "cece_new", "negative_flip_rate")
PARTS = ("validation", "test")


@dataclass(frozen=True)
class Study:
    """One seed's networks: what they learn from, by what recipe, and where they are kept."""

    data: DataSet
    model: ModelSpec
    recipe: Recipe
    augmentation: Augmentation
    folder: Path
    seed: int
    device: str
    seconds: dict[str, float] = field(default_factory=dict)

    def train(self, name: str, method: Any, number: int, references: dict[str, Any]) -> torch.nn.Module:
        began, seeds = time.perf_counter(), Seeds.of(1_000 * (self.seed + 1) + number)
        options = {"augmentation": self.augmentation, "device": self.device, "references": references}
        network = train_network(self.model, self.data, method, self.recipe, seeds=seeds, **options)
        self.seconds[name] = round(time.perf_counter() - began, 1)
        print(f"{name}  {self.seconds[name]:.1f} s", flush=True)
        return network

    def says(self, network: torch.nn.Module) -> dict[str, np.ndarray]:
        return {part: predict_logits(network, self.data, part, device=self.device) for part in PARTS}

    def teacher(self, number: int) -> torch.nn.Module:
        path = self.folder / f"teacher_{number}.safetensors"
        if not path.exists():
            made = self.train(path.stem, build_method("none"), number, {})
            save_checkpoint(path, made.state_dict(), {"model": self.model.name})
        network = self.model.build(len(self.data.classes), 0)
        network.load_state_dict(load_checkpoint(path)[0])
        layout = torch.channels_last if self.recipe.channels_last else torch.preserve_format
        return network.to(self.device, memory_format=layout).eval()

    def student(self, row: str, method: Any, teachers: list[torch.nn.Module]) -> dict[str, np.ndarray]:
        path = self.folder / f"{row}.npz"
        if not path.exists():
            references = {} if row == "none" else {"ensemble": NetworkReference("ensemble", teachers)}
            np.savez(path, **self.says(self.train(row, method, 500, references)))
        return dict(np.load(path))


def load(name: str, root: str | None, per_class: int | None) -> DataSet:
    source, _, _, _, held_out = PRESETS[name]
    data = load_data(source) if root is None else load_data(source, folder=root)
    data = split_validation(data, size=held_out, seed=0)
    return data if per_class is None else subset(data, per_class=per_class)


def method_of(row: str, data: str, members: int) -> Any:
    name, options, tempered = ROWS[row]
    settings = PAPER_SETTINGS.get(data, PAPER_SETTINGS["cifar10"]) if tempered else {}
    own = {"members": members} if name in ("latent_be", "batch_ensemble") else {}
    return build_method(name, **settings, **own, **options)


def measured(said: dict[str, np.ndarray], old: dict[str, np.ndarray], data: DataSet) -> dict[str, float]:
    """The figures of a row on the test part; each model's temperature comes from the validation part."""
    labels = {part: data.part(part).y.cpu().numpy() for part in PARTS}
    temperature = tuple(fit_temperature(each["validation"], labels["validation"]) for each in (old, said))
    answers = [each["test"].argmax(1) for each in (old, said)]
    sums = tally(
        labels["test"],
        *answers,
        old_logits=old["test"],
        new_logits=said["test"],
        temperature=(temperature[0], temperature[1]),
    )
    found = figures(sums)
    return {name: float(found[name]) for name in SHOWN}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=list(PRESETS), required=True)
    parser.add_argument("--root", help="the folder that holds the data (digits need none)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--epochs", type=int, help="default: the preset's")
    parser.add_argument("--per-class", type=int, help="a trial run: so few training samples")
    parser.add_argument("--rows", nargs="*", choices=list(ROWS), default=list(ROWS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    _, model, recipe, augmentation, _ = PRESETS[given.data]
    study = Study(
        load(given.data, given.root, given.per_class),
        model,
        recipe if given.epochs is None else replace(recipe, epochs=given.epochs),
        augmentation,
        given.out / f"seed_{given.seed}",
        given.seed,
        "cuda" if torch.cuda.is_available() else "cpu",
    )
    study.folder.mkdir(parents=True, exist_ok=True)
    teachers = [study.teacher(number) for number in range(given.members)]
    said = {
        "teacher": study.says(teachers[0]),
        "ensemble": study.says(DeepEnsemble(teachers, combination="probabilities")),
    }
    for row in given.rows:
        said[row] = study.student(row, method_of(row, given.data, given.members), teachers)
    rows = {row: measured(each, said["teacher"], study.data) for row, each in said.items()}
    record = {
        "data": given.data,
        "seed": given.seed,
        "members": given.members,
        "epochs": study.recipe.epochs,
        "hardware": torch.cuda.get_device_name(0) if study.device == "cuda" else f"CPU, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "seconds": study.seconds,
        "rows": rows,
    }
    (given.out / f"seed_{given.seed}.json").write_text(json.dumps(record, indent=1))
    print(f"{'':26}" + "".join(f"{name:>20}" for name in SHOWN))
    for row, values in rows.items():
        print(f"{row:26}" + "".join(f"{values[name]:20.4f}" for name in SHOWN))


if __name__ == "__main__":
    main()
