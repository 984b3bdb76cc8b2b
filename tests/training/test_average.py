"""The mean of the last epochs' weights: what it is, that it survives a kill, and what it does not go with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.data import Augmentation, Batches, DataSet, load_data, split_validation
from flipguard.ensembles import recompute_statistics
from flipguard.methods import CoDistillation, Graft, NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, train_network
from flipguard.training.state import Epoch
from flipguard.types import InputError

MODEL = ModelSpec("cnn", {"width": 4})
RECIPE = Recipe(epochs=4, batch_size=64, learning_rate=0.1, floor=0.2, tail=0.5, average=3)
SEEDS = Seeds.of(5)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    torch.set_num_threads(1)
    return load_data("digits")


def run(digits: DataSet, **options: Any) -> Any:
    return begin_network(
        MODEL,
        digits,
        NoTreatment(),
        RECIPE,
        seeds=SEEDS,
        augmentation=Augmentation(crop_padding=1, flip=False),
        **options,
    )


def states(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def test_it_is_the_mean_of_the_last_epochs_with_statistics_of_its_own(digits: DataSet) -> None:
    each: list[dict[str, Tensor]] = []

    def keep(epoch: Epoch, network: nn.Module) -> None:
        each.append(states(network))

    begun = run(digits, on_epoch=keep)
    for _ in begun.updates():
        pass
    released = begun.released()
    assert len(each) == 4
    weights = {name for name, _ in released.named_parameters()}
    for name in weights:
        expected = torch.stack([state[name] for state in each[1:]]).mean(0)
        torch.testing.assert_close(released.state_dict()[name], expected)
    # The norms' statistics are not a mean, but what the mean's own layers see of the training data.
    measured = MODEL.build(len(digits.classes), 0)
    measured.load_state_dict(released.state_dict())
    batches = Batches(
        digits.train,
        64,
        order_seed=5,
        augment_seed=5,
        epochs=4,
        drop_last=True,
        augmentation=Augmentation(crop_padding=1, flip=False),
        normalisation=digits.normalisation,
    )
    recompute_statistics(measured, batches)
    statistics = [name for name in released.state_dict() if "running" in name]
    assert statistics
    for name in statistics:
        assert torch.equal(measured.state_dict()[name], released.state_dict()[name])
        assert not torch.allclose(each[-1][name], released.state_dict()[name])


@pytest.mark.parametrize("method", [Graft(members=3, strength=0.0), CoDistillation()], ids=["graft", "pair"])
def test_every_member_is_a_mean_where_all_are_kept(digits: DataSet, method: Any, tmp_path: Path) -> None:
    """The same updates, with the first alone kept and with all: the first is the same, the others are means, too."""

    def begun(**options: Any) -> Any:
        return begin_network(MODEL, digits, method, RECIPE, seeds=SEEDS, **options)

    alone = begun()
    each: list[list[dict[str, Tensor]]] = []

    def keep(epoch: Epoch, network: nn.Module) -> None:
        each.append([states(member) for member in alone.student.networks])

    alone.on_epoch = keep
    for _ in alone.updates():
        pass
    options: dict[str, Any] = {"all_members": True, "checkpoint": tmp_path / "state.safetensors", "checkpoint_every": 7}
    moving = begun(**options).updates()
    for _ in range(50):
        next(moving)
    moving.close()
    together = begun(**options)
    for _ in together.updates():
        pass
    members = together.members()
    assert len(members) == len(each[0]) > 1
    for place, member in enumerate(members):
        for name, _ in member.named_parameters():
            expected = torch.stack([epoch[place][name] for epoch in each[1:]]).mean(0)
            torch.testing.assert_close(member.state_dict()[name], expected)
    first = states(alone.released())
    assert all(torch.equal(members[0].state_dict()[name], value) for name, value in first.items())
    assert all(torch.equal(together.released().state_dict()[name], value) for name, value in first.items())


@pytest.mark.parametrize("updates", [20, 45, 70])
def test_a_run_that_is_cut_off_ends_with_the_same_bits(digits: DataSet, updates: int, tmp_path: Path) -> None:
    whole = states(
        train_network(
            MODEL, digits, NoTreatment(), RECIPE, seeds=SEEDS, augmentation=Augmentation(crop_padding=1, flip=False)
        )
    )
    options: dict[str, Any] = {"checkpoint": tmp_path / "state.safetensors", "checkpoint_every": 7}
    moving = run(digits, **options).updates()
    for _ in range(updates):
        next(moving)
    moving.close()
    again = run(digits, **options)
    assert again.resume() > (0, 0)
    for _ in again.updates():
        pass
    found = states(again.released())
    assert all(torch.equal(found[name], value) for name, value in whole.items())


def test_a_run_without_it_keeps_its_name(digits: DataSet, tmp_path: Path) -> None:
    """A state from before there was an average goes on: its recipe says nothing of what it does not use."""
    from flipguard.training.network import described

    facts = described(MODEL, digits, NoTreatment(), Recipe(), SEEDS, None)["recipe"]
    assert not {"floor", "tail", "average"} & {*facts}
    used = described(MODEL, digits, NoTreatment(), RECIPE, SEEDS, None)["recipe"]
    assert (used["floor"], used["tail"], used["average"]) == (0.2, 0.5, 3)


def test_what_it_does_not_go_with_is_said(digits: DataSet) -> None:
    with pytest.raises(InputError, match=r"average releases a mean .* take either"):
        run(digits, choose_epoch="validation")


def test_all_members_are_those_of_a_student_of_several(digits: DataSet, tmp_path: Path) -> None:
    held_out = split_validation(digits, size=100, seed=0)

    def begun(method: Any, recipe: Recipe = RECIPE, **options: Any) -> Any:
        return begin_network(MODEL, held_out, method, recipe, seeds=SEEDS, **options)

    with pytest.raises(InputError, match="this one trains one network"):
        begun(NoTreatment(), all_members=True)
    with pytest.raises(InputError, match="an epoch is chosen by the network that is released"):
        begun(CoDistillation(), replace(RECIPE, average=0), all_members=True, choose_epoch="validation")
    state = tmp_path / "state.safetensors"
    alone = begun(CoDistillation(), checkpoint=state)
    moving = alone.updates()
    for _ in range(50):
        next(moving)
    moving.close()
    with pytest.raises(InputError, match="begun with all_members"):
        alone.members()
    with pytest.raises(InputError, match="averaged"):
        begun(CoDistillation(), checkpoint=state, all_members=True).resume()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"average": 5}, "average must be between 0 and the 4 epochs, got 5"),
        ({"tail": 0.3}, "tail needs a floor above 0"),
        ({"tail": 0.8, "floor": 0.1}, "warmup 0.2 and tail 0.8 leave no steps between them"),
        ({"floor": 1.0}, "floor and tail must be at least 0 and below 1, got 1.0 and 0.0"),
        ({"floor": 0.1, "schedule": "step"}, "the schedule step does not fall to a floor"),
    ],
)
def test_a_recipe_that_cannot_be(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recipe(epochs=4, **options)
