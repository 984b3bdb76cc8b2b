"""What each process of `test_sharding.py`'s teams does: `python sharded_team.py FOLDER train compare`."""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

from flipguard.data import DataSet, load_data, split_validation
from flipguard.ensembles import JointStudent, NetworkReference, SingleStudent
from flipguard.methods import build_method
from flipguard.training import ModelSpec, Recipe, Seeds, train_network
from flipguard.training.distributed import place
from flipguard.training.loop import Run, fit
from flipguard.training.network import begin_network
from flipguard.types import InputError, Reference

PERCEPTRON, CONVOLUTIONS = ModelSpec("mlp", {"hidden": (23, 19)}), ModelSpec("cnn", {"width": 7})
WORDS = ModelSpec("text_transformer", {"vocabulary": 50, "length": 12, "width": 16, "layers": 2, "heads": 2})
STATE = "state.safetensors"
CASES: dict[str, tuple[ModelSpec, str, dict[str, Any], dict[str, Any]]] = {
    "BatchNorm": (CONVOLUTIONS, "kd", {}, {}),
    "AdamW, label smoothing": (
        PERCEPTRON,
        "none",
        {"label_smoothing": 0.1},
        {"optimiser": "adamw", "learning_rate": 1e-3, "decay_all": False},
    ),
    "activations again": (CONVOLUTIONS, "none", {}, {"checkpoint_activations": True}),
    "bf16": (PERCEPTRON, "none", {}, {"precision": "bf16"}),
    "clipped": (PERCEPTRON, "fd_kl", {}, {"clip_norm": 0.3, "accumulate": 2}),
    "features, two epochs": (PERCEPTRON, "bct", {}, {"epochs": 2}),
    "several networks": (PERCEPTRON, "codistill_l1", {}, {}),
    "stale copies": (PERCEPTRON, "codistill_ce", {"every": 2, "burn_in": 0.0, "beta": 1.0}, {}),
    "perturbed by a student of several": (
        CONVOLUTIONS,
        "latent_be",
        {"members": 2, "perturbation": "tdiv_sdiv"},
        {},
    ),
    "perturbed, with a second pass": (PERCEPTRON, "elodi", {"perturbation": "ods"}, {}),
    "texts": (WORDS, "none", {}, {}),
}


class Stop(Exception):
    pass


def references(model: ModelSpec) -> dict[str, Reference]:
    networks = [model.build(10, seed) for seed in (5, 6)]
    return {"old": NetworkReference("old", networks[:1]), "ensemble": NetworkReference("ensemble", networks)}


def train(folder: Path) -> None:
    """A run that is stopped in the midst of an epoch, after a save at step 3, and goes on; one that was, goes on."""
    (rank, _), data = place(), load_data("digits")
    recipe = Recipe(epochs=2, batch_size=120, accumulate=2, clip_norm=1.0, decay_all=False)
    records: list[Mapping[str, float]] = []
    kd, stops = build_method("kd"), not (folder / STATE).exists()

    def method(student: Any, references: Any, batch: Any) -> Any:
        if stops and int(batch.step) == 5:
            raise Stop
        return kd(student, references, batch)

    options: dict[str, Any] = {"seeds": Seeds.of(3), "references": references(PERCEPTRON), "sharded": True}
    options |= {"checkpoint": folder / STATE, "checkpoint_every": 3}
    options["on_epoch"] = lambda record, network: records.append({**record.terms, "error": record.train_error})
    if stops:
        try:
            train_network(PERCEPTRON, data, method, recipe, **options)
        except Stop:
            stops = False
        if rank == 0:
            shutil.copy(folder / STATE, folder / "stopped.safetensors")
    network = train_network(PERCEPTRON, data, method, recipe, **options)
    torch.save(network.state_dict(), folder / f"{rank}.pt")
    (folder / f"{rank}.json").write_text(json.dumps(records))


