"""Averages of weights against loops over their tensors."""

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import MovingAverage, average_weights, interpolate, recompute_statistics
from flipguard.models import build_model
from flipguard.types import Batch, InputError

M, B, D = 3, 5, 11

torch.set_num_threads(1)


def network(seed: int, width: int = 5) -> nn.Module:
    """With BatchNorm, statistics of its own, and a count of batches."""
    torch.manual_seed(seed)
    made = build_model("cnn", classes=7, width=width)
    made.train()
    for _ in range(seed + 1):
        made(torch.randn(B, 1, 8, 8))
    return made.eval()


def test_a_weighted_mean_of_every_tensor() -> None:
    networks, shares = [network(seed) for seed in range(M)], [0.5, 0.3, 0.2]
    before = [{name: value.clone() for name, value in n.state_dict().items()} for n in networks]
    mixed = average_weights(networks, shares)
    for name, value in mixed.state_dict().items():
        parts = [state[name] for state in before]
        if value.is_floating_point():
            expected = sum(share * part.double() for share, part in zip(shares, parts, strict=True))
            assert torch.equal(value, expected.float())  # type: ignore[union-attr]
        else:
            assert int(value) == M
    assert not mixed.training
    for state, one in zip(before, networks, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in one.state_dict().items())


def test_equal_networks_give_themselves_and_the_ends_are_exact() -> None:
    old, new = network(0), network(1)
    same = average_weights([old] * M)
    for mixed, wanted in ((same, old), (interpolate(old, new, 0.0), new), (interpolate(old, new, 1.0), old)):
        for name, value in wanted.state_dict().items():
            if value.is_floating_point():
                assert torch.equal(mixed.state_dict()[name], value), name


def test_other_architectures_are_refused_by_the_first_tensor_that_differs() -> None:
    with pytest.raises(InputError, match=r"body\.0\.weight is of shape \(5, 1, 3, 3\) and of shape \(3, 1, 3, 3\)"):
        interpolate(network(0), network(0, width=3), 0.5)
    with pytest.raises(InputError, match=r"1\.weight is missing and of shape \(2, 2\)"):
        average_weights([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))])
    with pytest.raises(InputError, match="alpha must lie between 0 and 1"):
        interpolate(network(0), network(1), 1.5)
    with pytest.raises(InputError, match="as many weights of sum 1"):
        average_weights([network(0)], [0.5])
    with pytest.raises(InputError, match="no network"):
        average_weights([])


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(D), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(x))


def test_statistics_are_the_mean_over_batches() -> None:
    model = Normed()
    parts = [torch.randn(B, D) * 3 + 2, torch.randn(B, D) - 1]
    zero = torch.zeros(())
    batches = [Batch(x, zero, zero, zero, zero) for x in parts]
    for _ in range(2):
        recompute_statistics(model, batches)
        assert torch.allclose(model.norm.running_mean, torch.stack([x.mean(0) for x in parts]).mean(0), atol=1e-6)
        assert torch.allclose(model.norm.running_var, torch.stack([x.var(0) for x in parts]).mean(0), atol=1e-5)
    assert model.norm.momentum == 0.1
    assert not any(module.training for module in model.modules())
    with pytest.raises(InputError, match="no batches"):
        recompute_statistics(Normed(), [])
    assert recompute_statistics(nn.Linear(1, 1), []).in_features == 1


def test_interpolated_networks_need_their_own_statistics() -> None:
    old, new = network(0), network(1)
    batches = [torch.randn(B, 1, 8, 8) for _ in range(M)]
    mixed = interpolate(old, new, 0.5)
    before = mixed.state_dict()["body.1.running_var"].clone()
    recompute_statistics(mixed, batches)
    assert not torch.allclose(mixed.state_dict()["body.1.running_var"], before)
    expected = torch.stack([mixed.body[0](x).var((0, 2, 3)) for x in batches]).mean(0)
    assert torch.allclose(mixed.state_dict()["body.1.running_var"], expected, rtol=1e-4)


def test_an_exponential_average_by_hand() -> None:
    followed = nn.Linear(1, 1)
    nn.init.constant_(followed.weight, 8.0)
    average = MovingAverage(followed, decay=0.75)
    nn.init.constant_(followed.weight, 4.0)
    average.update(followed)
    assert average.network.weight.item() == 7.0
    average.update(followed)
    assert average.network.weight.item() == 6.25
    assert average(torch.ones(1, 1)).item() == pytest.approx(6.25 + average.network.bias.item())


def test_a_plain_mean_of_all_updates() -> None:
    networks = [network(seed) for seed in range(M)]
    average = MovingAverage(network(5), decay=None)
    average.train()
    for one in networks:
        average.update(one)
    mean = average_weights(networks).state_dict()
    for name, value in average.network.state_dict().items():
        assert torch.allclose(value, mean[name], atol=1e-6), name
    assert not any(module.training for module in average.modules())
    assert not any(parameter.requires_grad for parameter in average.parameters())


def test_decay_has_a_range() -> None:
    with pytest.raises(InputError, match="decay must be at least 0 and below 1, or None"):
        MovingAverage(nn.Linear(1, 1), decay=1.0)
