"""Every objective crossed with the invariances that all of them have."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.methods import METHODS, NoTreatment, build_method, method_cards
from flipguard.types import Batch, InputError, Output, Reference, Step

M, B, C, D = 3, 5, 7, 11
LDI = {"p": 1.5, "k": 2, "margin": 0.1, "with_label": False}

# Each objective as it comes, and those with parameters that lead another way through the code.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name, card in METHODS.items() if card.kind == "objective"},
    "smoothed": ("none", {"label_smoothing": 0.1}),
    "fd_kl reversed": ("fd_kl", {"distance": "reverse_kl", "temperature": 2.0}),
    "ensemble_fd kl": ("ensemble_fd", {"distance": "kl"}),
    "ldi top-k": ("ldi", {"difference": LDI}),
    "elodi mixed": ("elodi", {"mix": 0.3}),
    "elodi top-k": ("elodi", {"difference": {"k": 2, "ranked_by": "either"}}),
    "elodi sum": ("elodi", {"difference": {"reduction": "sum", "k": 3, "ranked_by": "reference"}}),
}
MATCHING = {"kd": ["distillation"], "ensemble_kd": ["distillation"], "ldi": ["ldi_old"], "elodi": ["ldi_ensemble"]}
MATCHING |= {name: ["focal_distillation"] for name in ("fd_kl", "fd_lm", "ensemble_fd")}
ZERO = {name: {"alpha": 0.0} for name in ("kd", "ensemble_kd", "ldi", "elodi")}
ZERO |= {name: {"strength": 0.0} for name in ("naive", "fd_kl", "fd_lm", "ensemble_fd")}
ZERO |= {"dropout": {}}

every_case = pytest.mark.parametrize("case", CASES)


def made(case: str) -> Any:
    name, options = CASES[case]
    return build_method(name, **options)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    """In float64, as τ²·KL at τ = 100 leaves four digits of a float32."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def a_batch(rows: int = B) -> Batch:
    zero = torch.zeros(())
    return Batch(torch.randn(rows, D), torch.randint(C, (rows,)), torch.arange(rows), zero, zero.long())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 13), nn.BatchNorm1d(13), nn.ReLU(), nn.Dropout(0.5), nn.Linear(13, C))


def a_student() -> SingleStudent:
    return SingleStudent(nn.Linear(D, C))


def the_references() -> dict[str, Reference]:
    return {
        "old": NetworkReference("old", [network()]),
        "ensemble": NetworkReference("ensemble", [network() for _ in range(M)]),
    }


def gradients(student: nn.Module, step: Step) -> list[Tensor]:
    return list(torch.autograd.grad(step.loss, list(student.parameters())))


def permuted(batch: Batch, order: Tensor) -> Batch:
    assert isinstance(batch.x, Tensor)
    return Batch(batch.x[order], batch.y[order], batch.index[order], batch.progress, batch.step)


def test_every_objective_is_in_the_tables() -> None:
    objectives = {name for name, card in METHODS.items() if card.kind == "objective"}
    assert set(ZERO) == objectives - {"none"}
    assert set(MATCHING) == objectives - {"none", "dropout", "naive"}


@every_case
def test_shapes_and_names(case: str) -> None:
    student, batch = a_student(), a_batch()
    step = made(case)(student, the_references(), batch)
    assert step.loss.shape == ()
    assert step.logits.shape == (1, B, C)
    assert torch.equal(step.logits[0], student.network(batch.x))
    assert "cross_entropy" in step.terms
    assert all(term.shape == () and bool(torch.isfinite(term)) for term in step.terms.values())


