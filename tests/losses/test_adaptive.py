"""AE-KD's weights against a one-class SVM, which solves the same programme."""

import numpy as np
import pytest
import torch
from sklearn.svm import OneClassSVM
from torch import Tensor

from flipguard.losses import adaptive_weights, distillation_gradients, kl_divergence
from flipguard.types import InputError

M, B, C = 3, 5, 7
torch.set_num_threads(1)


def random(*shape: int, seed: int = 4) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_svm(gradients: Tensor, cap: float) -> np.ndarray:
    """The dual of the one-class SVM: ½ αᵀKα with 0 ≤ α ≤ 1 and Σα = νM; ω = α / (νM)."""
    members = len(gradients)
    gram = (gradients @ gradients.T).numpy()
    nu = 1 / (cap * members)
    machine = OneClassSVM(kernel="precomputed", nu=nu, tol=1e-12).fit(gram / gram.diagonal().mean())
    weights = np.zeros(members)
    weights[machine.support_] = machine.dual_coef_[0]
    return weights / (nu * members)


@pytest.mark.parametrize("members", [2, 3, 5, 8])
@pytest.mark.parametrize("cap", [0.3, 0.5, 0.6, 1.0])
def test_weights_are_those_of_a_one_class_svm(members: int, cap: float) -> None:
    # With every weight at the cap the machine has no finite offset.
    cap = max(cap, 1.05 / members)
    for seed in range(5):
        gradients = random(members, 11, seed=seed) + 0.5 * random(1, 11, seed=100 + seed)
        weights = adaptive_weights(gradients, cap=cap)
        assert weights.sum().item() == pytest.approx(1)
        assert float(weights.min()) >= 0
        assert float(weights.max()) <= cap + 1e-12
        np.testing.assert_allclose(weights.numpy(), by_svm(gradients, cap), atol=1e-5)


def test_fewer_directions_than_teachers() -> None:
    """The Gram matrix is singular: weights differ, but the norm is the SVM's."""
    for seed in range(5):
        gradients = random(8, 3, seed=seed) + 2 * random(1, 3, seed=50 + seed)
        weights = adaptive_weights(gradients, cap=0.6)
        mine, other = (float((torch.as_tensor(w) @ gradients).norm()) for w in (weights, by_svm(gradients, 0.6)))
        assert mine <= other + 1e-6


def test_equal_teachers_count_equally() -> None:
    same = random(1, C).expand(M, C)
    assert torch.allclose(adaptive_weights(same, cap=0.6), torch.full((M,), 1 / M, dtype=torch.float64), atol=1e-6)
    nothing = adaptive_weights(torch.zeros(M, C), cap=0.6)
    assert torch.allclose(nothing, torch.full((M,), 1 / M))
    assert nothing.dtype == torch.float32


def test_the_lowest_cap_is_plain_distillation() -> None:
    for cap in (1 / M, 0.1):
        assert torch.allclose(adaptive_weights(random(M, C), cap=cap), torch.full((M,), 1 / M, dtype=torch.float64))


def test_gradients_are_those_of_the_batchs_mean_loss() -> None:
    student, teachers = random(B, C).requires_grad_(), random(M, B, C, seed=5)
    found = distillation_gradients(student, teachers, temperature=3.0)
    for m in range(M):
        (gradient,) = torch.autograd.grad(kl_divergence(student, teachers[m], temperature=3.0).sum(), student)
        assert torch.allclose(found[m], gradient.mean(0))
    assert not found.requires_grad


def test_refusals() -> None:
    with pytest.raises(InputError, match="of 1 to 9 teachers"):
        adaptive_weights(torch.zeros(10, C), cap=0.6)
    with pytest.raises(InputError, match="cap above 0"):
        adaptive_weights(torch.zeros(M, C), cap=0.0)
    with pytest.raises(InputError, match=r"\(B, C\) and \(M, B, C\)"):
        distillation_gradients(torch.zeros(B, C), torch.zeros(B, C), temperature=1.0)
