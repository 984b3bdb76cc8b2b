"""Make every figure of docs/figures.md from small networks, trained here on scikit-learn's digits.

    python recipes/figures.py --out docs/pictures
    python recipes/figures.py --out /tmp/pictures --only epochs churn

All seeds are fixed. The pictures' numbers are in facts.json beside them.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flipguard import Predictions
from flipguard.analysis.churn import Sweep, accuracy_against_churn, churn_against_coefficient
from flipguard.analysis.confidence import entropy_in_and_out, prediction_confidence, regularised_losses
from flipguard.analysis.density import displacement_density
from flipguard.analysis.displacement import displacement_norms
from flipguard.analysis.diversity import DiversityRecord, diversity_over_training
from flipguard.analysis.draw import draw
from flipguard.analysis.ensembles import ensemble_size, uncertainty_of_flips, wrong_class_ranks
from flipguard.analysis.epochs import flips_over_epochs
from flipguard.analysis.interpolation import line_plot, loss_along_line
from flipguard.analysis.members import Members, mixed
from flipguard.analysis.planes import feature_arrows, least_decided, logit_arrows, logit_members
from flipguard.analysis.plots import Plot, joined
from flipguard.analysis.rates import against_parameter, error_against_flips, gain_against_flips
from flipguard.analysis.runs import FinishedRun, read_runs
from flipguard.analysis.trained import digit_embeddings, digit_members
from flipguard.data import Batches, DataSet, load_data, subset
from flipguard.ensembles import NetworkReference, merge
from flipguard.ensembles.perturbations import as_perturbation
from flipguard.methods import build_method
from flipguard.releases import train
from flipguard.spec.training import parse_training_spec
from flipguard.training import Job, ModelSpec, Recipe, Seeds, fit, predict_logits, train_network

SEEDS = (0, 1, 2)
SAMPLES = (0, 60, 200, 400)
RECIPE = Recipe(epochs=20, batch_size=50, learning_rate=0.1, clip_norm=5.0)
SMALL, LARGE = ModelSpec("mlp", {"hidden": (16,)}), ModelSpec("mlp", {"hidden": (64,)})
POINTS = tuple(step / 10 for step in range(-3, 14))


@cache
def data() -> DataSet:
    """Few training samples, so that networks err, and many test samples, so that it shows."""
    return subset(load_data({"name": "digits", "test_size": 0.6}), per_class=40, seed=0)


@cache
def members(width: int, seed: int) -> Members:
    return digit_members(24, width=width, rows=300, seed=seed)


def trained(model: ModelSpec, method: str, seed: int, held: dict[str, Any] | None = None, **options: Any) -> nn.Module:
    built, references = build_method(method, **options), held or {}
    return train_network(model, data(), built, RECIPE, seeds=Seeds.of(seed), references=references)


def as_members(networks: Sequence[nn.Module], source: DataSet | None = None) -> Members:
    source = source or data()
    logits = np.stack([predict_logits(network, source) for network in networks]).astype(np.float64)
    test = source.test
    return Members(tuple(map(str, range(len(logits)))), tuple(test.ids), np.asarray(test.y, np.int64), logits)


@cache
def runs(name: str, method: str, seeds: tuple[int, ...] = SEEDS, **options: Any) -> list[FinishedRun]:
    """Run folders of `flipguard train`, one for each seed: 32 hidden units are replaced by 128."""
    folder = Path(HOME.name) / name
    if method == "elodi":
        options["difference"] = {"reduction": "sum"}
    ensemble = {"ensemble": {"members": options.pop("members")}} if "members" in options else {}
    spec = {
        "data": {"name": "digits", "test_size": 0.6, "per_class": 40, "augment": {"crop_padding": 1, "flip": False}},
        "versions": [
            {"name": "v0", "model": {"name": "mlp", "hidden": [32]}},
            {"name": "v1", "model": {"name": "mlp", "hidden": [128]}},
        ],
        "method": {"name": method, **options, **ensemble},
        "train": {"epochs": 40, "batch_size": 50, "learning_rate": 0.1, "clip_norm": 5.0, "device": "cpu"},
        "members": f"{HOME.name}/members",
        "seed": list(seeds),
    }
    train(parse_training_spec(spec), folder)
    return read_runs(folder)


def updates(found: Sequence[FinishedRun]) -> list[tuple[Any, Any]]:
    return [run.update for run in found]


def error_against_flips_of_methods() -> Plot:
    ways = {
        "no treatment": runs("none", "none"),
        "focal distillation": runs("focal", "fd_lm", strength=0.1),
        "ELODI": runs("elodi", "elodi", members=8),
        "ensemble of 8": runs("paragon", "paragon", members=8),
    }
    return error_against_flips({name: updates(found) for name, found in ways.items()})


def epochs() -> Plot:
    return flips_over_epochs(
        {"no treatment": runs("none", "none"), "focal distillation": runs("focal", "fd_lm", strength=0.1)}
    )


def loss_weight() -> Plot:
    weights = (0.0, 0.2, 0.5, 0.8, 0.95)
    return against_parameter(
        {a: updates(runs(f"alpha_{a}", "elodi", members=4, alpha=a)) for a in weights}, name="loss weight α"
    )


def reference_size() -> Plot:
    sizes = (1, 2, 4, 8)
    return against_parameter(
        {float(m): updates(runs(f"size_{m}", "elodi", members=m)) for m in sizes}, name="members of the reference"
    )


def zoo() -> Plot:
    wanted = [(4, 0), (16, 1), (16, 2), (32, 3), (64, 4)]
    said = []
    for width, seed in wanted:
        network = trained(ModelSpec("mlp", {"hidden": (width,)}), "none", seed)
        test = data().test
        facts = {"model": f"{width} units", "version": f"#{seed}"}
        logits = predict_logits(network, data())
        said.append(Predictions.from_arrays(id=test.ids, label=test.y.numpy(), logits=logits, **facts))
    return gain_against_flips(said)


def sizes() -> Plot:
    """ELODI's three: ensembles of one architecture, of another one when new, and of as many as they have members."""
    old = members(16, 0)
    weak, strong = (
        mixed([digit_members(4, width=width, rows=300, seed=seed + width) for width in widths])
        for widths, seed in (((10, 12, 14, 16, 20, 24), 2000), ((30, 34, 38, 41, 46, 52), 3000))
    )
    pairs = {"equal": (old, members(16, 500)), "larger": (old, members(41, 900)), "mixed": (weak, strong)}
    return ensemble_size(pairs, sizes=(1, 2, 4, 8, 12))


