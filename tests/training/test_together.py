"""Members in one step: each ends with the weights that it has alone; what cannot go together says why."""

import fcntl
import logging
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flipguard.data import Augmentation, DataSet, Split
from flipguard.ensembles import NetworkReference
from flipguard.methods import NoTreatment, build_method
from flipguard.training import (
    ModelSpec,
    Recipe,
    Run,
    Seeds,
    TrainingError,
    begin_network,
    fit_members,
    train_network,
)
from flipguard.training.capture import CannotCapture
from flipguard.training.engines import Engine
from flipguard.training.errors import OutOfMemory
from flipguard.training.together import Together, group_size
from flipguard.training.turns import Turns
from flipguard.training.waves import in_groups
from flipguard.types import Normalisation

C, B, STEPS, SEEDS = 7, 13, 5, (1, 2, 3)
RECIPE = Recipe(epochs=1, batch_size=B, learning_rate=0.05, clip_norm=5.0)
BOTH = pytest.mark.parametrize("engine", ["stacked", "grouped"])
ALL = pytest.mark.parametrize("engine", ["stacked", "grouped", "paired"])
MODELS = {
    "resnet20": ModelSpec("resnet20", {"width": 3}),
    "resnet10": ModelSpec("resnet10", {"width": 5}),
    "resnet18": ModelSpec("resnet18", {"width": 8}),
    "resnet18_w32": ModelSpec("resnet18", {"width": 32}),
    "cnn": ModelSpec("cnn", {"in_channels": 3, "width": 5, "feature_width": 11}),
    "mlp": ModelSpec("mlp", {"input_size": 3 * 11 * 11, "hidden": (13,)}),
}
MLP = ModelSpec("mlp", {"input_size": 11, "hidden": (13,)})


def images(rows: int = STEPS * B + 3, side: int = 11) -> DataSet:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.integers(0, 256, (rows, 3, side, side), dtype=np.uint8))
    split = Split(x, torch.from_numpy(generator.integers(0, C, rows)), np.arange(rows))
    normalisation = Normalisation((0.5,) * 3, (0.2,) * 3)
    return DataSet("random", split, split, tuple("abcdefg"), "image", normalisation=normalisation)


def begun(model: ModelSpec, recipe: Recipe, seed: int, **options: Any) -> Run:
    augmentation, method = Augmentation(2), options.pop("method", NoTreatment())
    return begin_network(model, images(), method, recipe, seeds=Seeds.of(seed), augmentation=augmentation, **options)


def alone(model: ModelSpec, recipe: Recipe, seed: int, **options: Any) -> dict[str, Tensor]:
    run = begun(model, recipe, seed, **options)
    for _ in run.updates():
        pass
    return dict(run.released().state_dict())


def together(engine: Engine, model: ModelSpec, recipe: Recipe, **options: Any) -> list[dict[str, Tensor]]:
    runs = [begun(model, recipe, seed, **options) for seed in SEEDS]
    size = group_size(engine, len(runs))
    for start in range(0, len(runs), size):
        updates = Together(runs[start : start + size], engine).updates()
        assert sum(1 for _ in updates) == recipe.epochs * STEPS
    assert {run.engine for run in runs} == {engine}
    return [dict(run.released().state_dict()) for run in runs]


def distance(one: dict[str, Tensor], other: dict[str, Tensor], start: nn.Module) -> float:
    """How far two trained networks are apart, as a share of how far training has moved the second."""
    names, first = [name for name in one if one[name].is_floating_point()], start.state_dict()
    apart = sum(float((one[name].double() - other[name].double()).square().sum()) for name in names)
    moved = sum(float((first[name].double() - other[name].double()).square().sum()) for name in names)
    return (apart / moved) ** 0.5


@pytest.mark.parametrize(
    ("engine", "name"),
    [(engine, name) for engine in ("stacked", "grouped") for name in ("resnet20", "resnet10", "cnn", "mlp")]
    + [("paired", name) for name in MODELS if name != "mlp"],
)
def test_five_steps_are_those_of_each_alone(name: str, engine: Engine) -> None:
    """Own initialisation, order, crops, clipping and BatchNorm statistics; a schedule; momentum."""
    model = MODELS[name]
    found = together(engine, model, RECIPE)
    for seed, member in zip(SEEDS, found, strict=True):
        wanted = alone(model, RECIPE, seed)
        assert list(member) == list(wanted)
        assert distance(member, wanted, model.build(C, seed)) < 1e-4
        for key, value in wanted.items():
            if not value.is_floating_point():
                assert torch.equal(member[key], value)
    assert distance(found[0], found[1], model.build(C, 1)) > 0.1


