"""A plain network as a student of one member."""

import torch

from flipguard.ensembles import SingleStudent
from flipguard.models import build_model
from flipguard.types import Student

B, C, D = 5, 7, 11


def test_single_student() -> None:
    network = build_model("mlp", classes=C, input_size=D, hidden=(13,))
    student = SingleStudent(network)
    assert isinstance(student, Student)
    x = torch.randn(B, D)
    plain, both = student(x), student(x, features=True)
    assert plain.logits.shape == (1, B, C)
    assert plain.features is None
    assert torch.equal(plain.logits[0], network(x))
    assert torch.equal(both.logits, plain.logits)
    assert both.features is not None
    assert both.features.shape == (1, B, 13)
    assert torch.equal(both.features[0], network.features(x))
    assert student.release() is network
