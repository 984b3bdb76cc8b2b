"""Every engine on a GPU against the plain loop."""

import logging
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.checkpoints import load_facts
from flipguard.data import Augmentation, DataSet, Split
from flipguard.ensembles import NetworkReference, QuickReference
from flipguard.methods import NoTreatment, build_method
from flipguard.training import ModelSpec, Recipe, Seeds, TrainingError, fit_members, train_network
from flipguard.training.network import begin_network
from flipguard.training.together import Together
from flipguard.types import Batch, Normalisation

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

C, N, STEPS = 7, 5 * 64 + 3, 5
MODEL = ModelSpec("resnet20")
RECIPE = Recipe(epochs=1, batch_size=64, learning_rate=0.05, precision="bf16", channels_last=True, clip_norm=5.0)


def images(rows: int = N) -> DataSet:
    generator = np.random.default_rng(0)
    x = torch.from_numpy(generator.integers(0, 256, (rows, 3, 32, 32), dtype=np.uint8))
    split = Split(x, torch.from_numpy(generator.integers(0, C, rows)), np.arange(rows))
    normalisation = Normalisation((0.5,) * 3, (0.25,) * 3)
    return DataSet("random", split, split, tuple("abcdefg"), "image", normalisation=normalisation)


def trained(engine: Any, method: Any = None, recipe: Recipe = RECIPE, references: Any = None, seed: int = 1) -> Any:
    run = begin_network(
        MODEL,
        images(),
        method or NoTreatment(),
        recipe,
        seeds=Seeds.of(seed),
        references=references,
        augmentation=Augmentation(),
        device="cuda",
        engine=engine,
    )
    captured = [run.captured is not None for _ in run.updates()]
    return run.released().state_dict(), all(captured)


def distance(one: Any, other: Any, seed: int = 1, model: ModelSpec = MODEL) -> float:
    """How far two trained networks are apart, as a share of how far training has moved the second."""
    start = model.build(C, seed).cuda().state_dict()
    names = [name for name in one if one[name].is_floating_point()]
    apart = sum(float((one[name].double() - other[name].double()).square().sum()) for name in names)
    moved = sum(float((start[name].double() - other[name].double()).square().sum()) for name in names)
    return (apart / moved) ** 0.5


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_five_captured_steps_are_the_plain_loops(optimiser: Any) -> None:
    recipe = replace(RECIPE, optimiser=optimiser, learning_rate=0.05 if optimiser == "sgd" else 0.001)
    plain, was_captured = trained("plain", recipe=recipe)
    assert not was_captured
    again, _ = trained("plain", recipe=recipe)
    captured, was_captured = trained("captured", recipe=recipe)
    assert was_captured
    print("captured", distance(captured, plain), "plain twice", distance(again, plain))
    assert distance(captured, plain) < max(0.05, 3 * distance(again, plain))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("engine", ["captured", "compiled", "stacked", "grouped", "paired"])
@pytest.mark.parametrize("channels_last", [True, False])
def test_five_steps_of_members_are_within_bf16_rounding(engine: Any, channels_last: bool, tmp_path: Path) -> None:
    """Three at a time, each against itself alone in the plain loop; rounding is how far that is from float32."""
    recipe = replace(RECIPE, channels_last=channels_last)
    members = fit_members(
        MODEL, images(), recipe, [1, 2, 3], augmentation=Augmentation(), device="cuda", engine=engine, folder=tmp_path
    )
    assert [load_facts(path)["engine"] for path in tmp_path.rglob("member.safetensors")] == [engine] * 3
    for seed, member in enumerate(members, 1):
        plain, _ = trained("plain", recipe=recipe, seed=seed)
        again, _ = trained("plain", recipe=recipe, seed=seed)
        exact, _ = trained("plain", recipe=replace(recipe, precision="float32"), seed=seed)
        found = {name: value.cuda() for name, value in member.state_dict().items()}
        rounding, noise = distance(plain, exact, seed), distance(again, plain, seed)
        apart = distance(found, plain, seed)
        print(engine, "channels last" if channels_last else "", seed, apart, "rounding", rounding, "noise", noise)
        assert apart < max(0.05, 2 * rounding, 3 * noise)