@ALL
@pytest.mark.parametrize(
    "recipe",
    [
        replace(RECIPE, optimiser="adamw", learning_rate=0.002, epochs=2),
        replace(RECIPE, channels_last=True, decay_all=False, clip_norm=None),
    ],
    ids=["adamw", "channels_last"],
)
def test_optimisers_and_layouts(engine: Engine, recipe: Recipe) -> None:
    for seed, member in zip(SEEDS, together(engine, MODELS["cnn"], recipe), strict=True):
        assert distance(member, alone(MODELS["cnn"], recipe, seed), MODELS["cnn"].build(C, seed)) < 1e-4


@ALL
def test_bf16_is_within_its_rounding(engine: Engine) -> None:
    model, half = MODELS["resnet20"], replace(RECIPE, precision="bf16")
    for seed, member in zip(SEEDS, together(engine, model, half), strict=True):
        start, plain = model.build(C, seed), alone(model, half, seed)
        rounding = distance(plain, alone(model, RECIPE, seed), start)
        assert distance(member, plain, start) < 2 * rounding < 0.5


@ALL
def test_the_method_is_each_members_own(engine: Engine) -> None:
    smooth, model = build_method("none", label_smoothing=0.2), MODELS["cnn" if engine == "paired" else "mlp"]
    for seed, member in zip(SEEDS, together(engine, model, RECIPE, method=smooth), strict=True):
        start = model.build(C, seed)
        assert distance(member, alone(model, RECIPE, seed, method=smooth), start) < 1e-4
        assert distance(member, alone(model, RECIPE, seed), start) > 1e-3


class HeldSmall:
    """A loss that reads the weights themselves."""

    needs: tuple[str, ...] = ()

    def __call__(self, student: Any, references: Any, batch: Any) -> Any:
        step = NoTreatment()(student, references, batch)
        squares = torch.stack([own.square().sum() for own in student.parameters()]).sum()
        return replace(step, loss=step.loss + 0.05 * squares)


@ALL
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_loss_may_read_the_weights(engine: Engine, precision: Any) -> None:
    """What it leaves in their gradients is added to, whatever else a pass reads."""
    model, recipe = MODELS["cnn"], replace(RECIPE, precision=precision)
    for seed, member in zip(SEEDS, together(engine, model, recipe, method=HeldSmall()), strict=True):
        start, wanted = model.build(C, seed), alone(model, recipe, seed, method=HeldSmall())
        missed = distance(alone(model, recipe, seed), wanted, start)
        assert distance(member, wanted, start) < 0.1 * missed


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        ({}, {"accumulate": 13}, "batches are accumulated in parts"),
        ({}, {"checkpoint_activations": True}, "activations are computed again"),
        ({}, {"epochs": 2, "scales": (0.5, 1.0)}, "images grow with the training"),
        ({"method": build_method("codistill_l1")}, {}, "something else than one plain network"),
        ({"method": build_method("kd"), "references": True}, {}, "the method has references"),
    ],
)
def test_runs_that_cannot_go_together(options: dict[str, Any], change: dict[str, Any], reason: str) -> None:
    if options.get("references"):
        options = {**options, "references": {"old": NetworkReference("old", [MODELS["cnn"].build(C, 9)])}}
    runs = [begun(MODELS["cnn"], replace(RECIPE, **change), seed, **options) for seed in SEEDS]
    with pytest.raises(CannotCapture, match=reason):
        next(Together(runs, "stacked").updates())


def asks_twice(student: Any, references: Any, batch: Any) -> Any:
    student(batch.x + 0)
    return NoTreatment()(student, references, batch)


@pytest.mark.parametrize(
    ("engine", "options", "method", "reason"),
    [
        ("stacked", {}, asks_twice, "the method asks its student for more than the logits of the batch"),
        ("stacked", {"dropout": 0.2}, NoTreatment(), "the step fails (vmap: called random operation"),
        ("grouped", {"dropout": 0.2}, NoTreatment(), "dropout would not draw what members draw alone"),
        ("paired", {}, NoTreatment(), "no convolution is narrow enough to gain by it"),
    ],
)
def test_what_cannot_go_together_goes_alone(
    engine: Engine, options: Any, method: Any, reason: str, data: DataSet, caplog: pytest.LogCaptureFixture
) -> None:
    """On the CPU to the same bits as ever."""
    model, recipe = replace(MLP, options={**MLP.options, **options}), replace(RECIPE, batch_size=16)
    found = fit_members(model, data, recipe, [1, 2], method=method, engine=engine, processes=1)
    assert f"each member in a process of its own: {reason}" in caplog.text
    assert len(caplog.records) == 1
    wanted = train_network(model, data, NoTreatment(), recipe, seeds=Seeds.of(2)).state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found[1].state_dict().items())


