"""A BatchEnsemble in training: whose gradient moves what, and by how much decay pulls."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import BatchEnsemble, BatchStudent
from flipguard.ensembles.rank_one import factor_parameters
from flipguard.models import build_model
from flipguard.training import Recipe
from flipguard.training.memory import recomputed
from flipguard.training.recipe import build_optimiser
from flipguard.types import InputError, Student

M, B, C, D = 3, 5, 7, 11


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)


def network() -> nn.Module:
    return build_model("mlp", classes=C, input_size=D, hidden=(13,)).double()


def loss(student: Any, x: Tensor, pull: Tensor) -> Tensor:
    return (student(x).logits * pull).flatten(1).sum(1)


def test_it_is_a_student() -> None:
    student, x = BatchStudent(network(), M, std=0.5), torch.randn(B, D, dtype=torch.float64)
    assert isinstance(student, Student)
    for mode in (True, False):
        answer = student.train(mode)(x, features=True)
        assert answer.logits.shape == (M, B, C)
        assert answer.features is not None
        assert answer.features.shape == (M, B, 13)
        assert torch.equal(answer.logits, student(x).logits)
    merged, whole = student.release(), BatchStudent(network(), M, std=0.5, released="ensemble").release()
    assert type(merged) is type(network())
    assert isinstance(whole, BatchEnsemble)
    assert merged(x).shape == whole(x).shape == (B, C)


def test_shared_weights_move_by_the_mean_and_factors_by_their_own() -> None:
    """Algorithm 1: against the gradients of each member's loss alone, taken in evaluation mode."""
    student = BatchStudent(network(), M, std=0.3)
    x, pull = torch.randn(B, D, dtype=torch.float64), torch.randn(M, B, C, dtype=torch.float64)
    names = [name for name, _ in student.named_parameters()]
    together = torch.autograd.grad(loss(student, x, pull).sum(), list(student.parameters()))
    student.eval()
    alone = [torch.autograd.grad(loss(student, x, pull)[m], list(student.parameters())) for m in range(M)]
    for place, name in enumerate(names):
        parts = [gradients[place] for gradients in alone]
        if name.endswith(("weight_r", "weight_s")):
            # Each row is one member's. The layers multiply its gradient by M, which here nothing has divided before.
            expected = torch.stack([part[m] for m, part in enumerate(parts)]) / M
        else:
            expected = torch.stack(parts).mean(0)
        assert torch.allclose(together[place], expected, atol=1e-12), name


def test_the_gradient_of_the_input_is_whole_in_evaluation() -> None:
    """A perturbation subtracts it from the teachers'."""
    student, x = BatchStudent(network(), M, std=0.3).eval(), torch.randn(B, D, dtype=torch.float64)
    pull = torch.randn(M, B, C, dtype=torch.float64)
    point = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(student, point, pull).sum(), point)
    step = torch.zeros_like(x)
    step[2, 3] = 1e-6
    ends = [float(loss(student, x + sign * step, pull).sum().detach()) for sign in (1, -1)]
    assert float(gradient[2, 3]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("decay_all", [True, False])
def test_an_update_is_the_papers(decay_all: bool) -> None:
    """r ← r - η·∇ℓ - ηλ(r - 1) (Algorithm 2, line 8), whatever else is decayed."""
    student = BatchStudent(network(), M, std=0.3, decay_all=decay_all)
    x, pull = torch.randn(B, D, dtype=torch.float64), torch.randn(M, B, C, dtype=torch.float64)
    recipe = Recipe(learning_rate=0.1, momentum=0.0, weight_decay=0.02)
    optimiser = build_optimiser(student.parameter_groups(), recipe)
    counted = [id(parameter) for group in optimiser.param_groups for parameter in group["params"]]
    assert sorted(counted) == sorted(id(parameter) for parameter in student.parameters())
    loss(student, x, pull).sum().backward()
    before = [(factor, 1 + factor.detach().clone(), factor.grad.clone()) for factor in factor_parameters(student)]
    bias: Any = student.ensemble.network.head.bias
    start, pulled = bias.detach().clone(), bias.grad.clone()
    optimiser.step()
    for factor, r, gradient in before:
        assert torch.allclose(1 + factor.detach(), r - 0.1 * gradient - 0.1 * 0.02 * (r - 1), atol=1e-12)
    decay = 0.02 if decay_all else 0.0
    assert torch.allclose(bias.detach(), start - 0.1 * (pulled + decay * start), atol=1e-12)


def test_activations_can_be_computed_again() -> None:
    x, pull = torch.randn(B, 3, 8, 8, dtype=torch.float64), torch.randn(M, B, C, dtype=torch.float64)
    student = BatchStudent(build_model("resnet20", classes=C, width=4).double(), M, std=0.3)
    plain = torch.autograd.grad(loss(student, x, pull).sum(), list(student.parameters()))
    with recomputed(student):
        again = torch.autograd.grad(loss(student, x, pull).sum(), list(student.parameters()))
    assert all(torch.allclose(one, other, atol=1e-10) for one, other in zip(plain, again, strict=True))


def test_a_transformer_trains_by_passes_of_its_own() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 13, dropout=0.0, batch_first=True)
    network = nn.Sequential(nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(16, C)).double()
    student = BatchStudent(network, M, std=0.3)
    assert not student.ensemble.folded
    x, pull = torch.randn(B, 2, 8, dtype=torch.float64), torch.randn(M, B, C, dtype=torch.float64)
    optimiser = torch.optim.SGD(student.parameters(), lr=1e-3)
    before = loss(student, x, pull).sum()
    before.backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    optimiser.step()
    assert loss(student, x, pull).sum() < before
    assert student.release()(x).shape == (B, C)
    with recomputed(student), pytest.raises(InputError, match="checkpoint_activations=False"):
        loss(student, x, pull).sum().backward()


def test_rate_and_decay_of_the_factors() -> None:
    groups = BatchStudent(network(), M, factor_rate=0.5, factor_decay=0.1).parameter_groups()
    assert groups[-1]["rate"] == 0.5
    assert groups[-1]["weight_decay"] == 0.1
    assert len(groups[-1]["params"]) == 4
    assert "weight_decay" not in BatchStudent(network(), M).parameter_groups()[-1]


def test_what_is_released() -> None:
    with pytest.raises(InputError, match="released must be one of merged, ensemble, got 'both'"):
        BatchStudent(network(), M, released="both")  # type: ignore[arg-type]
