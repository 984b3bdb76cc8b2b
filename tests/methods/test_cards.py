"""What is known of each method before it is built, and what it refuses to be built with."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from flipguard.ensembles import NetworkReference, SingleStudent
from flipguard.methods import METHODS, build_method, method_cards
from flipguard.types import Batch, InputError

B, C, D = 5, 7, 11


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("kd", {"alpha": 1.5}, "alpha must lie between 0 and 1, got 1.5"),
        ("kd", {"alpha": float("nan")}, "alpha must lie between 0 and 1"),
        ("ensemble_kd", {"temperature": 0}, "temperature must be above 0"),
        ("ldi", {"alpha": -0.1}, "alpha must lie"),
        ("elodi", {"mix": 2}, "mix must lie"),
        ("elodi", {"difference": {"k": 0}}, "k of at least 1"),
        ("elodi", {"difference": {"p": 0.5}}, "p and k of at least 1"),
        ("elodi", {"difference": {"margin": -1}}, "margin must not be negative"),
        ("elodi", {"difference": {"ranked_by": "loss"}}, "ranked_by must be one of"),
        ("elodi", {"difference": {"reduction": "median"}}, "reduction must be one of"),
        ("elodi", {"difference": {"K": 3}}, r"elodi.difference has no option 'K'. Options: p, k"),
        ("fd_lm", {"beta": -5}, "beta must not be negative, got -5"),
        ("fd_lm", {"distance": "kl"}, "'fd_lm' has no option 'distance'"),
        ("fd_kl", {"distance": "cosine"}, "distance must be one of"),
        ("naive", {"strength": -1}, "strength must not be negative"),
        ("dropout", {"p": 1.0}, "p must be at least 0 and below 1"),
        ("none", {"label_smoothing": 1.0}, "label_smoothing must be at least 0"),
        ("paragon", {"combination": "votes"}, "combination must be one of"),
        ("elody", {}, "there is no method 'elody'. Did you mean 'elodi'?"),
        ("recommended", {}, "recommended is chosen by what a version follows"),
        ("none", {"alpha": 1}, "'none' has no option 'alpha'. Options: label_smoothing"),
    ],
)
def test_bad_parameters(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_method(name, **options)


@pytest.mark.parametrize(("name", "reference"), [("ldi", "old"), ("elodi", "ensemble")])
def test_more_classes_than_there_are(name: str, reference: str) -> None:
    late, step = torch.ones(()), torch.zeros((), dtype=torch.int64)
    batch = Batch(torch.randn(B, D), torch.randint(C, (B,)), torch.arange(B), late, step)
    student, references = SingleStudent(nn.Linear(D, C)), {reference: NetworkReference(reference, [nn.Linear(D, C)])}
    build_method(name, difference={"k": C})(student, references, batch)
    with pytest.raises(InputError, match=f"k={C + 1}"):
        build_method(name, difference={"k": C + 1})(student, references, batch)


def test_cards_say_what_the_methods_do() -> None:
    cards = {card["name"]: card for card in method_cards()}
    assert list(cards) == list(METHODS)
    for name, card in cards.items():
        assert re.fullmatch(r"[A-Z].{20,98}\.", card["summary"]), card["summary"]
        assert card["paper"]
        assert card["equation"]
        assert card["training_cost"]
        assert card["kind"] in ("objective", "post-hoc", "paragon")
        built = build_method(name, **card["parameters"])
        assert built == build_method(name)
        assert list(built.needs) == card["references"]
    assert len({card["summary"] for card in cards.values()}) == len(cards)
    assert cards["elodi"]["parameters"]["difference"]["ranked_by"] == "either"
    assert cards["fd_kl"]["parameters"]["distance"] == "kl"
    assert "distance" not in cards["fd_lm"]["parameters"]
    assert cards["paragon"]["inference_cost"] == "m"