def compare(folder: Path) -> None:
    """Each case in pieces and whole, both by this team: the largest difference of the weights and statistics."""
    rank, _ = place()
    told = {"worst": {name: worst(name) for name in CASES}, "held": held(), "refused": refused()}
    (folder / f"compared-{rank}.json").write_text(json.dumps(told))


def worst(name: str) -> float:
    model, method, options, recipe = CASES[name]
    built = build_method(method, **options)
    needed = {key: value for key, value in references(model).items() if key in getattr(built, "needs", ())}
    data = texts() if model is WORDS else digits()
    states = []
    for sharded in (False, True):
        network = train_network(
            model,
            data,
            built,
            Recipe(**{"epochs": 1, "batch_size": 240, **recipe}),
            seeds=Seeds.of(3),
            references=needed,
            sharded=sharded,
            choose_epoch="validation",
        )
        assert not any(isinstance(value, DTensor) for value in network.state_dict().values())
        states.append(network.state_dict())
    # Of data parallel networks the first process's counts: BatchNorm's statistics are not brought to the others.
    shared = [states[0]]
    distributed.broadcast_object_list(shared, 0)
    whole, pieces = shared[0], states[1]
    assert list(whole) == list(pieces)
    return max(float((whole[name].double() - pieces[name].double()).abs().max()) for name in whole)


@cache
def digits() -> DataSet:
    return split_validation(load_data("digits"), size=100, seed=0)


def texts() -> DataSet:
    """Rows of words by number, whose classes are there to be learnt."""
    data = digits()

    def encoded(x: torch.Tensor) -> dict[str, torch.Tensor]:
        ids = (x.flatten(1)[:, 10:22] * 3).long().clamp(0, 49)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    parts = {name: replace(data.part(name), x=encoded(data.part(name).x)) for name in data.parts()}
    return replace(data, **parts, kind="text", normalisation=None)


def held() -> dict[str, dict[str, int]]:
    """Bytes of weights, gradients and the optimiser's tensors that this process holds after an update."""
    model = ModelSpec("mlp", {"hidden": (256, 256, 256, 256)})
    recipe = Recipe(epochs=1, batch_size=240, optimiser="adamw")
    found = {}
    for sharded in (False, True):
        run = begin_network(model, digits(), build_method("none"), recipe, seeds=Seeds.of(3), sharded=sharded)
        run.optimiser.zero_grad = lambda **_: None
        next(run.updates())
        found["pieces" if sharded else "whole"] = counted(run)
    return found


def counted(run: Run) -> dict[str, int]:
    weights = [p for p in run.student.parameters() if p.requires_grad]
    states = [v for values in run.optimiser.state.values() for v in values.values() if torch.is_tensor(v) and v.ndim]
    several = {"weights": weights, "gradients": [p.grad for p in weights], "optimiser": states}
    return {name: sum(local(value) for value in values) for name, values in several.items()}


def local(value: Any) -> int:
    piece = value.to_local() if isinstance(value, DTensor) else value
    return int(piece.numel() * piece.element_size())


class Scaled(nn.Module):
    """A network with one number to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(64, 10), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.inner(x.flatten(1))


def refused() -> list[str]:
    """What is said of a student that cannot be cut, and of those of which a mean or every member is wanted."""
    none, recipe, found = build_method("none"), Recipe(batch_size=240), []
    run = begin_network(PERCEPTRON, digits(), none, recipe, seeds=Seeds.of(3))
    averaged = replace(run.job, sharded=True, recipe=replace(recipe, average=1))
    pair = JointStudent([PERCEPTRON.build(10, seed) for seed in (3, 4)])
    for student, job in (
        (SingleStudent(Scaled()), replace(run.job, sharded=True)),
        (SingleStudent(PERCEPTRON.build(10, 3)), averaged),
        (pair, replace(run.job, sharded=True, all_members=True)),
    ):
        try:
            fit(student, none, job)
        except InputError as error:
            found.append(str(error))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    for command in sys.argv[2:]:
        {"train": train, "compare": compare}[command](Path(sys.argv[1]))