def test_a_group_that_does_not_fit_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for two at a time: five tasks go as two groups of two and one of one."""
    tried: list[int] = []

    class Small(Together):
        def updates(self) -> Any:
            tried.append(len(self.runs))
            if len(self.runs) > 2:
                raise OutOfMemory("too many")
            yield from super().updates()

    monkeypatch.setattr("flipguard.training.waves.Together", Small)
    waves = [
        [seed for seed, _ in wave]
        for wave, _ in in_groups(list(range(5)), lambda s: begun(MODELS["mlp"], RECIPE, s), "stacked", "cpu")
    ]
    assert tried == [5, 3, 2, 2, 1]
    assert waves == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(("most", "tries"), [(2, [2, 2, 1]), (1, [2, 1, 1, 1, 1, 1])])
def test_pairs_go_side_by_side(
    most: int, tries: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two pairs and one that is left over, an update of each in turn; where no pair fits, each by itself."""
    caplog.set_level(logging.INFO)
    tried: list[int] = []
    order: list[int] = []

    class Small(Together):
        def updates(self) -> Any:
            tried.append(len(self.runs))
            if len(self.runs) > most:
                raise OutOfMemory("too many")
            for _ in super().updates():
                order.append(len(self.runs))
                yield

    monkeypatch.setattr("flipguard.training.waves.Together", Small)
    # The CPU does not say how much room it has, and takes one group at a time.
    monkeypatch.setattr("flipguard.training.waves._has_room", lambda device, need: True)
    model = MODELS["cnn"]
    weights = {}
    for wave, _ in in_groups(list(range(5)), lambda s: begun(model, RECIPE, s), "paired", "cpu"):
        assert [seed for seed, _ in wave] == [0, 1, 2, 3, 4]
        weights = {seed: dict(run.released().state_dict()) for seed, run in wave}
    assert tried == tries
    assert order == tries[-len(order) // STEPS :] * STEPS
    assert "5 networks side by side (paired)" in caplog.messages
    for seed, member in weights.items():
        assert distance(member, alone(model, RECIPE, seed), model.build(C, seed)) < 1e-4


@pytest.mark.parametrize("engine", ["stacked", "paired"])
def test_groups_wait_for_their_turn(engine: Any, tmp_path: Path) -> None:
    """Another command has it for a while, which the seconds of the group leave out."""
    file = tmp_path / "turns"
    with file.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ends = threading.Timer(1.5, fcntl.flock, (other, fcntl.LOCK_UN))
        turns, began = Turns(file), time.perf_counter()
        groups = in_groups([0, 1], lambda s: begun(MODELS["cnn"], RECIPE, s), engine, "cpu", turns)
        ends.start()
        seconds = sum(seconds for _, seconds in groups)
        whole = time.perf_counter() - began
    assert turns.waited > 0
    assert seconds < whole - 0.9 * turns.waited


def test_one_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(Together):
        def updates(self) -> Any:
            raise OutOfMemory("too large")
            yield

    monkeypatch.setattr("flipguard.training.waves.Together", Never)
    with pytest.raises(OutOfMemory, match="too large"):
        list(in_groups([0, 1], lambda s: begun(MODELS["mlp"], RECIPE, s), "stacked", "cpu"))


@ALL
def test_a_loss_that_is_not_finite_names_its_rows(engine: Engine) -> None:
    recipe = replace(RECIPE, learning_rate=1e30, warmup=0.0, clip_norm=None)
    with pytest.raises(TrainingError, match=r"not finite at epoch 0, step \d \(training rows \d"):
        together(engine, MODELS["cnn"], recipe)


@BOTH
def test_members_that_end_together_are_told_together(engine: Engine) -> None:
    """One by one, the first would seem to have taken the time of all, and what is left would be far too much."""
    told: list[tuple[int, int]] = []
    fit_members(MODELS["mlp"], images(), RECIPE, SEEDS, engine=engine, on_member=lambda *done: told.append(done))
    assert told == [(0, 3), (3, 3)]
