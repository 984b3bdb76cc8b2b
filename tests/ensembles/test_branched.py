"""Networks on one trunk: what whole networks with the same first layers would say, for the price of one trunk."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import BranchedStudent
from flipguard.ensembles.branched import trunk_of
from flipguard.models import build_model
from flipguard.types import InputError

TEXT = {"name": "text_transformer", "vocabulary": 23, "length": 9, "width": 8, "heads": 2, "layers": 4}
IMAGE = {"name": "resnet18", "width": 3}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def built(plan: dict[str, Any], seed: int) -> nn.Module:
    options = {name: value for name, value in plan.items() if name != "name"}
    torch.manual_seed(seed)
    return build_model(str(plan["name"]), classes=5, **options)


def shown(plan: dict[str, Any]) -> Any:
    torch.manual_seed(99)
    if plan is TEXT:
        ids = torch.randint(1, 23, (4, 7))
        return {"input_ids": ids, "attention_mask": (torch.arange(7) < torch.tensor([7, 5, 6, 3])[:, None]).long()}
    return torch.randn(4, 3, 16, 16)


def whole(plan: dict[str, Any], own: float) -> list[nn.Module]:
    """Three networks of which the others have copies of the first one's trunk."""
    networks = [built(plan, seed) for seed in range(3)]
    for network in networks[1:]:
        for name in trunk_of(networks[0], own):
            network.get_submodule(name).load_state_dict(networks[0].get_submodule(name).state_dict())
        if plan is TEXT and own < 1:
            network.body.places.data.copy_(networks[0].body.places)
    return networks


@pytest.mark.parametrize("plan", [IMAGE, TEXT], ids=["resnet18", "transformer"])
@pytest.mark.parametrize("own", [0.25, 0.5, 0.75, 1.0])
def test_it_says_what_whole_networks_say_and_learns_what_they_learn(plan: dict[str, Any], own: float) -> None:
    student = BranchedStudent(lambda seed: built(plan, seed), 3, own=own)
    networks, x = whole(plan, own), shown(plan)
    said = student(x).logits
    expected = torch.stack([network(x) for network in networks])
    assert torch.equal(said, expected)
    weights = torch.randn_like(said)
    (said * weights).sum().backward()
    (expected * weights).sum().backward()
    trunk = tuple(f"{name}." for name in trunk_of(networks[0], own))
    for name, parameter in student.release().named_parameters():
        # A parameter that stands beside the trunk's modules is shared as they are.
        shared = own < 1 and (name.startswith(trunk) or name == "body.places")
        theirs = [dict(network.named_parameters())[name].grad for network in networks]
        torch.testing.assert_close(
            parameter.grad, sum(theirs[1:], theirs[0]) if shared else theirs[0], rtol=1e-4, atol=1e-4
        )


def test_the_trunk_is_computed_once_and_trained_as_one() -> None:
    student = BranchedStudent(lambda seed: built(IMAGE, seed), 4)
    calls: list[int] = []
    first = student.release().get_submodule("body.stage2")
    first.register_forward_hook(lambda *_: calls.append(1))
    student(shown(IMAGE))
    assert len(calls) == 1
    one = sum(parameter.numel() for parameter in built(IMAGE, 0).parameters())
    trunk = sum(
        p.numel() for name in trunk_of(built(IMAGE, 0), 0.5) for p in built(IMAGE, 0).get_submodule(name).parameters()
    )
    listed = [parameter for group in student.parameter_groups() for parameter in group["params"]]
    assert sum(parameter.numel() for parameter in listed) == 4 * one - 3 * trunk
    assert len({id(parameter) for parameter in listed}) == len(listed)


def test_what_is_released_is_an_ordinary_network() -> None:
    student = BranchedStudent(lambda seed: built(IMAGE, seed), 3)
    x = shown(IMAGE)
    student(x)
    released = student.release().eval()
    assert list(released.state_dict()) == list(built(IMAGE, 0).state_dict())
    fresh = built(IMAGE, 7).eval()
    fresh.load_state_dict(released.state_dict())
    assert torch.equal(fresh(x), released(x))
    assert all(not module._forward_hooks for module in released.modules())


@pytest.mark.parametrize("plan", [IMAGE, TEXT], ids=["resnet18", "transformer"])
@pytest.mark.parametrize("own", [0.5, 1.0])
def test_every_branch_can_be_had_as_a_network_of_its_own(plan: dict[str, Any], own: float) -> None:
    student, x = BranchedStudent(lambda seed: built(plan, seed), 3, own=own), shown(plan)
    student(x)  # norms have seen something
    said = student.eval()(x).logits
    networks = student.networks
    assert torch.equal(torch.stack([network.eval()(x) for network in networks]), said)
    assert networks[0] is student.release()
    assert all(list(network.state_dict()) == list(built(plan, 0).state_dict()) for network in networks)


