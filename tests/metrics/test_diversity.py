"""Functional diversity against loops over pairs of members."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.metrics import functional_diversity, functional_diversity_per_sample
from flipguard.types import InputError

M, N, C = 3, 23, 7
KINDS: list[Callable[[np.ndarray], Any]] = [np.asarray, torch.from_numpy]


@pytest.fixture
def logits() -> np.ndarray:
    return 3 * np.random.default_rng(0).normal(size=(M, N, C))


def by_pairs(logits: np.ndarray) -> list[float]:
    members = [torch.distributions.Categorical(logits=torch.from_numpy(each)) for each in logits]
    total = sum(torch.distributions.kl_divergence(p, q) for p in members for q in members)
    assert isinstance(total, torch.Tensor)
    return (total / (len(members) * (len(members) - 1))).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_mean_of_the_pairs(kind: Any, logits: np.ndarray) -> None:
    found = functional_diversity_per_sample(kind(logits))
    assert found.shape == (N,)
    assert isinstance(found, type(kind(logits)))
    assert found.tolist() == pytest.approx(by_pairs(logits))
    assert functional_diversity(kind(logits)) == pytest.approx(np.mean(by_pairs(logits)))


@pytest.mark.parametrize("kind", KINDS)
def test_order_shift_and_precision(kind: Any, logits: np.ndarray) -> None:
    plain = functional_diversity_per_sample(kind(logits))
    other = np.random.default_rng(1).normal(size=(M, N, 1))
    for changed in (logits[[2, 0, 1]], logits + other):
        assert functional_diversity_per_sample(kind(changed)).tolist() == pytest.approx(plain.tolist())
    single = functional_diversity_per_sample(kind(logits.astype(np.float32)))
    assert single.tolist() == pytest.approx(plain.tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_members_that_agree_and_far_logits(kind: Any, logits: np.ndarray) -> None:
    same = kind(np.repeat(logits[:1], M, axis=0))
    assert functional_diversity(same) == pytest.approx(0, abs=1e-12)
    assert float(functional_diversity_per_sample(same).min()) >= 0
    assert np.isfinite(functional_diversity(kind(1e4 * np.sign(logits))))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_finite(kind: Any, logits: np.ndarray) -> None:
    logits[1, 4, 2], logits[0, 5, 0] = np.nan, np.inf
    found = functional_diversity_per_sample(kind(logits))
    assert [row for row in range(N) if not np.isfinite(float(found[row]))] == [4, 5]
    kept = np.delete(logits, [4, 5], axis=1)
    assert functional_diversity(kind(logits)) == pytest.approx(np.mean(by_pairs(kept)))
    assert np.isnan(functional_diversity(kind(logits[:, 4:6])))


def test_a_tensor_with_gradients(logits: np.ndarray) -> None:
    tensor = torch.from_numpy(logits).requires_grad_()
    assert not functional_diversity_per_sample(tensor).requires_grad


@pytest.mark.parametrize("shape", [(N, C), (1, N, C), (M, N, 0)])
def test_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\(members, rows, classes\) with at least 2 members"):
        functional_diversity_per_sample(np.zeros(shape))
