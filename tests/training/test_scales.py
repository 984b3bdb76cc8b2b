"""Images that grow with the training."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

import flipguard
from flipguard.data import DataSet, load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import METHODS, Elodi, NoTreatment, build_method
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, train_network
from flipguard.training.capture import CapturedStep, Share, Update
from flipguard.training.engines import Engine, part_of
from flipguard.training.loop import Run
from flipguard.training.network import described, new_student
from flipguard.training.scales import at_scale, scaled, spans
from flipguard.types import Batch, InputError

MODEL = ModelSpec("cnn", {"width": 4})
RECIPE = Recipe(epochs=4, batch_size=64, learning_rate=0.2, scales=(0.5, 0.75, 1.0))
SEEDS = Seeds.of(5)
SIDE = 8


@pytest.fixture(scope="module")
def digits() -> DataSet:
    torch.set_num_threads(1)
    return load_data("digits")


@pytest.fixture
def sides() -> Iterator[list[int]]:
    """The sides of what the first convolution of any such network meets, batch after batch."""
    found: list[int] = []

    def meet(module: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, nn.Conv2d) and (module.in_channels, module.out_channels) == (1, MODEL.options["width"]):
            found.append(given[0].shape[-1])

    hook = register_module_forward_pre_hook(meet)
    yield found
    hook.remove()


def weights(network: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in network.state_dict().values()])


def test_who_does_not_use_it_has_the_facts_of_before(digits: DataSet) -> None:
    """By which a run that was begun without it goes on, and its members are found."""
    unused, used = (
        described(MODEL, digits, NoTreatment(), recipe, SEEDS, None)["recipe"] for recipe in (Recipe(), RECIPE)
    )
    assert "scales" not in unused
    assert used["scales"] == RECIPE.scales


def test_a_student_meets_small_images_first(digits: DataSet, sides: list[int]) -> None:
    train_network(MODEL, digits, NoTreatment(), RECIPE, seeds=SEEDS)
    steps = len(digits.train) // 64
    assert sides == [4] * 2 * steps + [6] * steps + [8] * steps


def test_a_reference_is_asked_of_whole_images(digits: DataSet) -> None:
    met = []

    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = MODEL.build(10, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            met.append(x.shape[-1])
            said: torch.Tensor = self.network(x)
            return said

    references = {"ensemble": NetworkReference("ensemble", [Seen()])}
    train_network(MODEL, digits, Elodi(), RECIPE, seeds=SEEDS, references=references)
    assert set(met) == {SIDE}


def test_scales_of_one_change_nothing(digits: DataSet) -> None:
    one, other = (
        train_network(MODEL, digits, NoTreatment(), replace(RECIPE, scales=scales), seeds=SEEDS)
        for scales in ((), (1.0, 1.0))
    )
    assert torch.equal(weights(one), weights(other))


def test_the_size_is_that_of_the_epoch_whatever_was_stopped(digits: DataSet, tmp_path: Path) -> None:
    """Stopped within the second size, the run ends with the weights of the one that was not."""

    def begin(scales: tuple[float, ...] = RECIPE.scales) -> Any:
        return begin_network(
            MODEL,
            digits,
            NoTreatment(),
            replace(RECIPE, scales=scales),
            seeds=SEEDS,
            checkpoint=tmp_path / "state.safetensors",
            checkpoint_every=5,
        )

    whole = train_network(MODEL, digits, NoTreatment(), RECIPE, seeds=SEEDS)
    steps = len(digits.train) // 64
    updates = begin().updates()
    for _ in range(2 * steps + 12):
        next(updates)
    updates.close()
    with pytest.raises(InputError, match="scales"):
        begin((0.75, 0.75, 1.0)).resume()
    rest = begin()
    assert sum(1 for _ in rest.updates()) < 2 * steps - 9
    assert torch.equal(weights(rest.released()), weights(whole))


@pytest.mark.parametrize("name", [name for name, card in METHODS.items() if card.kind == "objective"])
def test_every_method_asks_its_student_of_small_images(name: str, sides: list[int]) -> None:
    """Also by ways of its own: a copy of before, one member of several."""
    torch.manual_seed(0)
    perturbed = {"perturbation": "tdiv_sdiv"} if name == "latent_be" else {}
    method = build_method(name, **perturbed)
    student = new_student(MODEL, 10, method, replace(RECIPE, scales=()), SEEDS)
    plain = [ModelSpec("cnn", {"width": 5}).build(10, seed) for seed in range(3)]
    references = {need: NetworkReference(need, plain if need == "ensemble" else plain[:1]) for need in method.needs}
    number = torch.arange(8)
    batch = Batch(torch.rand(8, 1, SIDE, SIDE), number % 10, number, torch.tensor(0.5), number[3])
    del sides[:]
    method(at_scale(student, 0.5), references, batch).loss.backward()
    assert set(sides) == {4}


def test_a_pixel_is_the_mean_of_what_it_covers() -> None:
    x = torch.rand(3, 2, 8, 8)
    small = scaled(x.to(memory_format=torch.channels_last), 0.5)
    assert small.is_contiguous(memory_format=torch.channels_last)
    assert scaled(torch.ones(1, 1, 8, 6), 0.75).allclose(torch.ones(1, 1, 6, 4))
    # Antialiased: stripes are grey, also where the pixels next to the new grid's are all dark.
    stripes = torch.tensor([1.0, 0.0, 0.0, 1.0]).repeat(4)[None, None, None].expand(1, 1, 16, 16)
    assert scaled(stripes, 0.25).sub(0.5).abs().max() < 0.2
    assert scaled(x, 0.01).shape == (3, 2, 1, 1)


def test_epochs_that_do_not_divide_are_all_there() -> None:
    recipe = Recipe(epochs=7, scales=(0.5, 0.75, 0.75, 1.0))
    found = list(spans(recipe))
    assert [scale for scale, _ in found] == [0.5, 0.75, 1.0]
    assert [epoch for _, epochs in found for epoch in epochs] == list(range(7))


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ((0.5, 0.75), "the last of them 1, got 0.5, 0.75"),
        ((0.0, 1.0), "above 0"),
        ((1.5, 1.0), "at most 1"),
        ((float("nan"), 1.0), "above 0"),
        ((0.5,) * 5 + (1.0,), "6 parts, and there are 4 epochs"),
        (0.5, "a list of shares, got 0.5"),
    ],
)
def test_senseless_scales_are_refused(scales: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(RECIPE, scales=scales)


def test_cycles_have_no_small_images() -> None:
    """A snapshot of the first cycle would never have seen a whole one."""
    with pytest.raises(InputError, match="take either"):
        Recipe(epochs=4, cycles=2, scales=(0.5, 1.0))
    assert Recipe(epochs=4, cycles=2, scales=(1.0,)).cycles == 2


def test_what_is_no_image_is_refused() -> None:
    rows = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))
    loader = torch.utils.data.DataLoader(rows, batch_size=2)
    with pytest.raises(InputError, match="scales is for images"):
        flipguard.fit(nn.Linear(2, 3), loader, method="none", recipe=Recipe(epochs=2, scales=(0.5, 1.0)))


def test_a_step_that_is_made_anew_for_each_size_goes_on_where_the_last_one_was(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a GPU captures, here without a graph: making a step takes some, of which nothing may be left."""
    made = []

    def own_step(run: Run, engine: Engine, contexts: ExitStack) -> tuple[Engine, Share]:
        made.append(run.shown)
        update: Update = lambda batches, references: [run.update(batches[0], references[0])]  # noqa: E731
        return "captured", Share(CapturedStep([part_of(run)], update, run.autocast, run.device))

    plain = train_network(MODEL, digits, NoTreatment(), RECIPE, seeds=SEEDS)
    monkeypatch.setattr("flipguard.training.loop.own_step", own_step)
    captured = train_network(MODEL, digits, NoTreatment(), RECIPE, seeds=SEEDS)
    assert len(made) == 3
    torch.testing.assert_close(weights(captured), weights(plain), rtol=1e-4, atol=1e-5)