def ranks() -> Plot:
    return wrong_class_ranks(members(16, 0), members(16, 500), sizes=(1, 4))


def uncertainty() -> Plot:
    old, new, treated = [], [], []
    for seed in range(8):
        old.append(trained(SMALL, "none", seed))
        new.append(trained(SMALL, "none", 100 + seed))
        held = {"old": NetworkReference("old", [old[-1]])}
        treated.append(trained(SMALL, "fd_lm", 100 + seed, held, strength=0.1))
    return uncertainty_of_flips(as_members(old), as_members(new), treated=as_members(treated))


def two_class() -> Plot:
    old, new = (digit_members(12, width=8, digits=(3, 8), rows=20, seed=seed) for seed in (0, 1000))
    arrows, around = logit_arrows(old, new), logit_members(old, new)
    density = displacement_density(old, new, samples=(least_decided(old, new),))
    return joined("two-class", "Two-class logits, old to new", "ELODI Fig. 3", [arrows, around, density])


def three_class() -> Plot:
    old, new = (digit_embeddings(12, digits=("3", "5", "8"), per_class=20, epochs=60, seed=seed) for seed in (0, 1000))
    arrows = feature_arrows(old, new)
    density = displacement_density(old.as_members(), new.as_members(), of="feature")
    return joined("three-class", "Two-dimensional features of three classes", "ELODI Fig. 11", [arrows, density])


def density() -> Plot:
    return displacement_density(members(16, 0), members(16, 500), samples=SAMPLES)


def norms_equal() -> Plot:
    return displacement_norms(members(16, 0), members(16, 500), samples=SAMPLES, sizes=(1, 4), centred=True)


def norms_larger() -> Plot:
    return displacement_norms(members(16, 0), members(41, 900), samples=SAMPLES, sizes=(1, 4))


def norms_of_features() -> Plot:
    old, new = (digit_embeddings(16, hidden=32, feature_width=8, per_class=40, seed=seed) for seed in (0, 1000))
    chosen = {"samples": SAMPLES, "sizes": (1, 4), "centred": True}
    return displacement_norms(old.as_members(), new.as_members(), of="feature", **chosen)


@cache
def sweep(method: str, coefficient: str, values: tuple[float, ...], count: int = 5) -> Sweep:
    return {
        value: as_members([trained(LARGE, method, 1000 * run, **{coefficient: value}) for run in range(count)])
        for value in values
    }


ALPHAS, BETAS = (0.0, 0.1, 0.2, 0.3, 0.4), (0.0, 0.1, 0.3, 1.0, 3.0)


def churn() -> Plot:
    return churn_against_coefficient(
        {"α, entropy": sweep("entropy", "alpha", ALPHAS), "β, co-distillation": sweep("codistill_skl", "beta", BETAS)}
    )


def churn_trade_off() -> Plot:
    return accuracy_against_churn(
        {"SKL": sweep("codistill_skl", "beta", BETAS), "cross-entropy": sweep("codistill_ce", "beta", BETAS)}
    )


