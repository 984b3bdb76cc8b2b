"""The line between two networks."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from flipguard.analysis import LinePoint, barrier, loss_along_line
from flipguard.data import Batches, load_data
from flipguard.ensembles import NetworkReference, SingleStudent, batch_ensemble, merge
from flipguard.ensembles.rank_one import factor_parameters
from flipguard.methods import build_method
from flipguard.models import build_model
from flipguard.training import Job, Recipe, fit
from flipguard.types import Batch, InputError

B, C, D = 5, 7, 11
POINTS = (-0.5, 0.0, 0.3, 1.0)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)


def a_batch(rows: int = B) -> Batch:
    zero = torch.zeros(())
    return Batch(torch.randn(rows, D), torch.randint(C, (rows,)), torch.arange(rows), zero, zero.long())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 13), nn.BatchNorm1d(13), nn.ReLU(), nn.Dropout(0.5), nn.Linear(13, C))


def test_each_point_is_the_network_between() -> None:
    a, b, batches = network(), network(), [a_batch(), a_batch(3)]
    for each in (a, b):
        each(torch.randn(17, D) * 3)
    before = {name: value.clone() for name, value in a.state_dict().items()}
    line = loss_along_line(a, b, iter(batches), points=POINTS)
    assert all(torch.equal(value, before[name]) for name, value in a.state_dict().items())
    assert a.training
    for point, t in zip(line, POINTS, strict=True):
        between = network().eval()
        with torch.no_grad():
            for mine, one, other in zip(between.parameters(), a.parameters(), b.parameters(), strict=True):
                mine.copy_((1 - t) * one + t * other)
            for mine, one, other in zip(between.buffers(), a.buffers(), b.buffers(), strict=True):
                mine.copy_((1 - t) * one + t * other)
            logits = torch.cat([between(batch.x) for batch in batches])
        y = torch.cat([batch.y for batch in batches])
        assert point.t == t
        assert point.nll == pytest.approx(float(nn.functional.cross_entropy(logits, y)), rel=1e-4, nan_ok=True)
        assert point.error == pytest.approx(float((logits.argmax(-1) != y).float().mean()))


def test_members_of_a_batch_ensemble() -> None:
    """θ ∘ ((1 - t)·r₁s₁ᵀ + t·r₂s₂ᵀ): the merge with these weights, the middle of it the merged network."""
    ensemble = batch_ensemble(network(), 2)
    with torch.no_grad():
        for factor in factor_parameters(ensemble):
            factor.normal_(0, 0.5)
    ends = merge(ensemble, weights=(1, 0)), merge(ensemble, weights=(0, 1))
    batch = a_batch(23)
    line = loss_along_line(*ends, [batch], points=(0.0, 0.5, 0.25))
    for point, middle in zip(line[1:], (merge(ensemble), merge(ensemble, weights=(0.75, 0.25))), strict=True):
        with torch.no_grad():
            expected = nn.functional.cross_entropy(middle.eval()(batch.x), batch.y)
        assert point.nll == pytest.approx(float(expected), rel=1e-5)


def test_unlabelled_rows_are_left_out() -> None:
    a, b, batch = network(), network(), a_batch()
    unlabelled = replace(batch, y=torch.tensor([-1, 2, -1, 0, 3]))
    kept = torch.tensor([1, 3, 4])
    assert isinstance(batch.x, Tensor)
    alone = replace(batch, x=batch.x[kept], y=unlabelled.y[kept])
    one, other = (loss_along_line(a, b, [each])[4] for each in (unlabelled, alone))
    assert one.nll == pytest.approx(other.nll)
    assert one.error == other.error
    with pytest.raises(InputError, match="no labelled rows"):
        loss_along_line(a, b, [replace(batch, y=torch.full((B,), -1))])


def test_networks_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"they differ in '0\.weight'"):
        loss_along_line(nn.Sequential(nn.Linear(D, C)), nn.Sequential(nn.Linear(D, 3)), [a_batch()])
    with pytest.raises(InputError, match="differ in 'bias'"):
        loss_along_line(nn.Linear(D, C), nn.Linear(D, C, bias=False), [a_batch()])


def test_barrier() -> None:
    flat = [LinePoint(t, 0.0, 1 + t) for t in (-1.0, 0.0, 0.5, 1.0, 2.0)]
    assert barrier(flat) == pytest.approx(0)
    assert barrier([*flat, LinePoint(0.25, 0.0, 2.25)]) == pytest.approx(1.0)
    assert barrier([*flat, LinePoint(1.5, 0.0, math.inf)]) == pytest.approx(0)
    with pytest.raises(InputError, match="at t=0 and t=1"):
        barrier(flat[:2])


def test_members_of_latent_be_lie_in_one_region_and_networks_trained_apart_do_not() -> None:
    """The paper's Fig. 2, on digits."""
    data = load_data("digits")
    recipe = Recipe(epochs=4, batch_size=64, learning_rate=0.05, clip_norm=1.0)

    def batches(epoch: int, start: int) -> Batches:
        norm = data.normalisation
        return Batches(data.train, 64, 0, epoch=epoch, epochs=4, start_step=start, drop_last=True, normalisation=norm)

    def build(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return build_model("mlp", classes=10, hidden=(32,))

    job = Job(batches, batches(0, 0).steps, recipe)
    apart = [fit(SingleStudent(build(seed)), build_method("none"), job) for seed in (1, 2)]
    method = build_method("latent_be", members=2)
    student = method.student(build, decay_all=True)
    fit(student, method, job, {"ensemble": NetworkReference("ensemble", apart)})
    ends = merge(student.ensemble, weights=(1, 0)), merge(student.ensemble, weights=(0, 1))
    test = list(Batches(data.test, 1024, normalisation=data.normalisation))
    line = loss_along_line(*ends, test)
    assert max(point.error for point in line) < 0.15
    assert barrier(line) < 0.02
    assert barrier(loss_along_line(*apart, test)) > 0.1