class _Scaled(nn.Module):
    """A parameter that stands beside the blocks, at the top."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.scale = nn.Parameter(torch.randn(1))
        self.blocks = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.blocks(x)


@pytest.mark.parametrize("own", [0.5, 1.0])
def test_what_stands_beside_the_trunk_is_shared_only_where_there_is_one(own: float) -> None:
    student, x = BranchedStudent(_Scaled, 2, own=own), torch.ones(2, 3)
    scales = {id(network.scale) for network in student.branches.networks}
    assert len(scales) == (2 if own == 1 else 1)
    assert len([name for name, _ in student.named_parameters() if name.endswith("scale")]) == len(scales)
    if own == 1:
        assert torch.equal(student(x).logits, torch.stack([_Scaled(0)(x), _Scaled(1)(x)]))


def test_networks_that_share_nothing_may_be_of_two_kinds() -> None:
    kinds = [built(IMAGE, 0), built({"name": "resnet10", "width": 4}, 1)]
    student, x = BranchedStudent(lambda seed: kinds[seed], 2, own=1.0).eval(), shown(IMAGE)
    said = student(x).logits
    assert torch.equal(torch.stack([network.eval()(x) for network in student.networks]), said)


def test_a_copy_and_a_saved_state_are_whole() -> None:
    student = BranchedStudent(lambda seed: built(IMAGE, seed), 3).eval()
    x = shown(IMAGE)
    assert torch.equal(copy.deepcopy(student)(x).logits, student(x).logits)
    other = BranchedStudent(lambda seed: built(IMAGE, seed + 10), 3).eval()
    other.load_state_dict(student.state_dict())
    assert torch.equal(other(x).logits, student(x).logits)
    features = student(x, features=True)
    assert features.features is not None
    assert features.features.shape == (3, 4, 24)
    assert torch.equal(features.logits, student(x).logits)


@pytest.mark.parametrize(
    ("plan", "own", "trunk"),
    [
        (IMAGE, 0.5, ["body.stem", "body.stage1", "body.stage2"]),
        (IMAGE, 0.25, ["body.stem", "body.stage1", "body.stage2", "body.stage3"]),
        (IMAGE, 0.01, ["body.stem", "body.stage1", "body.stage2", "body.stage3", "body.stage4.0"]),
        (IMAGE, 0.99, ["body.stem"]),
        (IMAGE, 1.0, []),
        (TEXT, 0.5, ["body.tokens", "body.blocks.0", "body.blocks.1"]),
        ({"name": "mlp", "input_size": 4, "hidden": (3, 3)}, 0.5, ["body.0", "body.1"]),
        ({"name": "mlp", "input_size": 4, "hidden": (3,)}, 0.5, ["body", "bottleneck", "dropout"]),
    ],
)
def test_where_a_network_forks(plan: dict[str, Any], own: float, trunk: list[str]) -> None:
    found = trunk_of(built(plan, 0), own)
    # Without the layers that have no weights and stand between.
    assert found[: len(trunk)] == trunk
    assert all(not list(built(plan, 0).get_submodule(name).parameters()) for name in found[len(trunk) :])


def test_what_has_no_two_parts_cannot_fork() -> None:
    with pytest.raises(InputError, match="has no two of them"):
        trunk_of(nn.Linear(2, 2), 0.5)
    for own in (0.0, 1.01):
        with pytest.raises(InputError, match=f"own must be above 0, and at most 1, got {own}"):
            trunk_of(built(IMAGE, 0), own)


class _InPlace(nn.Module):
    """The layer after the fork writes into what the trunk has answered."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 2))
        )

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.parts(x)
        return said


def test_a_network_that_writes_over_the_fork_is_refused() -> None:
    student = BranchedStudent(lambda _: _InPlace(), 2)
    with pytest.raises(InputError, match="changes in place what its branches share"):
        student(torch.randn(2, 3))


def test_weights_on_both_sides_of_the_fork_are_refused() -> None:
    def tied(_: int) -> nn.Module:
        network = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.ReLU(), nn.Sequential(nn.Linear(3, 3)))
        network[2][0].weight = network[0][0].weight
        return network

    with pytest.raises(InputError, match=r"^2\.0\.weight is also a weight of what its branches would share"):
        BranchedStudent(tied, 2)


class _SharedLayer(nn.Module):
    """One activation for all blocks: it stands before the fork, and is called on both sides of it."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.Tanh()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(3, 3)) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.activation(block(x))
        return x


def test_a_layer_that_is_called_on_both_sides_of_the_fork_is_refused() -> None:
    student = BranchedStudent(lambda _: _SharedLayer(), 2)
    with pytest.raises(InputError, match="calls activation more than once"):
        student(torch.randn(2, 3))


def test_the_networks_that_were_given_stay_whole() -> None:
    given = [built(IMAGE, seed) for seed in range(3)]
    BranchedStudent(lambda member: given[member], 3)
    assert given[1](shown(IMAGE)).shape == (4, 5)


def test_every_parameter_learns_and_is_listed_once() -> None:
    """What a launcher of several processes asks for: none without a gradient."""
    student = BranchedStudent(lambda seed: built(TEXT, seed), 3)
    student(shown(TEXT)).logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    with torch.inference_mode():
        assert student(shown(TEXT)).logits.shape == (3, 4, 5)
