"""A reference whose networks share the rows of a batch, in training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import flipguard
from flipguard.data import DataSet, load_data
from flipguard.ensembles import NetworkReference
from flipguard.methods import Elodi, NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, begin_network, train_network
from flipguard.types import InputError

MODEL = ModelSpec("cnn", {"width": 4})
RECIPE = Recipe(epochs=2, batch_size=64, learning_rate=0.2)
SEEDS = Seeds.of(5)


@pytest.fixture(scope="module")
def digits() -> DataSet:
    torch.set_num_threads(1)
    return load_data("digits")


class Counted(nn.Module):
    """Counts the rows that it is asked of."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.rows = network, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.rows += len(x)
        said: torch.Tensor = self.network(x)
        return said


def members(number: int = 2, alike: bool = False) -> list[Counted]:
    return [Counted(MODEL.build(10, 11 if alike else 11 + place)) for place in range(number)]


def trained(digits: DataSet, networks: list[Counted], **changes: Any) -> nn.Module:
    references = {"ensemble": NetworkReference("ensemble", networks)}
    recipe = replace(RECIPE, **changes)
    return train_network(MODEL, digits, Elodi(), recipe, seeds=SEEDS, references=references)


def weights(network: nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in network.state_dict().values()])


def test_each_network_is_asked_of_its_share(digits: DataSet) -> None:
    plain, dealt = members(), members()
    one, other = trained(digits, plain), trained(digits, dealt, dealt=True)
    assert [network.rows for network in plain] == [2 * network.rows for network in dealt]
    assert not torch.allclose(weights(one), weights(other), atol=1e-2)


def test_of_networks_that_say_the_same_nothing_changes(digits: DataSet) -> None:
    one = trained(digits, members(4, alike=True))
    torch.testing.assert_close(
        weights(trained(digits, members(4, alike=True), dealt=True)), weights(one), rtol=1e-3, atol=1e-4
    )


def test_the_parts_of_an_accumulated_batch_are_dealt_out_too(digits: DataSet) -> None:
    networks = members()
    trained(digits, networks, dealt=True, accumulate=4)
    assert networks[0].rows == networks[1].rows > 0
    with pytest.raises(InputError, match="leaves some of the 3 networks of 'ensemble' none of 2 rows"):
        trained(digits, members(3), dealt=True, accumulate=32)


def test_a_stopped_run_goes_on_to_the_same_weights(digits: DataSet, tmp_path: Path) -> None:
    def begin(dealt: bool = True) -> Any:
        return begin_network(
            MODEL,
            digits,
            Elodi(),
            replace(RECIPE, dealt=dealt),
            seeds=SEEDS,
            references={"ensemble": NetworkReference("ensemble", members())},
            checkpoint=tmp_path / "state.safetensors",
            checkpoint_every=5,
        )

    whole = trained(digits, members(), dealt=True)
    updates = begin().updates()
    for _ in range(17):
        next(updates)
    updates.close()
    with pytest.raises(InputError, match="dealt"):
        begin(dealt=False).resume()
    rest = begin()
    assert sum(1 for _ in rest.updates()) < 30
    assert torch.equal(weights(rest.released()), weights(whole))


def test_who_is_held_to_nothing_knows_nothing_of_it(digits: DataSet) -> None:
    one, other = (
        train_network(MODEL, digits, NoTreatment(), replace(RECIPE, dealt=dealt), seeds=SEEDS)
        for dealt in (False, True)
    )
    assert torch.equal(weights(one), weights(other))


def test_it_is_one_of_two_ways_and_not_for_a_loader() -> None:
    with pytest.raises(InputError, match="views keeps what all networks of a reference say, and dealt asks one"):
        Recipe(views=2, dealt=True)
    rows = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)), batch_size=2)
    with pytest.raises(InputError, match="dealt needs a new order in each epoch"):
        flipguard.fit(nn.Linear(2, 3), rows, method="kd", old=nn.Linear(2, 3), recipe=Recipe(dealt=True))
