"""Every objective crossed with the invariances that all of them have.

A new method is crossed as soon as it is registered. Its card names what does not apply to it, with the reason:
`Card(departures={"agreement": "…"})`, by the names in INVARIANCES. Where the defaults below do not fit, add a line to
CASES (options that lead another way through the code), WEIGHTS (options that switch its treatment off), MATCHING (terms
that vanish when student and reference agree) or PLAIN (no treatment of a student of its own kind).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.methods import METHODS, NoTreatment, build_method
from flipguard.models import build_model
from flipguard.models.classifier import Classifier
from flipguard.types import Batch, InputError, Output, Reference, Step

M, B, C, D = 3, 5, 7, 11
OBJECTIVES = {name: card for name, card in METHODS.items() if card.kind == "objective"}
INVARIANCES = {
    "order": "the batch's order changes nothing but the order",
    "cached": "references may be logits that were computed once",
    "classes": "a reference may know fewer classes",
    "agreement": "a student that agrees with what it is held to has nothing to pay",
    "weight_zero": "with its weight at zero it is no treatment, to the bit",
    "descent": "one small step lowers its own loss",
    "bf16": "bfloat16 logits of ±1e4 give a finite loss and gradients",
    "shapes": "neither shapes nor Python's way through the code depend on the data",
}

LDI = {"p": 1.5, "k": 2, "margin": 0.1, "with_label": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in OBJECTIVES},
    "smoothed": ("none", {"label_smoothing": 0.1}),
    "fd_kl reversed": ("fd_kl", {"distance": "reverse_kl", "temperature": 2.0}),
    "ensemble_fd kl": ("ensemble_fd", {"distance": "kl"}),
    "ldi top-k": ("ldi", {"difference": LDI}),
    "elodi mixed": ("elodi", {"mix": 0.3}),
    "elodi top-k": ("elodi", {"difference": {"k": 2, "ranked_by": "either"}}),
    "entropy top-k": ("entropy", {"k": 3}),
    "skl top-k": ("skl", {"k": 3}),
    "codistill_skl with entropy": ("codistill_skl", {"regulariser": "entropy"}),
    "codistill_l1 with skl top-k": ("codistill_l1", {"regulariser": "skl", "k": 3}),
    "codistill_skl of three": ("codistill_skl", {"members": M}),
    "codistill_ce of three": ("codistill_ce", {"members": M}),
    "graft of three, without an old model": ("graft", {"members": M, "strength": 0.0}),
    "elodi sum": ("elodi", {"difference": {"reduction": "sum", "k": 3, "ranked_by": "reference"}}),
}

# By default every parameter of one of these names is set to zero, and every term but the labels' own is a matching one.
WEIGHT_NAMES = ("strength", "weight", "alpha", "beta")
WEIGHTS: dict[str, dict[str, float]] = {name: {"strength": 0.0, "unity": 0.0} for name in ("graft", "scion", "twins")}
MATCHING: dict[str, tuple[str, ...]] = {}


def labels_alone(student: Any, batch: Batch) -> Tensor:
    """The sum over members of what no treatment gives each of them."""
    logits = student(batch.x).logits
    losses = [nn.functional.cross_entropy(member, batch.y, reduction="none").mean() for member in logits]
    return sum(losses[1:], losses[0])


PLAIN: dict[str, Callable[[Any, Batch], Tensor]] = {}


def cases(invariance: str) -> Any:
    """The cases to which an invariance applies."""
    assert invariance in INVARIANCES
    kept = [case for case, (name, _) in CASES.items() if invariance not in METHODS[name].departures]
    return pytest.mark.parametrize("case", kept)


def held(invariance: str) -> list[str]:
    """The objectives that an invariance applies to and that are held to something: references, or each other."""
    return [
        name
        for name, card in OBJECTIVES.items()
        if invariance not in card.departures and (card.references or hasattr(card.build(), "student"))
    ]


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
    """Late in training, when every ramp has been climbed."""
    late = torch.full((), 0.9)
    step = torch.full((), 90, dtype=torch.int64)
    return Batch(torch.randn(rows, D), torch.randint(C, (rows,)), torch.arange(rows), late, step)


def small(member: int = 0) -> nn.Module:
    """A network without noise of its own."""
    torch.manual_seed(member)
    return build_model("mlp", classes=C, input_size=D, hidden=(13,))


def noisy(classes: int = C) -> nn.Module:
    body = nn.Sequential(nn.Linear(D, 13), nn.BatchNorm1d(13), nn.ReLU())
    return Classifier(body, nn.Linear(13, classes), dropout=0.5)


def a_student(method: Any, build: Callable[[int], nn.Module] = small) -> Any:
    if hasattr(method, "student"):
        return method.student(build, decay_all=True)
    return SingleStudent(build(0))


def the_references(build: Callable[[int], nn.Module] = lambda _: noisy(), **options: Any) -> dict[str, Reference]:
    return {
        "old": NetworkReference("old", [build(101)], **options),
        "ensemble": NetworkReference("ensemble", [build(102 + j) for j in range(M)], **options),
    }


def trained(student: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in student.parameters() if parameter.requires_grad]


def gradients(student: nn.Module, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, trained(student)))


def zero(name: str) -> Mapping[str, float]:
    found = {option: 0.0 for option in OBJECTIVES[name].parameters() if option in WEIGHT_NAMES}
    return WEIGHTS.get(name, found)


def test_departures_are_named_and_reasoned() -> None:
    for name, card in METHODS.items():
        assert set(card.departures) <= set(INVARIANCES), name
        assert all(len(reason.split()) > 3 for reason in card.departures.values()), name
    for table in (WEIGHTS, MATCHING, PLAIN):
        assert set(table) <= set(OBJECTIVES)


@every_case
def test_shapes_and_names(case: str) -> None:
    method, batch = made(case), a_batch()
    student = a_student(method)
    step = method(student, the_references(), batch)
    assert step.loss.shape == ()
    assert step.logits.shape == (student.members, B, C)
    assert torch.equal(step.logits, student(batch.x).logits)
    assert "cross_entropy" in step.terms
    assert all(term.shape == () and bool(torch.isfinite(term)) for term in step.terms.values())
    assert student.release()(batch.x).shape == (B, C)


def assert_same_but_order(plain: Step, mixed: Step, order: Tensor) -> None:
    assert torch.allclose(plain.loss, mixed.loss, rtol=1e-6, atol=1e-6)
    assert torch.allclose(plain.logits[:, order], mixed.logits)
    for name, term in plain.terms.items():
        assert torch.allclose(term, mixed.terms[name], rtol=1e-6, atol=1e-6)


@cases("order")
def test_order_of_the_batch_does_not_matter(case: str) -> None:
    method, references, batch = made(case), the_references(), a_batch()
    student, order = a_student(method), torch.tensor([3, 0, 4, 1, 2])
    mixed = replace(batch, x=batch.x[order], y=batch.y[order], index=batch.index[order])
    assert_same_but_order(method(student, references, batch), method(student, references, mixed), order)
    if "cached" not in METHODS[CASES[case][0]].departures:
        cached = {name: CachedReference(name, r(batch).logits) for name, r in references.items()}
        assert_same_but_order(method(student, references, batch), method(student, cached, mixed), order)


@pytest.mark.parametrize("name", held("agreement"))
def test_a_student_that_agrees_pays_nothing(name: str) -> None:
    method, batch = build_method(name), a_batch()
    apart = method(a_student(method), the_references(small), batch)
    terms = MATCHING.get(name, tuple(term for term in apart.terms if term != "cross_entropy"))
    assert terms
    assert all(apart.terms[term] > 1e-3 for term in terms)
    alike = method(a_student(method, lambda _: small()), the_references(lambda _: small()), batch)
    assert all(abs(float(alike.terms[term].detach())) < 1e-10 for term in terms)


@pytest.mark.parametrize("name", [n for n, card in OBJECTIVES.items() if "weight_zero" not in card.departures])
def test_weight_zero_is_no_treatment(name: str) -> None:
    method, batch = build_method(name, **zero(name)), a_batch()
    student = a_student(method)
    treated = method(student, the_references(), batch).loss
    plain = PLAIN.get(name, labels_alone)(student, batch)
    assert torch.equal(treated, plain)
    for mine, other in zip(gradients(student, treated), gradients(student, plain), strict=True):
        assert torch.equal(mine, other)


def test_no_treatment_is_the_labels_alone() -> None:
    student, batch = a_student(NoTreatment()), a_batch()
    assert torch.equal(NoTreatment()(student, {}, batch).loss, labels_alone(student, batch))


@pytest.mark.parametrize(
    "name", [n for n, card in OBJECTIVES.items() if "weight_zero" not in card.departures and zero(n)]
)
def test_another_weight_is_not(name: str) -> None:
    method, references, batch = build_method(name), the_references(), a_batch()
    # An old model that is right on some, so that no method's weight, and no target of its own, is the labels' alone.
    right = small(101)
    with torch.no_grad():
        y = right(batch.x).argmax(-1)
        batch = replace(batch, y=torch.where(torch.arange(B) < 2, (y + 1) % C, y))
    references["old"] = NetworkReference("old", [right])
    student = a_student(method)
    assert method(student, references, batch).loss != PLAIN.get(name, labels_alone)(student, batch)


@cases("descent")
def test_one_step_lowers_its_own_loss(case: str) -> None:
    method, references, batch = made(case), the_references(), a_batch()
    student = a_student(method)
    optimiser = torch.optim.SGD(trained(student), lr=1e-3)
    before = method(student, references, batch)
    before.loss.backward()
    optimiser.step()
    assert method(student, references, batch).loss < before.loss


def far(member: int) -> nn.Module:
    """Inputs of ±1 become features and logits of ±1e4, the signs differing by member."""
    torch.manual_seed(member)
    body, head = nn.Linear(C, C, bias=False), nn.Linear(C, C, bias=False)
    with torch.no_grad():
        body.weight.copy_(torch.diag(torch.randint(0, 2, (C,)) * 2e4 - 1e4))
        head.weight.copy_(torch.eye(C))
    return Classifier(body, head)


@cases("bf16")
def test_bf16_stays_finite_far_out(case: str) -> None:
    method = made(case)
    student, references = a_student(method, far).to(torch.float32), the_references(far)
    for reference in references.values():
        reference.to(torch.float32)
    batch = replace(a_batch(), x=(torch.randint(0, 2, (B, C)) * 2 - 1).float())
    with torch.autocast("cpu", torch.bfloat16):
        step = method(student, references, batch)
    assert step.logits.dtype == torch.bfloat16
    assert bool((step.logits.abs() > 9_000).all())
    assert bool(torch.isfinite(step.loss))
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(student, step.loss))


KNOWN = (4, 1, 6)


def reference_sets(name: str) -> list[dict[str, Reference]]:
    """References that know every class and, where the method allows it, some that know a few."""
    all_classes = [the_references()]
    if "classes" in METHODS[name].departures:
        return all_classes
    return [*all_classes, the_references(lambda _: noisy(len(KNOWN)), classes=KNOWN)]


@cases("shapes")
def test_shapes_do_not_depend_on_data(case: str) -> None:
    """Fake tensors have shapes but no values: what asks for a value, or makes a shape of one, fails."""
    method = made(case)
    student = a_student(method)
    for references in reference_sets(CASES[case][0]):
        with FakeTensorMode(allow_non_fake_inputs=True):
            batch = a_batch()
            with pytest.raises(DynamicOutputShapeException):
                _ = batch.y[batch.y > 0]
            step = method(student, references, batch)
            assert step.logits.shape == (student.members, B, C)
            assert [part.shape for part in gradients(student, step.loss)] == [p.shape for p in trained(student)]


class NoValueOnTheHost(TorchDispatchMode):
    """Refuses what a captured step cannot do: read a value, or make a tensor whose shape is one."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.FORBIDDEN:
            raise AssertionError(f"{func} needs a value on the host")
        return func(*args, **(kwargs or {}))


