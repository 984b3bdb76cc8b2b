"""BCT's and RACT's terms: hand values, a naive loop, gradients, and the corners that must stay finite."""

import math

import pytest
import torch
from torch import Tensor

from flipguard.losses import contrastive_compatibility, fit_width, joint_cross_entropy, known_cross_entropy
from flipguard.types import InputError

B, C, S, D = 5, 7, 3, 11

torch.set_num_threads(1)


def rand(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Y = torch.tensor([4, 0, 4, 6, 1])
Y_OLD = torch.tensor([2, -1, 2, -1, 0])


def test_unknown_classes_count_nothing_and_pass_no_gradient() -> None:
    logits = rand(B, S).requires_grad_()
    loss = known_cross_entropy(logits, Y_OLD)
    for row, values in enumerate(logits.detach()):
        expected = 0.0 if Y_OLD[row] < 0 else float(values.logsumexp(0) - values[Y_OLD[row]])
        assert loss[row].item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert bool((gradient[Y_OLD < 0] == 0).all())
    assert bool((gradient[Y_OLD >= 0] != 0).all())


def test_joint_cross_entropy_by_a_loop() -> None:
    old, new = rand(B, S), rand(B, C, seed=4)
    loss = joint_cross_entropy(old, new, Y_OLD, Y)
    for row in range(B):
        rivals = [math.exp(new[row, k]) for k in range(C) if k != Y[row]]
        total = sum(math.exp(value) for value in old[row]) + sum(rivals)
        expected = 0.0 if Y_OLD[row] < 0 else math.log(total) - float(old[row, Y_OLD[row]])
        assert loss[row].item() == pytest.approx(expected)


def test_joint_cross_entropy_of_many_classes() -> None:
    """So many that their cross-entropy is taken in place, with the new head's own label masked among them."""
    old, new, weight = rand(B, 601).requires_grad_(), rand(B, 607, seed=4).requires_grad_(), torch.arange(1.0, B + 1)
    y, y_old = torch.tensor([600, 0, 606, 5, 1]), torch.tensor([2, -1, 600, 0, 1])
    rivals = torch.stack([torch.cat([row[:label], row[label + 1 :]]) for row, label in zip(new, y, strict=True)])
    right = old.gather(1, y_old.clamp(min=0)[:, None])[:, 0]
    expected = (torch.cat([old, rivals], 1).logsumexp(1) - right) * (y_old >= 0)
    found = joint_cross_entropy(old, new, y_old, y)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((loss * weight).sum(), (old, new)) for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)


def test_the_new_heads_own_label_does_not_matter_and_its_rivals_do() -> None:
    old, new = rand(B, C), rand(B, C, seed=4)
    plain = joint_cross_entropy(old, new, Y, Y)
    assert torch.equal(joint_cross_entropy(old, new.scatter(1, Y[:, None], 50.0), Y, Y), plain)
    assert bool((joint_cross_entropy(old, new + 1, Y, Y) > plain).all())


def loop(new: Tensor, old: Tensor, y: Tensor, temperature: float, hardest: int) -> list[float]:
    z, o = (part / part.norm(dim=1, keepdim=True) for part in (new, old))
    found = []
    for i in range(len(y)):
        others = [j for j in range(len(y)) if y[j] != y[i]]
        sums = [sorted((float(z[i] @ side[j]) for j in others), reverse=True)[:hardest] for side in (o, z)]
        own = float(z[i] @ o[i])
        total = sum(math.exp((s - own) / temperature) for s in (own, *sums[0], *sums[1]))
        found.append(math.log(total))
    return found


@pytest.mark.parametrize("hardest", [1, 2, 10])
def test_contrastive_compatibility_by_a_loop(hardest: int) -> None:
    new, old = rand(B, D), rand(B, D, seed=4)
    loss = contrastive_compatibility(new, old, Y, temperature=0.3, hardest=hardest)
    assert loss.tolist() == pytest.approx(loop(new, old, Y, 0.3, hardest))


def test_contrastive_compatibility_knows_directions_only() -> None:
    new, old = rand(B, D), rand(B, D, seed=4)
    scaled = contrastive_compatibility(3 * new, old / 7, Y, temperature=0.3)
    assert torch.allclose(scaled, contrastive_compatibility(new, old, Y, temperature=0.3))


def test_a_batch_without_negatives_costs_nothing() -> None:
    new = rand(B, D).requires_grad_()
    loss = contrastive_compatibility(new, rand(B, D, seed=4), torch.full((B,), 2))
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    assert bool((loss == 0).all())
    assert bool((gradient == 0).all())


def test_a_dead_feature_vector_has_no_gradient_and_the_others_a_finite_one() -> None:
    new = rand(B, D)
    new[1] = 0
    new.requires_grad_()
    loss = contrastive_compatibility(new, rand(B, D, seed=4), Y)
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    assert bool(torch.isfinite(loss).all())
    assert bool(torch.isfinite(gradient).all())
    assert bool((gradient[1] == 0).all())


def test_gradients() -> None:
    old, new = rand(B, S), rand(B, C, seed=4)
    assert torch.autograd.gradcheck(lambda a, b: joint_cross_entropy(a, b, Y_OLD, Y), [old, new.requires_grad_()])
    features = rand(B, D, seed=5).requires_grad_()
    held = rand(B, D, seed=6)
    assert torch.autograd.gradcheck(
        lambda z: contrastive_compatibility(z, held, Y, temperature=0.5, hardest=2), [features]
    )


def test_bf16_far_out() -> None:
    far = (rand(B, C).sign() * 1e4).to(torch.bfloat16).requires_grad_()
    loss = joint_cross_entropy(far, far, Y, Y) + contrastive_compatibility(far, -far.detach(), Y)
    (gradient,) = torch.autograd.grad(loss.sum(), far)
    assert loss.dtype == torch.float32
    assert bool(torch.isfinite(loss).all() and torch.isfinite(gradient).all())


def test_autocast_does_not_round_the_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    new, old = (torch.randn(61, 31, generator=generator) for _ in range(2))
    y = torch.arange(61) % 7
    exact = contrastive_compatibility(new.double(), old.double(), y)
    with torch.autocast("cpu", torch.bfloat16):
        found = contrastive_compatibility(new, old, y)
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=1e-3)


def test_widths() -> None:
    features = rand(B, D)
    assert torch.equal(fit_width(features, D), features)
    assert torch.equal(fit_width(features, 2), features[:, :2])
    wide = fit_width(features, 13)
    assert torch.equal(wide[:, :D], features)
    assert bool((wide[:, D:] == 0).all())


def test_refusals() -> None:
    with pytest.raises(InputError, match="one shape"):
        contrastive_compatibility(rand(B, D), rand(B, 2), Y)
    with pytest.raises(InputError, match=r"hardest at least 1, got 0\.01 and 0"):
        contrastive_compatibility(rand(B, D), rand(B, D), Y, hardest=0)
    with pytest.raises(InputError, match="temperature must be above 0"):
        contrastive_compatibility(rand(B, D), rand(B, D), Y, temperature=0.0)
    with pytest.raises(InputError, match="labels"):
        known_cross_entropy(rand(B, C), Y[:, None])
