"""Networks that answer for a part of a batch each."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import (
    CachedReference,
    DealtReference,
    NetworkReference,
    OwnInputs,
    SingleStudent,
    SpreadReference,
    deal,
)
from flipguard.losses import kl_divergence, logit_difference_inhibition
from flipguard.methods import build_method
from flipguard.models import split
from flipguard.types import Batch, InputError

C = 3


def batch(x: Any) -> Batch:
    rows = len(x if isinstance(x, Tensor) else next(iter(x.values())))
    codes = torch.arange(rows)
    return Batch(x, codes % C, codes, torch.tensor(0.5), torch.tensor(0))


def linear(members: int) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(4, C) for _ in range(members)]


@pytest.mark.parametrize(("rows", "parts"), [(8, [3, 3, 2]), (6, [2, 2, 2]), (2, [1, 1])])
def test_each_row_is_answered_by_one_network(rows: int, parts: list[int]) -> None:
    networks, x = linear(3), torch.randn(rows, 4)
    said = DealtReference("ensemble", networks)(batch(x)).logits
    expected = [network(part) for network, part in zip(networks, x.split(parts), strict=False)]
    assert torch.equal(said, torch.cat(expected)[None])


def test_texts_are_dealt_out_by_name() -> None:
    class Sum(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = factor

        def forward(self, x: dict[str, Tensor]) -> Tensor:
            return self.factor * (x["one"] + x["two"])

    x = {"one": torch.ones(4, C), "two": torch.arange(4.0)[:, None].expand(4, C)}
    said = DealtReference("ensemble", [Sum(1), Sum(10)])(batch(x)).logits
    assert said[0, :, 0].tolist() == [1, 2, 30, 40]


def test_features_come_in_the_same_way() -> None:
    networks = [split(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, C)), classes=C) for _ in range(2)]
    x = torch.randn(6, 4)
    said = DealtReference("ensemble", networks)(batch(x), features=True)
    assert said.features is not None
    assert torch.equal(said.features[0], torch.cat([networks[0].features(x[:3]), networks[1].features(x[3:])]))
    assert torch.equal(said.logits, DealtReference("ensemble", networks)(batch(x)).logits)


@pytest.mark.parametrize("loss", ["difference", "divergence"])
def test_the_gradient_is_that_of_the_mean_in_expectation(loss: str) -> None:
    """Over all ways to deal four rows out to two networks that keep their places: each row meets each."""
    networks, x = linear(2), torch.randn(4, 4)
    mine = torch.randn(4, C, requires_grad=True)

    def gradient(theirs: Tensor) -> Tensor:
        if loss == "difference":
            distance = logit_difference_inhibition(mine, theirs, margin=0.0)
        else:
            distance = kl_divergence(mine, theirs, temperature=1.0)
        return torch.autograd.grad(distance.sum(), mine)[0]

    dealt = DealtReference("ensemble", networks)
    there, back = torch.arange(4), torch.tensor([2, 3, 0, 1])
    found = [gradient(dealt(batch(x[order])).logits[0][order.argsort()]) for order in (there, back)]
    every = NetworkReference("ensemble", networks)(batch(x)).logits
    mean = every.mean(0) if loss == "difference" else every.softmax(-1).mean(0).log()
    torch.testing.assert_close((found[0] + found[1]) / 2, gradient(mean))


@pytest.mark.parametrize(
    ("options", "to_mean", "dealt"),
    [({}, 0.8, 0.8), ({"margin": 0.5}, 0.0, 0.50), ({"p": 4.0}, 0.26, 5.06), ({"p": 1.0}, 1.0, 0.31)],
)
def test_other_powers_and_a_margin_have_another_gradient(
    options: dict[str, float], to_mean: float, dealt: float
) -> None:
    """The figures of docs/training-spec.md: a logit 0.4 from the mean, 0, of members that are normal around it."""
    levels = (torch.arange(10_007, dtype=torch.float64) + 0.5) / 10_007
    members = torch.special.ndtri(levels)[:, None]

    def gradient(theirs: Tensor) -> float:
        mine = torch.full_like(theirs, 0.4).requires_grad_()
        logit_difference_inhibition(mine, theirs, **options).mean().backward()
        assert mine.grad is not None
        return float(mine.grad.sum())

    assert gradient(members.mean(0, keepdim=True)) == pytest.approx(to_mean, abs=0.005)
    assert gradient(members) == pytest.approx(dealt, abs=0.005)


def test_what_has_one_answer_is_left_as_it_is() -> None:
    old, cached = NetworkReference("old", linear(1)), CachedReference("old", torch.zeros(1, 8, C))
    assert deal({"old": old}, 8)["old"] is old
    assert deal({"old": cached}, 8)["old"] is cached


def test_the_map_of_classes_is_kept() -> None:
    found = deal({"old": NetworkReference("old", linear(2), classes=(0, 4, 2))}, 8)["old"]
    assert (type(found), found.members, found.classes) == (DealtReference, 1, (0, 4, 2))


def test_the_map_of_classes_stays_where_the_networks_are() -> None:
    moved = NetworkReference("old", linear(2), classes=(0, 4, 2)).to("meta")
    found: Any = deal({"old": moved}, 8)["old"]
    assert {found.columns.device, *(value.device for value in found.parameters())} == {torch.device("meta")}


def test_what_cannot_be_dealt_out_is_refused() -> None:
    networks = linear(2)
    own = OwnInputs("ensemble", networks, [None, {"x": torch.zeros(8, 4)}])
    spread = SpreadReference("ensemble", networks[:1], 2, 0, 2)
    for reference in (own, spread, CachedReference("ensemble", torch.zeros(2, 8, C))):
        with pytest.raises(InputError, match="one process asks of the student's inputs, which those of 'ensemble' are"):
            deal({"ensemble": reference}, 8)
    with pytest.raises(InputError, match="leaves some of the 3 networks of 'ensemble' none of 2 rows"):
        deal({"ensemble": NetworkReference("ensemble", linear(3))}, 2)
    with pytest.raises(InputError, match="disagree on the number of classes"):
        DealtReference("ensemble", [nn.Linear(4, C), nn.Linear(4, C + 1)])(batch(torch.randn(4, 4)))


@pytest.mark.parametrize("name", ["ae_kd", "proxy_end2"])
def test_a_method_that_compares_members_refuses_them(name: str) -> None:
    with pytest.raises(InputError, match="compares the members of 'ensemble', and dealt asks one of each row"):
        build_method(name)(
            SingleStudent(linear(1)[0]), {"ensemble": DealtReference("ensemble", linear(2))}, batch(torch.randn(4, 4))
        )


@pytest.mark.parametrize(("name", "options"), [("bct", {}), ("ract", {}), ("ract", {"form": "contrastive"})])
def test_a_method_that_needs_one_old_model_refuses_them(name: str, options: dict[str, Any]) -> None:
    """The features of unrelated networks lie in no one space, and none of their heads belongs to every row."""
    networks = [split(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, C)), classes=C) for _ in range(3)]
    with pytest.raises(InputError, match="needs one old model; its reference 'old' has several, of which dealt asks"):
        build_method(name, **options)(
            SingleStudent(networks[0]), {"old": DealtReference("old", networks[1:])}, batch(torch.randn(4, 4))
        )


def test_there_is_no_head_to_judge_features_by() -> None:
    networks = [split(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, C)), classes=C) for _ in range(2)]
    with pytest.raises(InputError, match="is dealt out, and has no head of its own"):
        _ = DealtReference("old", networks).heads
