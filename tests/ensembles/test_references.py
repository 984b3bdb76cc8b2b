"""References: frozen, in evaluation mode, with a member axis."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import CachedReference, DeepEnsemble, NetworkReference, SingleStudent, combined, extract_logits
from flipguard.models import build_model
from flipguard.types import Batch, InputError, Reference

M, B, C, D = 3, 5, 7, 11
torch.set_num_threads(1)


def a_batch(x: Tensor, index: Tensor | None = None) -> Batch:
    zero = torch.zeros(())
    places = torch.arange(len(x)) if index is None else index
    return Batch(x, torch.zeros(len(x), dtype=torch.long), places, zero, zero.long())


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 13), nn.BatchNorm1d(13), nn.Dropout(0.5), nn.Linear(13, C))


def test_members_are_stacked_in_their_order() -> None:
    networks = [nn.Linear(D, C) for _ in range(M)]
    x = torch.randn(B, D)
    reference = NetworkReference("ensemble", networks)
    assert isinstance(reference, Reference)
    assert reference.members == M
    logits = reference(a_batch(x)).logits
    assert logits.shape == (M, B, C)
    for number, network in enumerate(networks):
        assert torch.equal(logits[number], network(x))


def test_networks_of_different_kinds() -> None:
    networks = [build_model("mlp", classes=C, input_size=64), build_model("cnn", classes=C)]
    answer = NetworkReference("mixed", networks)(a_batch(torch.randn(B, 1, 8, 8)), features=True)
    assert answer.logits.shape == (2, B, C)
    # Their features differ in width, so that there is no common axis to stack them on.
    assert answer.features is None


@pytest.mark.parametrize("kind", ["alike", "of different widths", "of one shape but other settings"])
def test_one_member_drawn_by_a_tensor(kind: str) -> None:
    """Where members differ by weights alone, in one pass; where they do not, still the right one's logits."""
    options = {
        "alike": [{}, {}, {}],
        "of different widths": [{"width": 4}, {"width": 8}, {"width": 4}],
        "of one shape but other settings": [{}, {}, {}],
    }[kind]
    networks = [build_model("cnn", classes=C, **each) for each in options]
    if kind == "of one shape but other settings":
        networks[1].body[6].kernel_size = 4  # type: ignore[index]
    passes = []
    for network in networks:
        network.train()(torch.randn(7, 1, 8, 8) * 2)
        network.register_forward_hook(lambda module, inputs, output: passes.append(module))
    reference = NetworkReference("ensemble", networks)
    batch = a_batch(torch.randn(B, 1, 8, 8))
    for member in range(M):
        passes.clear()
        with torch.no_grad():
            drawn = reference.chosen(batch, torch.tensor([member]))
        assert len(passes) == (1 if kind == "alike" else M)
        with torch.no_grad():
            assert torch.allclose(drawn, networks[member](batch.x), atol=1e-6)
    assert not torch.allclose(networks[0](batch.x), networks[1](batch.x), atol=1e-3)


def test_features_and_logits_belong_together() -> None:
    networks = [build_model("mlp", classes=C, input_size=D, hidden=(13,)) for _ in range(M)]
    x = torch.randn(B, D)
    answer = NetworkReference("ensemble", networks)(a_batch(x), features=True)
    assert answer.features is not None
    assert answer.features.shape == (M, B, 13)
    for number, network in enumerate(networks):
        assert torch.allclose(network.head(answer.features[number]), answer.logits[number], atol=1e-6)


def test_it_stays_in_evaluation_mode() -> None:
    reference = NetworkReference("old", [noisy()])
    x = torch.randn(B, D)
    before = reference(a_batch(x)).logits
    nn.ModuleList([reference]).train()
    assert torch.equal(reference(a_batch(x)).logits, before)
    assert not any(module.training for module in reference.modules())


def test_gradients_reach_the_input_alone() -> None:
    reference = NetworkReference("old", [noisy() for _ in range(M)])
    assert reference.differentiable
    x = torch.randn(B, D, requires_grad=True)
    reference(a_batch(x)).logits.square().sum().backward()
    assert x.grad is not None
    assert bool((x.grad != 0).any())
    assert all(parameter.grad is None for parameter in reference.parameters())


def test_networks_without_features() -> None:
    for asked in (NetworkReference("old", [noisy()]), SingleStudent(noisy())):
        argument: Any = torch.randn(B, D) if isinstance(asked, SingleStudent) else a_batch(torch.randn(B, D))
        with pytest.raises(InputError, match="works on features, and Sequential gives only logits"):
            asked(argument, features=True)


