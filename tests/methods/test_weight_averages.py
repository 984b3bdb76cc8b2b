"""Interpolation and soups on networks that really were fine-tuned from one start."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from flipguard.data import Batches, load_data
from flipguard.ensembles import average_weights, interpolate
from flipguard.methods import build_method, choose_alpha
from flipguard.models import build_model
from flipguard.types import Batch, InputError

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def digits() -> tuple[list[Batch], list[Batch]]:
    data = load_data("digits")
    train, test = (
        list(Batches(part, 64, order_seed=3, normalisation=data.normalisation)) for part in (data.train, data.test)
    )
    return train, test


def tuned(network: nn.Module, batches: list[Batch], steps: int) -> nn.Module:
    """At a rate that falls to nothing, so that BatchNorm's statistics catch up with the weights."""
    network = copy.deepcopy(network).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for i in range(steps):
        batch = batches[i % len(batches)]
        optimiser.param_groups[0]["lr"] = 0.1 * (1 - i / steps)
        optimiser.zero_grad()
        nn.functional.cross_entropy(network(batch.x), batch.y).backward()
        optimiser.step()
    return network.eval()


@pytest.fixture(scope="module")
def versions(digits: Any) -> tuple[nn.Module, list[nn.Module]]:
    """An old network from a third of the data, and new ones fine-tuned from it on all of it."""
    train, _ = digits
    torch.manual_seed(0)
    old = tuned(build_model("cnn", classes=10, width=13), train[:6], 60)
    return old, [tuned(old, train[start:] + train[:start], 30) for start in (0, 6, 12)]


def accuracy(network: nn.Module, batches: list[Batch]) -> float:
    right = sum(int((network(b.x).argmax(-1) == b.y).sum()) for b in batches)
    return right / sum(len(b.y) for b in batches)


def test_interpolation_is_the_papers_mean(versions: Any, digits: Any) -> None:
    old, (new, *_) = versions
    mixed = build_method("weight_interpolation", alpha=0.3)(old, new)
    for name, value in interpolate(old, new, 0.3).state_dict().items():
        assert torch.equal(mixed.state_dict()[name], value)
    assert accuracy(mixed, digits[1]) > 0.85
    measured = build_method("weight_interpolation", alpha=0.3)(old, new, batches=digits[0])
    name = "body.1.running_mean"
    assert not torch.equal(measured.state_dict()[name], mixed.state_dict()[name])
    assert accuracy(measured, digits[1]) > 0.85


def test_a_soup_and_a_soup_with_the_old_network(versions: Any, digits: Any) -> None:
    old, news = versions
    soup = build_method("soup")(news)
    for name, value in average_weights(news).state_dict().items():
        assert torch.equal(soup.state_dict()[name], value)
    assert accuracy(soup, digits[1]) > 0.85
    mixed = build_method("soup", alpha=0.25)(news, old=old)
    for name, value in interpolate(old, soup, 0.25).state_dict().items():
        assert torch.equal(mixed.state_dict()[name], value)
    assert build_method("soup", alpha=0.25).needs == ("ensemble", "old")
    with pytest.raises(InputError, match="pass old="):
        build_method("soup", alpha=0.25)(news)


def test_alpha_is_chosen_on_validation_data(versions: Any, digits: Any) -> None:
    old, (new, *_) = versions
    train, test = digits
    found = choose_alpha(old, new, test, batches=train)
    by_alpha = {one.alpha: one for one in found.tried}
    assert list(by_alpha) == [tenth / 10 for tenth in range(10)]
    y = torch.cat([b.y for b in test])
    before, after = (torch.cat([n(b.x).argmax(-1) for b in test]) for n in (old, new))
    assert by_alpha[0.0].negative_flip_rate == pytest.approx(float(((before == y) & (after != y)).float().mean()))
    assert by_alpha[0.0].error_rate == pytest.approx(float((after != y).float().mean()))
    chosen = by_alpha[found.alpha]
    allowed = [one for one in found.tried if one.error_rate <= by_alpha[0.0].error_rate]
    assert chosen.negative_flip_rate == min(one.negative_flip_rate for one in allowed)
    assert choose_alpha(old, new, test, alphas=(0.0, 0.5, 1.0), tolerance=1.0).alpha == 1.0


def test_refusals(versions: Any, digits: Any) -> None:
    old, (new, *_) = versions
    one = replace(digits[1][0], y=new(digits[1][0].x).argmax(-1))
    worse = nn.Sequential(copy.deepcopy(old))
    with pytest.raises(InputError, match="only networks of one architecture can be averaged: body"):
        build_method("weight_interpolation")(old, worse)
    zeroed = copy.deepcopy(old)
    nn.init.zeros_(zeroed.head.weight)
    with pytest.raises(InputError, match=r"no alpha keeps the error at 0\.0000"):
        choose_alpha(zeroed, new, [one], alphas=(1.0,))
    with pytest.raises(InputError, match="at least one alpha"):
        choose_alpha(old, new, [], alphas=(0.5,))
    with pytest.raises(InputError, match="alpha must lie between 0 and 1"):
        build_method("soup", alpha=-0.1)