def confidence() -> Plot:
    plain = sweep("entropy", "alpha", ALPHAS)
    return prediction_confidence(
        {
            "no treatment": plain[0.0],
            "entropy, α = 0.4": plain[0.4],
            "co-distillation, β = 1": sweep("codistill_skl", "beta", BETAS)[1.0],
        }
    )


@cache
def teachers(count: int) -> list[nn.Module]:
    return [trained(LARGE, "none", 10 + seed) for seed in range(count)]


def student(method: str, source: DataSet, count: int, held: Sequence[nn.Module], **options: Any) -> Any:
    """A BatchEnsemble distilled from teachers, one for each member, and what was measured after each epoch."""
    objective = build_method(method, members=count, **options)

    def build(member: int) -> nn.Module:
        torch.manual_seed(5 + member)
        return LARGE.build(len(source.classes), 5 + member)

    def batches(epoch: int, start: int) -> Batches:
        chosen = {"epoch": epoch, "epochs": RECIPE.epochs, "start_step": start, "drop_last": True}
        return Batches(source.train, RECIPE.batch_size, 0, normalisation=source.normalisation, **chosen)

    made = objective.student(build, decay_all=True)
    reference = NetworkReference("ensemble", list(held))
    parts = [list(Batches(part, 1024, normalisation=source.normalisation)) for part in (source.train, source.test)]
    record = DiversityRecord(made, reference, *parts, as_perturbation(options.get("perturbation")))
    fit(made, objective, Job(batches, batches(0, 0).steps, RECIPE), {"ensemble": reference}, on_epoch=record)
    return made, record.points


def line() -> Plot:
    parts = {
        part: list(Batches(data().part(part), 1024, normalisation=data().normalisation)) for part in ("train", "test")
    }
    lines = {}
    for name, method in (("BatchEnsemble", "batch_ensemble"), ("LatentBE", "latent_be")):
        made, _ = student(method, data(), 2, teachers(2))
        ends = merge(made.ensemble, weights=(1, 0)), merge(made.ensemble, weights=(0, 1))
        lines[name] = {part: loss_along_line(*ends, found, points=POINTS) for part, found in parts.items()}
    return line_plot(lines)


def diversity() -> Plot:
    size = 8 / 255
    kinds = {
        "none": None,
        "ConfODS": {"kind": "conf_ods", "size": size},
        "TDiv - SDiv": {"kind": "tdiv_sdiv", "size": size},
    }
    found = {name: student("latent_be", data(), 2, teachers(2), perturbation=kind)[1] for name, kind in kinds.items()}
    return diversity_over_training(found)


def entropy() -> Plot:
    known = subset(data(), classes=[str(digit) for digit in range(7)])
    foreign = subset(data(), classes=[str(digit) for digit in (7, 8, 9)])
    outside = replace(known, test=foreign.test)
    held = [train_network(LARGE, known, build_method("none"), RECIPE, seeds=Seeds.of(10 + seed)) for seed in range(4)]
    reference = {"ensemble": NetworkReference("ensemble", held)}
    distilled = train_network(
        LARGE, known, build_method("ensemble_kd"), RECIPE, seeds=Seeds.of(5), references=reference
    )
    latent, _ = student("latent_be", known, 4, held, perturbation="tdiv_sdiv")
    models = {"ensemble of 4": held, "distilled": [distilled], "LatentBE": [latent.release()]}
    inside, out = ({name: as_members(found, source) for name, found in models.items()} for source in (known, outside))
    return entropy_in_and_out(inside, out)


FIGURES: dict[str, Callable[[], Plot]] = {
    "error_against_flips": error_against_flips_of_methods,
    "ensemble_size": sizes,
    "two_class": two_class,
    "displacement_density": density,
    "wrong_class_ranks": ranks,
    "norms_equal": norms_equal,
    "norms_larger": norms_larger,
    "loss_weight": loss_weight,
    "reference_size": reference_size,
    "three_class": three_class,
    "norms_of_features": norms_of_features,
    "zoo": zoo,
    "uncertainty_of_flips": uncertainty,
    "epochs": epochs,
    "churn": churn,
    "confidence": confidence,
    "churn_trade_off": churn_trade_off,
    "losses": regularised_losses,
    "line": line,
    "diversity": diversity,
    "entropy": entropy,
}
HOME = tempfile.TemporaryDirectory(prefix="figures-")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=FIGURES, default=list(FIGURES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "facts.json"
    facts = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in given.only:
        began = time.perf_counter()
        plot = FIGURES[name]()
        draw(plot, given.out / f"{name}.svg")
        facts[name] = {"source": plot.source, **{fact: round(value, 4) for fact, value in plot.facts.items()}}
        ordered = {key: facts[key] for key in FIGURES if key in facts}
        file.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