@pytest.mark.parametrize("engine", ["stacked", "grouped", "paired"])
def test_members_in_one_step_are_closer_still_in_float32(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Grouped and joint convolutions are other kernels, which round TensorFloat-32 in another order.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    recipe = replace(RECIPE, precision="float32", channels_last=False)
    members = fit_members(MODEL, images(), recipe, [1, 2, 3], augmentation=Augmentation(), device="cuda", engine=engine)
    for seed, member in enumerate(members, 1):
        found = {name: value.cuda() for name, value in member.state_dict().items()}
        apart = distance(found, trained("plain", recipe=recipe, seed=seed)[0], seed)
        print(engine, "float32", apart)
        assert apart < 0.01


def test_auto_measures_once_and_stores_its_choice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flipguard.training")
    recipe = replace(RECIPE, epochs=150)

    def members(seeds: list[int]) -> set[str]:
        fit_members(MODEL, images(), recipe, seeds, augmentation=Augmentation(), device="cuda", folder=tmp_path)
        return {load_facts(path)["engine"] for path in tmp_path.rglob("member.safetensors")}

    (engine,) = members([1, 2, 3])
    (line,) = [message for message in caplog.messages if message.startswith("engine for 3 networks with batches of 64")]
    print(line)
    assert f": {engine} (ms per member-step: captured " in line
    caplog.clear()
    assert members([1, 2, 3, 4]) == {engine}
    assert not any(message.startswith("engine for") for message in caplog.messages)


def test_members_in_one_step_go_on_after_a_stop(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=2)

    def together(name: str) -> Any:
        runs = [
            begin_network(
                MODEL,
                images(),
                NoTreatment(),
                recipe,
                seeds=Seeds.of(seed),
                augmentation=Augmentation(),
                device="cuda",
                checkpoint=tmp_path / f"{name}{seed}.safetensors",
            )
            for seed in (1, 2, 3)
        ]
        return runs, Together(runs, "grouped").updates()

    whole, updates = together("whole")
    assert sum(1 for _ in updates) == 10
    cut, updates = together("cut")
    for _ in range(7):
        next(updates)
    torch.cuda.synchronize()
    for run in cut:
        run.state.save(run.job.checkpoint, 1, 2, run.job.facts)
    rest, updates = together("cut")
    assert sum(1 for _ in updates) == 3
    for seed, (one, other) in enumerate(zip(rest, whole, strict=True), 1):
        assert distance(one.released().state_dict(), other.released().state_dict(), seed) < 0.02


def test_float32_is_closer_still() -> None:
    recipe = replace(RECIPE, precision="float32", channels_last=False, clip_norm=None)
    apart = distance(trained("captured", recipe=recipe)[0], trained("plain", recipe=recipe)[0])
    print("float32", apart)
    assert apart < 0.01


@pytest.mark.parametrize("name", ["elodi", "ensemble_kd", "ensemble_fd"])
def test_methods_with_an_ensemble_are_captured(name: str) -> None:
    networks = [MODEL.build(C, 10 + j).cuda().eval() for j in range(3)]
    references = {"ensemble": NetworkReference("ensemble", networks)}
    plain, _ = trained("plain", build_method(name), references=references)
    captured, was_captured = trained("captured", build_method(name), references=references)
    assert was_captured
    print(name, distance(captured, plain))
    assert distance(captured, plain) < 0.1


@pytest.mark.parametrize("perturbation", [None, "tdiv_sdiv"])
def test_a_batch_ensemble_is_captured(perturbation: str | None) -> None:
    """Members in one folded pass with fused norms; asked one by one, in evaluation, for the perturbation."""
    networks = [MODEL.build(C, 10 + j).cuda().eval() for j in range(3)]
    references = {"ensemble": NetworkReference("ensemble", networks)}
    method = build_method("latent_be", members=3, perturbation=perturbation)
    plain, _ = trained("plain", method, references=references)
    captured, was_captured = trained("captured", method, references=references)
    assert was_captured
    print("latent_be", perturbation, distance(captured, plain))
    assert distance(captured, plain) < 0.1


def test_views_are_captured() -> None:
    """Two views over two epochs are what is shown without; one view is another training."""
    networks = [MODEL.build(C, 10 + j).cuda().eval() for j in range(3)]
    references = {"ensemble": NetworkReference("ensemble", networks)}
    recipe = replace(RECIPE, epochs=2)
    plain, _ = trained("plain", build_method("elodi"), recipe, references)
    kept, was_captured = trained("captured", build_method("elodi"), replace(recipe, views=2), references)
    assert was_captured
    print("views", distance(kept, plain))
    assert distance(kept, plain) < 0.1
    other, _ = trained("captured", build_method("elodi"), replace(recipe, views=1), references)
    assert distance(other, plain) > 2 * distance(kept, plain)


def test_branches_are_held_to_kept_views() -> None:
    """As the heir of an ensemble is trained, with a tail whose weights are averaged."""
    networks = [MODEL.build(C, 10 + j).cuda().eval() for j in range(3)]
    references = {"old": NetworkReference("old", networks)}
    recipe = replace(RECIPE, epochs=4, floor=0.1, tail=0.5, average=2)
    method = build_method("graft", members=2, strength=0.1)
    asked, _ = trained("plain", method, recipe, references)
    kept, was_captured = trained("captured", method, replace(recipe, views=4), references)
    assert was_captured
    print("views of branches", distance(kept, asked))
    assert distance(kept, asked) < 0.1


def test_networks_that_are_dealt_out_are_captured() -> None:
    networks = [MODEL.build(C, 10 + j).cuda().eval() for j in range(3)]
    references = {"ensemble": NetworkReference("ensemble", networks)}
    recipe = replace(RECIPE, dealt=True)
    plain, _ = trained("plain", build_method("elodi"), recipe, references)
    captured, was_captured = trained("captured", build_method("elodi"), recipe, references)
    assert was_captured
    print("dealt", distance(captured, plain))
    assert distance(captured, plain) < 0.1
    every, _ = trained("plain", build_method("elodi"), RECIPE, references)
    assert distance(every, plain) > 2 * distance(captured, plain)


def test_each_size_of_growing_images_is_captured() -> None:
    networks = [MODEL.build(C, 10 + j).cuda().eval() for j in range(2)]
    references = {"ensemble": NetworkReference("ensemble", networks)}
    # Few steps and no half precision: what rounding does to ten of them must not hide what a size does.
    recipe = replace(RECIPE, epochs=2, scales=(0.5, 1.0), dealt=True, precision="float32", learning_rate=0.01)
    plain, _ = trained("plain", build_method("elodi"), recipe, references)
    captured, was_captured = trained("captured", build_method("elodi"), recipe, references)
    assert was_captured
    whole, _ = trained("plain", build_method("elodi"), replace(recipe, scales=()), references)
    print("scales", distance(captured, plain), distance(whole, plain))
    assert distance(captured, plain) < 0.1
    assert distance(whole, plain) > 2 * distance(captured, plain)


def test_members_are_those_trained_alone() -> None:
    alone = trained("captured", seed=2)[0]
    together = fit_members(MODEL, images(), RECIPE, [1, 2, 3], augmentation=Augmentation(), device="cuda")
    found = {name: value.cuda() for name, value in together[1].state_dict().items()}
    assert distance(found, alone, seed=2) < 0.02


def test_a_captured_run_goes_on_after_a_stop(tmp_path: Path) -> None:
    recipe = replace(RECIPE, epochs=2)

    def begin(checkpoint: Path) -> Any:
        return begin_network(
            MODEL,
            images(),
            NoTreatment(),
            recipe,
            seeds=Seeds.of(3),
            augmentation=Augmentation(),
            device="cuda",
            checkpoint=checkpoint,
            engine="captured",
        )

    whole = begin(tmp_path / "whole.safetensors")
    for _ in whole.updates():
        pass
    cut = begin(tmp_path / "cut.safetensors")
    updates = cut.updates()
    for _ in range(7):
        next(updates)
    torch.cuda.synchronize()
    cut.state.save(tmp_path / "cut.safetensors", 1, 2, cut.job.facts)
    rest = begin(tmp_path / "cut.safetensors")
    assert sum(1 for _ in rest.updates()) == 3
    assert distance(rest.released().state_dict(), whole.released().state_dict(), seed=3) < 0.02


def test_a_loss_that_is_not_finite_stops_a_captured_run() -> None:
    with pytest.raises(TrainingError, match=r"not finite at epoch 0, step \d \(training rows \d"):
        trained("captured", recipe=replace(RECIPE, learning_rate=1e30, warmup=0.0, clip_norm=None))


def test_quick_copies_say_what_the_networks_say() -> None:
    for name in ("resnet20", "densenet40", "vgg11", "wrn28_1"):
        network = train_network(
            ModelSpec(name),
            images(),
            NoTreatment(),
            replace(RECIPE, precision="float32"),
            seeds=Seeds.of(0),
            device="cuda",
        ).eval()
        reference = NetworkReference("ensemble", [network, network])
        x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
        zero = torch.zeros((), device="cuda")
        batch = Batch(x, zero, zero, zero, zero)
        exact = reference(batch).logits
        wide = QuickReference(reference, torch.float32, torch.device("cuda"))(batch).logits
        assert float((wide - exact).norm() / exact.norm()) < 5e-3
        half = QuickReference(reference, torch.bfloat16, torch.device("cuda"))(batch).logits
        assert float((half - exact).norm() / exact.norm()) < 5e-2


@pytest.mark.parametrize("name", ["resnet20", "wrn28_1"])
def test_every_way_of_asking_networks_says_what_they_say_alone(name: str) -> None:
    networks = [ModelSpec(name).build(C, seed).cuda().eval() for seed in (1, 2, 3)]
    x = torch.randn(64, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    reference = QuickReference(NetworkReference("ensemble", networks), torch.float32, torch.device("cuda"))
    patches = ", from patches"
    assert list(reference._ways) == ["one by one", f"one by one{patches}", "in pairs", f"in pairs{patches}"]
    with torch.no_grad():
        exact = torch.stack([network(x) for network in networks])
        for way in reference._ways.values():
            said = torch.stack(reference._said(way, x))
            assert float((said - exact).norm() / exact.norm()) < 5e-3
    zero = torch.zeros((), device="cuda")
    said = reference(Batch(x, zero, zero, zero, zero)).logits
    assert float((said - exact).norm() / exact.norm()) < 5e-3
    assert len(reference.took) == 4
    assert list(reference._ways) == [min(reference.took, key=reference.took.__getitem__)]


HUNGRY = """
import torch
from torch import nn

HUNGRY = None


class Network(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body, self.head, self.seed = nn.Conv2d(3, 5, 3, stride=4), nn.Linear(5 * 64, classes), torch.initial_seed()

    def forward(self, x):
        if self.training and torch.is_grad_enabled() and self.seed == HUNGRY:
            torch.empty(2 * torch.cuda.get_device_properties(x.device).total_memory, dtype=torch.uint8, device=x.device)
        return self.head(torch.relu(self.body(x)).flatten(1))
"""


def test_a_third_member_that_asks_for_more_than_the_card_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card itself refuses. The message names the knobs, two members stay, and with room it ends as undisturbed.

    One after another: members that are trained side by side are one graph, in which there is no third.
    """
    name = "hungry"
    (tmp_path / f"{name}.py").write_text(HUNGRY)
    monkeypatch.syspath_prepend(tmp_path)
    model = ModelSpec(f"{name}:Network")
    network = import_module(name)

    def members(folder: str) -> list[Any]:
        arguments: dict[str, Any] = {"device": "cuda", "engine": "plain", "folder": tmp_path / folder}
        return fit_members(model, images(), RECIPE, [1, 2, 3], augmentation=Augmentation(), **arguments)

    network.HUNGRY = 3
    expected = (
        r"^out of memory at epoch 0, step 0 with batches of 64: set accumulate above 1 .* or a smaller batch_size"
    )
    with pytest.raises(TrainingError, match=expected):
        members("run")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("member.safetensors")}
    assert len(kept) == 2
    network.HUNGRY = None
    found = members("run")
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
    for seed, (one, other) in enumerate(zip(found, members("undisturbed"), strict=True), 1):
        states = [{key: value.cuda() for key, value in each.state_dict().items()} for each in (one, other)]
        assert distance(*states, seed, model) < 0.02
