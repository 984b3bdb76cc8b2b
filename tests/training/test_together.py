"""Members in one step: each ends with the weights that it has alone; what cannot go together says why."""

from dataclasses import replace
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
from flipguard.training.together import Together
from flipguard.training.waves import in_groups
from flipguard.types import Normalisation

C, B, STEPS, SEEDS = 7, 13, 5, (1, 2, 3)
RECIPE = Recipe(epochs=1, batch_size=B, learning_rate=0.05, clip_norm=5.0)
BOTH = pytest.mark.parametrize("engine", ["stacked", "grouped"])
MODELS = {
    "resnet20": ModelSpec("resnet20", {"width": 3}),
    "resnet10": ModelSpec("resnet10", {"width": 5}),
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
    assert sum(1 for _ in Together(runs, engine).updates()) == recipe.epochs * STEPS
    assert {run.engine for run in runs} == {engine}
    return [dict(run.released().state_dict()) for run in runs]


def distance(one: dict[str, Tensor], other: dict[str, Tensor], start: nn.Module) -> float:
    """How far two trained networks are apart, as a share of how far training has moved the second."""
    names, first = [name for name in one if one[name].is_floating_point()], start.state_dict()
    apart = sum(float((one[name].double() - other[name].double()).square().sum()) for name in names)
    moved = sum(float((first[name].double() - other[name].double()).square().sum()) for name in names)
    return (apart / moved) ** 0.5


@BOTH
@pytest.mark.parametrize("name", MODELS)
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


@BOTH
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


@BOTH
def test_bf16_is_within_its_rounding(engine: Engine) -> None:
    model, half = MODELS["resnet20"], replace(RECIPE, precision="bf16")
    for seed, member in zip(SEEDS, together(engine, model, half), strict=True):
        start, plain = model.build(C, seed), alone(model, half, seed)
        rounding = distance(plain, alone(model, RECIPE, seed), start)
        assert distance(member, plain, start) < 2 * rounding < 0.5


@BOTH
def test_the_method_is_each_members_own(engine: Engine) -> None:
    smooth = build_method("none", label_smoothing=0.2)
    for seed, member in zip(SEEDS, together(engine, MODELS["mlp"], RECIPE, method=smooth), strict=True):
        start = MODELS["mlp"].build(C, seed)
        assert distance(member, alone(MODELS["mlp"], RECIPE, seed, method=smooth), start) < 1e-4
        assert distance(member, alone(MODELS["mlp"], RECIPE, seed), start) > 1e-2


@pytest.mark.parametrize(
    ("options", "change", "reason"),
    [
        ({}, {"accumulate": 13}, "batches are accumulated in parts"),
        ({}, {"checkpoint_activations": True}, "activations are computed again"),
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


def test_one_that_never_fits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(Together):
        def updates(self) -> Any:
            raise OutOfMemory("too large")
            yield

    monkeypatch.setattr("flipguard.training.waves.Together", Never)
    with pytest.raises(OutOfMemory, match="too large"):
        list(in_groups([0, 1], lambda s: begun(MODELS["mlp"], RECIPE, s), "stacked", "cpu"))


@BOTH
def test_a_loss_that_is_not_finite_names_its_rows(engine: Engine) -> None:
    recipe = replace(RECIPE, learning_rate=1e30, warmup=0.0, clip_norm=None)
    with pytest.raises(TrainingError, match=r"not finite at epoch 0, step \d \(training rows \d"):
        together(engine, MODELS["cnn"], recipe)
