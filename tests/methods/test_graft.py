"""GRAFT's loss by hand, and what it needs."""

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import NetworkReference
from flipguard.methods import CoDistillation, Graft, Twins, build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError, Output

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

    method(Said(logits), {}, batch).loss.backward()  # type: ignore[arg-type]
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


class Said(nn.Module):
    """A student that has said this."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits, self.members = logits, len(logits)

    def forward(self, x: object) -> Output:
        return Output(self.logits)


def test_twins_are_drawn_to_each_other_as_by_codistillation_with_a_quarter_of_unity() -> None:
    """For small distances, and apart from the labels, which both have alike."""
    torch.manual_seed(3)
    middle, apart = torch.randn(1, B, C, dtype=torch.float64), 1e-3 * torch.randn(1, B, C, dtype=torch.float64)
    batch = a_batch(0.9)
    drawn = []
    for method in (Twins(strength=0.0), Twins(strength=0.0, unity=0.0), CoDistillation(beta=1.0)):
        logits = torch.cat([middle + apart, middle - apart]).requires_grad_()
        method(Said(logits), {}, batch).loss.backward()  # type: ignore[arg-type]
        assert logits.grad is not None
        drawn.append(logits.grad)
    ours, labels, theirs = drawn
    assert (theirs - labels).norm() > 1e-5
    torch.testing.assert_close(ours - labels, theirs - labels, rtol=1e-2, atol=1e-7)


def test_twins_share_nothing_but_the_batch() -> None:
    student = Twins().student(network, decay_all=True)
    first, second = (dict(one.named_parameters()) for one in student.networks)
    assert all(not torch.equal(weight, second[name]) for name, weight in first.items() if "weight" in name)
    own = [dict(one.named_parameters()) for one in student.branches.networks]
    assert not {id(weight) for weight in own[0].values()} & {id(weight) for weight in own[1].values()}