def test_disagreeing_or_missing_members() -> None:
    with pytest.raises(InputError, match=r"'ensemble' disagree on the number of classes \(7, 3\)"):
        NetworkReference("ensemble", [nn.Linear(D, C), nn.Linear(D, 3)])(a_batch(torch.randn(B, D)))
    with pytest.raises(InputError, match="'old' has no members"):
        NetworkReference("old", [])
    with pytest.raises(InputError, match="at least one member"):
        DeepEnsemble([])


def test_cached_logits_are_those_of_the_network() -> None:
    reference = NetworkReference("ensemble", [noisy() for _ in range(M)])
    x, order = torch.randn(17, D), torch.randperm(17)
    batches = [a_batch(x[rows], rows) for rows in order.split(B)]
    cached = CachedReference("ensemble", extract_logits(reference, batches))
    assert isinstance(cached, Reference)
    assert cached.members == M
    assert not cached.differentiable
    rows = torch.tensor([16, 2, 2])
    assert torch.allclose(cached(a_batch(x[rows], rows)).logits, reference(a_batch(x[rows])).logits, atol=1e-6)
    with pytest.raises(InputError, match="holds logits only"):
        cached(a_batch(x[rows], rows), features=True)


@pytest.mark.parametrize(("rows", "first"), [([0, 1, 3], 2), ([0, 1, 1], 2), ([1, 2], 0)])
def test_logits_of_some_rows_are_refused(rows: list[int], first: int) -> None:
    reference = NetworkReference("old", [nn.Linear(D, C)])
    batch = a_batch(torch.randn(len(rows), D), torch.tensor(rows))
    with pytest.raises(InputError, match=f"row {first} is not there once"):
        extract_logits(reference, [batch])


def test_no_batches() -> None:
    with pytest.raises(InputError, match="no batches"):
        extract_logits(NetworkReference("old", [nn.Linear(D, C)]), [])


def test_combinations() -> None:
    logits = torch.randn(M, B, C)
    for row in range(B):
        mean = [sum(logits[m, row, c].item() for m in range(M)) / M for c in range(C)]
        assert combined(logits)[row].tolist() == pytest.approx(mean, abs=1e-6)
    together = combined(logits, "probabilities")
    assert torch.allclose(together.softmax(-1), logits.softmax(-1).mean(0), atol=1e-6)
    assert torch.allclose(together.mean(-1), torch.zeros(B), atol=1e-6)
    # At a temperature it is what the members say at it that is averaged (LatentBE Eq. 2).
    warm = combined(logits, "probabilities", temperature=4.0)
    assert torch.allclose((warm / 4.0).softmax(-1), (logits / 4.0).softmax(-1).mean(0), atol=1e-6)
    assert torch.allclose(warm.mean(-1), torch.zeros(B), atol=1e-5)
    with pytest.raises(InputError, match="not 'votes'"):
        combined(logits, "votes")  # type: ignore[arg-type]


def test_a_class_that_no_member_gives_a_chance_leaves_the_others_alone() -> None:
    logits = torch.randn(M, B, C)
    masked = logits.index_fill(-1, torch.tensor([2]), -torch.inf)
    rest = [each for each in range(C) if each != 2]
    found = combined(masked, "probabilities")
    assert torch.allclose(found[:, rest], combined(logits[..., rest], "probabilities"), atol=1e-6)
    assert (found[:, 2] == -torch.inf).all()


def test_a_mean_of_probabilities_is_matched_as_logits_are() -> None:
    """One network by its probabilities has its own logits, but for each sample's mean: there is no more to learn."""
    logits = 3 * torch.randn(1, B, C)
    own = logits[0] - logits[0].mean(-1, keepdim=True)
    assert torch.allclose(combined(logits, "probabilities"), own, atol=1e-5)
    assert torch.allclose(combined(logits, "probabilities", temperature=4.0), own, atol=1e-5)


def test_deep_ensemble_is_one_network() -> None:
    members = [noisy() for _ in range(M)]
    ensemble = DeepEnsemble(members, combination="probabilities")
    x = torch.randn(B, D)
    stacked = torch.stack([member(x) for member in members])
    assert torch.equal(ensemble(x), combined(stacked, "probabilities"))
    assert ensemble(x).shape == (B, C)
