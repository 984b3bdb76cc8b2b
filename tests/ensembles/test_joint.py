"""Several networks as one student."""

import copy

import pytest
import torch
from torch import nn

from flipguard.ensembles import JointStudent, StaleStudent
from flipguard.models import build_model
from flipguard.types import InputError, Student

M, B, C, D = 3, 5, 7, 11


def networks(members: int = M) -> list[nn.Module]:
    torch.manual_seed(2)
    return [build_model("mlp", classes=C, input_size=D, hidden=(13,)) for _ in range(members)]


@pytest.mark.parametrize("kind", ["joint", "stale"])
def test_members_answer_side_by_side(kind: str) -> None:
    members = networks()
    student = JointStudent(members) if kind == "joint" else StaleStudent(members, every=2)
    assert isinstance(student, Student)
    assert student.members == M
    x = torch.randn(B, D)
    plain, both = student(x), student(x, features=True)
    assert plain.logits.shape == (M, B, C)
    assert plain.features is None
    assert torch.equal(both.logits, plain.logits)
    assert both.features is not None
    assert both.features.shape == (M, B, 13)
    for j, network in enumerate(members):
        assert torch.equal(plain.logits[j], network(x))
        assert torch.equal(both.features[j], network.features(x))
    assert student.release() is members[0]


def test_every_trained_parameter_is_in_one_group() -> None:
    for student in (JointStudent(networks()), StaleStudent(networks(), every=2)):
        groups = student.parameter_groups()
        assert [len(group["params"]) for group in groups] == [4] * M
        found = [id(p) for group in groups for p in group["params"]]
        assert found == [id(p) for p in student.parameters() if p.requires_grad]
    apart = JointStudent(networks(), decay_all=False).parameter_groups()
    assert [len(group["params"]) for group in apart] == [2] * 2 * M
    assert [group.get("weight_decay") for group in apart] == [None, 0.0] * M


def test_images_in_channels_last_and_bfloat16() -> None:
    torch.manual_seed(2)
    student = StaleStudent([build_model("cnn", classes=C, width=4) for _ in range(2)], every=2)
    student.to(memory_format=torch.channels_last)
    x = torch.randn(B, 1, 8, 8).to(memory_format=torch.channels_last)
    with torch.autocast("cpu", torch.bfloat16):
        logits = student(x).logits
        assert logits.dtype == student.stale_logits(x).dtype == torch.bfloat16
    logits.float().square().mean().backward()
    assert all((p.grad is not None) == p.requires_grad for p in student.parameters())


def test_copies_are_refreshed_in_place_and_only_then() -> None:
    torch.manual_seed(2)
    student = StaleStudent([build_model("cnn", classes=C, width=4) for _ in range(2)], every=3)
    x = torch.randn(B, 1, 8, 8)
    begun, memory = copy.deepcopy(student.stale.state_dict()), [p.data_ptr() for p in student.stale.parameters()]
    for done in (1, 2):
        student(x)
        with torch.no_grad():
            for parameter in student.networks.parameters():
                parameter.add_(0.1)
        student.after_step(done)
        assert all(torch.equal(value, begun[name]) for name, value in student.stale.state_dict().items())
    student.after_step(3)
    current = student.networks.state_dict()
    assert all(torch.equal(value, current[name]) for name, value in student.stale.state_dict().items())
    assert not torch.equal(current["0.head.weight"], begun["0.head.weight"])
    assert not torch.equal(current["0.body.1.running_mean"], begun["0.body.1.running_mean"])
    assert [p.data_ptr() for p in student.stale.parameters()] == memory


def test_copies_answer_in_evaluation_mode_without_gradients() -> None:
    torch.manual_seed(2)
    student = StaleStudent([build_model("cnn", classes=C, width=4, dropout=0.5) for _ in range(2)], every=1)
    student.train()
    x = torch.randn(B, 1, 8, 8)
    begun = copy.deepcopy(student.stale.state_dict())
    said = student.stale_logits(x)
    assert not said.requires_grad
    assert torch.equal(said, student.stale_logits(x))
    assert all(torch.equal(value, begun[name]) for name, value in student.stale.state_dict().items())
    assert student.networks[0].training
    for j in range(2):
        assert torch.equal(said[j], copy.deepcopy(student.networks[j]).eval()(x))


def test_refusals() -> None:
    with pytest.raises(InputError, match="at least 2, got 1"):
        JointStudent(networks(1))
    with pytest.raises(InputError, match="at least 1, got 0"):
        StaleStudent(networks(), every=0)