@every_case
def test_order_of_the_batch_does_not_matter(case: str) -> None:
    student, references, batch = a_student(), the_references(), a_batch()
    cached = {name: CachedReference(name, r(batch).logits) for name, r in references.items()}
    order = torch.tensor([3, 0, 4, 1, 2])
    for held in (references, cached):
        plain, mixed = (made(case)(student, held, b) for b in (batch, permuted(batch, order)))
        assert torch.allclose(plain.loss, mixed.loss, rtol=1e-6, atol=1e-6)
        assert torch.allclose(plain.logits[:, order], mixed.logits)
        for name, term in plain.terms.items():
            assert torch.allclose(term, mixed.terms[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MATCHING)
def test_student_that_equals_its_reference(name: str) -> None:
    student, batch = a_student(), a_batch()
    same = {
        "old": NetworkReference("old", [nn.Linear(D, C)]),
        "ensemble": NetworkReference("ensemble", [nn.Linear(D, C) for _ in range(M)]),
    }
    apart = build_method(name)(student, same, batch)
    assert all(apart.terms[term] > 1e-3 for term in MATCHING[name])
    for reference in same.values():
        for copy in reference.networks:
            copy.load_state_dict(student.network.state_dict())
    step = build_method(name)(student, same, batch)
    for term in MATCHING[name]:
        assert abs(step.terms[term].item()) < 1e-10


@pytest.mark.parametrize("name", ZERO)
def test_weight_zero_is_no_treatment(name: str) -> None:
    student, references, batch = a_student(), the_references(), a_batch()
    plain = NoTreatment()(student, {}, batch)
    treated = build_method(name, **ZERO[name])(student, references, batch)
    assert torch.equal(treated.loss, plain.loss)
    for mine, other in zip(gradients(student, treated), gradients(student, plain), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", [name for name in ZERO if name != "dropout"])
def test_another_weight_is_not(name: str) -> None:
    student, references, batch = a_student(), the_references(), a_batch()
    # A reference that is right somewhere, so that the naive weight is not zero everywhere.
    right = nn.functional.one_hot(batch.y, C).float()[None] * 3
    references["old"] = CachedReference("old", right)
    assert build_method(name)(student, references, batch).loss != NoTreatment()(student, {}, batch).loss


@every_case
def test_one_step_lowers_its_own_loss(case: str) -> None:
    student, references, batch, method = a_student(), the_references(), a_batch(), made(case)
    optimiser = torch.optim.SGD(student.parameters(), lr=1e-3)
    before = method(student, references, batch)
    before.loss.backward()
    optimiser.step()
    assert method(student, references, batch).loss < before.loss


class Said(nn.Module):
    """A network whose logits are its weights."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.table


@every_case
def test_bf16_stays_finite_far_out(case: str) -> None:
    def far(*shape: int) -> Tensor:
        return (torch.randint(0, 2, shape) * 2e4 - 1e4).to(torch.bfloat16)

    student = SingleStudent(Said(far(B, C)))
    references = {"old": CachedReference("old", far(1, B, C)), "ensemble": CachedReference("ensemble", far(M, B, C))}
    with torch.autocast("cpu", torch.bfloat16):
        step = made(case)(student, references, a_batch())
    assert bool(torch.isfinite(step.loss))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(student, step))


@every_case
def test_shapes_do_not_depend_on_data(case: str) -> None:
    """Fake tensors have shapes but no values: what asks for a value, or makes a shape of one, fails."""
    with FakeTensorMode():
        batch = a_batch()
        with pytest.raises(DynamicOutputShapeException):
            _ = batch.y[batch.y > 0]
        known = (4, 1, 6)
        some = {
            "old": NetworkReference("old", [nn.Linear(D, 3)], classes=known),
            "ensemble": NetworkReference("ensemble", [nn.Linear(D, 3) for _ in range(M)], classes=known),
        }
        for references in (the_references(), some):
            student = a_student()
            step = made(case)(student, references, batch)
            step.loss.backward()
            assert step.logits.shape == (1, B, C)


@every_case
def test_nothing_reaches_the_references(case: str) -> None:
    student, references, batch = a_student(), the_references(), a_batch(17)
    held = nn.ModuleList(references.values())
    before = {name: value.clone() for name, value in held.state_dict().items()}
    held.train()
    made(case)(student, references, batch).loss.backward()
    assert all(parameter.grad is None for parameter in held.parameters())
    assert all(torch.equal(value, before[name]) for name, value in held.state_dict().items())
    assert all(parameter.grad is not None for parameter in student.parameters())


class Pair(nn.Module):
    members = 2

    def forward(self, x: Tensor, *, features: bool = False) -> Output:
        return Output(torch.zeros(2, B, C))


@every_case
def test_a_student_of_two_is_refused_rather_than_half_trained(case: str) -> None:
    with pytest.raises(InputError, match="one member; this one has 2"):
        made(case)(Pair(), the_references(), a_batch())


@pytest.mark.parametrize("name", MATCHING)
def test_a_missing_reference_is_named(name: str) -> None:
    method = build_method(name)
    with pytest.raises(InputError, match=f"needs the reference '{method.needs[0]}'"):
        method(a_student(), {}, a_batch())


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
        ("none", {"alpha": 1}, "'none' has no option 'alpha'. Options: label_smoothing"),
    ],
)
def test_bad_parameters(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_method(name, **options)


def test_more_classes_than_there_are() -> None:
    for name in ("ldi", "elodi"):
        build_method(name, difference={"k": C})(a_student(), the_references(), a_batch())
        with pytest.raises(InputError, match=f"k={C + 1}"):
            build_method(name, difference={"k": C + 1})(a_student(), the_references(), a_batch())


@pytest.mark.parametrize("name", MATCHING)
def test_references_with_other_classes(name: str) -> None:
    student, batch = a_student(), a_batch()

    def held(outputs: int, classes: tuple[int, ...] | None) -> dict[str, Reference]:
        made = NetworkReference("x", [nn.Linear(D, outputs)], classes=classes)
        return {"old": made, "ensemble": made}

    for outputs, classes, message in [
        (3, None, "has 3 classes and the student 7: pass classes="),
        (3, (0, 1), "has 3 classes, of which classes= names 2"),
        (3, (0, 1, C), f"the highest {C}; the student has {C}"),
    ]:
        with pytest.raises(InputError, match=message):
            build_method(name)(student, held(outputs, classes), batch)


def test_cards_say_what_the_methods_do() -> None:
    cards = {card["name"]: card for card in method_cards()}
    assert list(cards) == list(METHODS)
    for name, card in cards.items():
        assert card["paper"]
        assert card["equation"]
        assert card["training_cost"]
        assert card["kind"] in ("objective", "paragon")
        built = build_method(name, **card["parameters"])
        assert built == build_method(name)
        assert list(built.needs) == card["references"]
    assert cards["elodi"]["parameters"]["difference"]["ranked_by"] == "either"
    assert cards["fd_kl"]["parameters"]["distance"] == "kl"
    assert "distance" not in cards["fd_lm"]["parameters"]
    assert cards["paragon"]["inference_cost"] == "m"