@cases("shapes")
def test_no_value_is_read_in_a_step(case: str) -> None:
    batch = a_batch()
    with NoValueOnTheHost(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        batch.progress.item()
    for references in reference_sets(CASES[case][0]):
        method = made(case)
        student = a_student(method)
        with NoValueOnTheHost():
            method(student, references, batch).loss.backward()


@every_case
def test_nothing_reaches_the_references(case: str) -> None:
    method, references, batch = made(case), the_references(), a_batch(17)
    student = a_student(method)
    frozen = nn.ModuleList(references.values())
    before = {name: value.clone() for name, value in frozen.state_dict().items()}
    frozen.train()
    method(student, references, batch).loss.backward()
    assert all(parameter.grad is None for parameter in frozen.parameters())
    assert all(torch.equal(value, before[name]) for name, value in frozen.state_dict().items())
    assert all(parameter.grad is not None for parameter in trained(student))


class Pair(nn.Module):
    members = 2

    def forward(self, x: Tensor, *, features: bool = False) -> Output:
        return Output(torch.zeros(2, B, C), torch.zeros(2, B, D))


@pytest.mark.parametrize("case", [case for case in CASES if not hasattr(made(case), "student")])
def test_a_student_of_two_is_refused_rather_than_half_trained(case: str) -> None:
    with pytest.raises(InputError, match="one member; this one has 2"):
        made(case)(Pair(), the_references(), a_batch())


@pytest.mark.parametrize("name", [name for name, card in OBJECTIVES.items() if card.references])
def test_a_missing_reference_is_named(name: str) -> None:
    method = build_method(name)
    with pytest.raises(InputError, match=f"needs the reference '{method.needs[0]}'"):
        method(a_student(method), {}, a_batch())


@pytest.mark.parametrize(
    "name", [n for n, card in OBJECTIVES.items() if card.references and "classes" not in card.departures]
)
@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (None, "has 3 classes and the student 7: pass classes="),
        ((0, 1), "has 3 classes, of which classes= names 2"),
        ((0, 1, C), f"the highest {C}; the student has {C}"),
    ],
)
def test_references_with_other_classes(name: str, classes: tuple[int, ...] | None, message: str) -> None:
    method = build_method(name)
    references = the_references(lambda _: noisy(3), classes=classes)
    with pytest.raises(InputError, match=message):
        method(a_student(method), references, a_batch())
