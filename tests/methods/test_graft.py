"""GRAFT's loss by hand, and what it needs."""

import pytest
import torch
from torch import nn

from flipguard.ensembles import NetworkReference
from flipguard.methods import Graft, build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError

M, B, C, D = 3, 6, 4, 5


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return build_model("mlp", classes=C, input_size=D, hidden=(7, 7))


def a_batch(progress: float) -> Batch:
    torch.manual_seed(11)
    step = torch.zeros((), dtype=torch.int64)
    return Batch(torch.randn(B, D), torch.randint(C, (B,)), torch.arange(B), torch.tensor(progress), step)


def test_the_loss_is_the_equation() -> None:
    """Σ_m CE + γ·r·τ²·KL(mean ‖ m) + λ·(α + β·1)·T²·KL(old ‖ m), the ramp r half-way up."""
    method = Graft(members=M, unity=0.7, temperature=2.0, strength=0.4, alpha=0.5, beta=3.0, old_temperature=5.0)
    student, old, batch = method.student(network, decay_all=True), network(52), a_batch(0.1)
    made = method(student, {"old": NetworkReference("old", [old])}, batch)
    with torch.no_grad():
        said, before = student(batch.x).logits, old(batch.x)
    right = (before.argmax(1) == batch.y).float()
    assert 0 < right.sum() < B
    mean = said.mean(0)
    expected = torch.zeros(())
    for branch in said:
        chances = branch.log_softmax(1)
        for row in range(B):
            loss = -chances[row, batch.y[row]]
            for weight, teacher, tau in (
                (0.7 * 0.5, mean[row], 2.0),
                (0.4 * (0.5 + 3.0 * right[row]), before[row], 5.0),
            ):
                p, q = (teacher / tau).softmax(0), (branch[row] / tau).softmax(0)
                loss = loss + weight * tau**2 * (p * (p / q).log()).sum()
            expected = expected + loss / B
    torch.testing.assert_close(made.loss.detach(), expected, rtol=1e-4, atol=1e-5)


def test_the_mean_is_a_teacher_and_not_a_pupil() -> None:
    """No gradient reaches a branch through the mean: without labels and old model, each is drawn by its own term."""
    method = Graft(members=M, strength=0.0)
    student, batch = method.student(network, decay_all=True), a_batch(0.9)
    logits = student(batch.x).logits.detach().requires_grad_()

    class Said:
        members = M

        def __call__(self, x: object) -> object:
            return type("Output", (), {"logits": logits})()

    method(Said(), {}, batch).loss.backward()  # type: ignore[arg-type]
    tau, mean = 3.0, logits.detach().mean(0)
    drawn = tau * ((logits.detach() / tau).softmax(-1) - (mean / tau).softmax(-1)) / B
    labels = (logits.detach().softmax(-1) - nn.functional.one_hot(batch.y, C)) / B
    torch.testing.assert_close(logits.grad, drawn + labels, rtol=1e-4, atol=1e-6)


def test_without_a_strength_there_is_no_old_model() -> None:
    assert build_method("graft").needs == ("old",)
    assert build_method("graft", strength=0.0).needs == ()


def test_one_branch_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 members, got 1"):
        Graft(members=1)
