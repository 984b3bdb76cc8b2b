"""Perturbations: their size, where they lead on trained networks, and what they leave alone."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.data import Batches, load_data, random_uniform
from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.ensembles.perturbations import Perturbation, as_perturbation, evaluating
from flipguard.methods import build_method
from flipguard.models import build_model
from flipguard.types import Batch, InputError, Normalisation, Output, Step

M, B, C, D = 3, 5, 7, 11
KINDS = ("gaussian", "ods", "conf_ods", "tdiv", "tdiv_sdiv")
every_kind = pytest.mark.parametrize("kind", KINDS)
NORMAL = Normalisation((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)


class Several(nn.Module):
    """A student whose members are networks of their own."""

    def __init__(self, networks: list[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.members = len(networks)

    def forward(self, x: Tensor, *, features: bool = False) -> Output:
        return Output(torch.stack([network(x) for network in self.networks]))


def images(rows: int = B) -> Batch:
    """Pixels of black, white and between, normalised."""
    pixels = (torch.rand(rows, 3, 4, 4) * 1.5 - 0.25).clamp(0, 1)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (NORMAL.mean, NORMAL.std))
    step = torch.tensor(4)
    return Batch((pixels - mean) / std, torch.zeros(rows).long(), torch.arange(rows), step / 9, step, 3, NORMAL)


def numbers(rows: int = B) -> Batch:
    step = torch.tensor(4)
    return Batch(torch.randn(rows, D), torch.zeros(rows).long(), torch.arange(rows), step / 9, step, 3)


def network(inputs: int = D) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 13), nn.BatchNorm1d(13), nn.ReLU(), nn.Linear(13, C))


def teachers(inputs: int = D) -> NetworkReference:
    return NetworkReference("ensemble", [network(inputs) for _ in range(M)])


def pixels_of(batch: Batch) -> Tensor:
    assert isinstance(batch.x, Tensor)
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (NORMAL.mean, NORMAL.std))
    return batch.x * std + mean


@every_kind
def test_size_and_clamp_in_pixels(kind: str) -> None:
    batch, reference = images(17), teachers(48)
    student = Several([network(48) for _ in range(M)])
    moved = Perturbation(kind)(student, reference, batch)  # type: ignore[arg-type]
    before, after = pixels_of(batch), pixels_of(moved)
    assert float(after.min()) > -1e-6
    assert float(after.max()) < 1 + 1e-6
    length = (after - before).flatten(1).norm(dim=1)
    assert bool((length > 0).all())
    if kind != "gaussian":
        assert bool((length < math.sqrt(48) / 255 + 1e-6).all())
    assert moved.y is batch.y
    assert not moved.x.requires_grad  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["ods", "tdiv", "tdiv_sdiv"])
def test_length_without_normalisation(kind: str) -> None:
    """Every sample by √D·γ, in the inputs' own units."""
    batch, student = numbers(), Several([network() for _ in range(M)])
    moved = Perturbation(kind, size=0.1)(student, teachers(), batch)  # type: ignore[arg-type]
    length = (moved.x - batch.x).norm(dim=1)  # type: ignore[operator]
    assert torch.allclose(length, torch.full((B,), 0.1 * math.sqrt(D)), rtol=1e-4)


def test_conf_ods_is_ods_times_confidence() -> None:
    """One teacher, so that it is known which one was asked."""
    batch, teacher = numbers(), NetworkReference("old", [network()])
    plain, scaled = (
        Perturbation(kind, size=0.1, temperature=2.0)(SingleStudent(network()), teacher, batch)
        for kind in ("ods", "conf_ods")
    )
    confidence = (teacher(batch).logits[0] / 2.0).softmax(-1).amax(-1, keepdim=True)
    assert torch.allclose(scaled.x - batch.x, (plain.x - batch.x) * confidence, atol=1e-6)  # type: ignore[operator]


def test_ods_follows_a_guide_of_both_signs() -> None:
    """Its direction is the gradient of wᵀσ(T(x)/τ) with w in [-1, 1], drawn by seed, step and place."""
    batch, teacher = numbers(), NetworkReference("old", [network()])
    x = batch.x.clone().requires_grad_()  # type: ignore[union-attr]
    said = (teacher.networks[0](x) / 2.0).softmax(-1)
    guide = 2 * random_uniform(batch.seed, batch.step, batch.index, draws=said.shape[-1]) - 1
    assert (guide < 0).any()
    (gradient,) = torch.autograd.grad((guide * said).sum(), x)
    expected = gradient / gradient.norm(dim=1, keepdim=True) * 0.1 * math.sqrt(D)
    moved = Perturbation("ods", size=0.1, temperature=2.0)(SingleStudent(network()), teacher, batch)
    torch.testing.assert_close(moved.x - batch.x, expected, rtol=1e-4, atol=1e-6)  # type: ignore[operator]


def test_gaussian_has_the_size_of_a_grey_level() -> None:
    step = torch.tensor(4)
    batch = Batch(torch.zeros(211, 101), torch.zeros(211).long(), torch.arange(211), step / 9, step)
    noise = Perturbation("gaussian")(SingleStudent(network()), teachers(), batch).x
    assert isinstance(noise, Tensor)
    assert float(noise.std()) == pytest.approx(1 / 255, rel=0.02)
    assert abs(float(noise.mean())) < 1e-4


def test_tdiv_is_the_gradient_of_its_pair() -> None:
    """Against every pair i ≠ j written out; one of the six must be it."""
    batch, reference = numbers(), teachers()
    moved = Perturbation("tdiv", size=1.0)(SingleStudent(network()), reference, batch)
    assert isinstance(batch.x, Tensor)
    found = []
    for i in range(M):
        for j in range(M):
            x = batch.x.clone().requires_grad_()
            logs = [net(x).log_softmax(-1) for net in reference.networks]
            fixed = logs[i].detach()
            (gradient,) = torch.autograd.grad((fixed.exp() * (fixed - logs[j])).sum(), x)
            direction = math.sqrt(D) * gradient / gradient.norm(dim=1, keepdim=True).clamp(min=1e-30)
            if i != j and torch.allclose(moved.x - batch.x, direction, atol=1e-4):  # type: ignore[operator]
                found.append((i, j))
    assert len(found) == 1


def test_the_choice_of_teachers_goes_through_all_pairs() -> None:
    batch, reference, student = numbers(), teachers(), SingleStudent(network())
    asked: set[bytes] = set()
    for step in range(40):
        moved = Perturbation("tdiv", size=1.0)(student, reference, replace(batch, step=torch.tensor(step))).x
        assert isinstance(moved, Tensor)
        asked.add(moved.numpy().tobytes())
    assert len(asked) == M * (M - 1)


def test_ods_asks_every_teacher() -> None:
    """Teachers of which each depends on one number alone: the gradient says who was asked."""
    networks = []
    for number in range(M):
        made = nn.Linear(D, C)
        with torch.no_grad():
            made.weight.copy_(torch.zeros(C, D)).index_fill_(1, torch.tensor(number), 1.0).mul_(
                torch.arange(C)[:, None]
            )
        networks.append(made)
    batch, reference, student = numbers(), NetworkReference("ensemble", networks), SingleStudent(network())
    asked = set()
    for step in range(30):
        moved = Perturbation("ods")(student, reference, replace(batch, step=torch.tensor(step))).x
        columns = (moved - batch.x).abs().sum(0).nonzero()  # type: ignore[operator]
        assert len(columns) == 1
        asked.add(int(columns))
    assert asked == set(range(M))


@every_kind
def test_a_draw_depends_on_seed_step_and_place_alone(kind: str) -> None:
    batch, reference = numbers(), teachers()
    student = Several([network() for _ in range(M)])
    made = Perturbation(kind, size=0.1)  # type: ignore[arg-type]
    torch.manual_seed(1)
    first = made(student, reference, batch).x
    torch.manual_seed(2)
    order = torch.tensor([3, 0, 4, 1, 2])
    mixed = replace(batch, x=batch.x[order], index=batch.index[order])  # type: ignore[index]
    assert torch.allclose(made(student, reference, mixed).x, first[order], atol=1e-6)  # type: ignore[index,arg-type]
    if kind in ("gaussian", "ods", "conf_ods"):
        for other in (replace(batch, step=batch.step + 1), replace(batch, seed=batch.seed + 1)):
            assert not torch.allclose(made(student, reference, other).x, first, atol=1e-3)  # type: ignore[arg-type]


@every_kind
def test_the_student_is_left_as_it_was(kind: str) -> None:
    student = Several([network() for _ in range(M)])
    student.train()
    student.networks[1].eval()
    modes = [module.training for module in student.modules()]
    before = {name: value.clone() for name, value in student.state_dict().items()}
    Perturbation(kind)(student, teachers(), numbers())  # type: ignore[arg-type]
    assert [module.training for module in student.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in student.state_dict().items())
    assert all(parameter.grad is None for parameter in student.parameters())


def test_modes_come_back_after_an_error() -> None:
    student = SingleStudent(network())

    def fail() -> None:
        with evaluating(student):
            assert not student.network.training
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert student.network.training


@pytest.mark.parametrize("kind", ["ods", "conf_ods", "tdiv", "tdiv_sdiv"])
def test_saturated_teachers_move_nothing(kind: str) -> None:
    """All sure of one class: their gradients are exactly zero, and 0/0 must not be."""
    sure = network()
    with torch.no_grad():
        sure[4].bias[2] += 1e4  # type: ignore[index,union-attr,operator]
    batch = images()
    sure[1] = nn.Linear(48, 13)  # type: ignore[operator]
    reference, student = NetworkReference("ensemble", [sure, sure]), Several([network(48), network(48)])
    if kind == "tdiv_sdiv":
        student = Several([sure, sure])
    moved = Perturbation(kind)(student, reference, batch)  # type: ignore[arg-type]
    assert torch.equal(moved.x, batch.x)  # type: ignore[arg-type]


def test_tiny_gradients_keep_their_direction() -> None:
    from flipguard.ensembles.perturbations import _unit

    gradient = torch.tensor([[3e-30, 4e-30], [0.0, 0.0], [3e30, -4e30]])
    expected = math.sqrt(2) * torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.6, -0.8]])
    assert torch.allclose(_unit(gradient), expected)


def test_one_member_gets_tdiv() -> None:
    batch, reference = numbers(), teachers()
    student = SingleStudent(network())
    one, other = (Perturbation(kind)(student, reference, batch).x for kind in ("tdiv", "tdiv_sdiv"))
    assert torch.equal(one, other)  # type: ignore[arg-type]


def test_what_cannot_be_perturbed() -> None:
    batch, reference, student = numbers(), teachers(), SingleStudent(network())
    with pytest.raises(InputError, match="one tensor of floats, not a dict of tensors"):
        Perturbation()(student, reference, replace(batch, x={"ids": torch.zeros(B, 3).long()}))
    with pytest.raises(InputError, match=r"one tensor of floats, not torch\.int64"):
        Perturbation("gaussian")(student, reference, replace(batch, x=torch.zeros(B, 3).long()))
    with pytest.raises(InputError, match="holds logits of the inputs as they are"):
        Perturbation("gaussian")(student, CachedReference("old", torch.zeros(M, B, C)), batch)
    with pytest.raises(InputError, match="at least 2 members, 'old' has 1"):
        Perturbation("tdiv")(student, NetworkReference("old", [network()]), batch)
    with pytest.raises(InputError, match="the student has 2 members and the reference 'ensemble' 3"):
        Perturbation()(Several([network(), network()]), reference, batch)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("fgsm", "one of gaussian, ods, conf_ods, tdiv, tdiv_sdiv, got 'fgsm'"),
        ({"kind": "ods", "gamma": 1}, "no option 'gamma'. Options: kind, size, temperature"),
        ({"size": -1.0}, "size of at least 0"),
        ({"temperature": 0.0}, "temperature above 0"),
        (3, "a kind or a mapping of options, got int"),
    ],
)
def test_bad_options(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_method("ensemble_kd", perturbation=given)


def test_spellings() -> None:
    assert build_method("elodi", perturbation="tdiv").perturbation == Perturbation("tdiv")
    assert build_method("kd", perturbation={"kind": "ods", "size": 0.1}).perturbation == Perturbation("ods", size=0.1)
    assert as_perturbation(None) is None


METHODS = ("kd", "fd_kl", "fd_lm", "ldi", "ensemble_kd", "ensemble_fd", "elodi")


@pytest.mark.parametrize("method", METHODS)
@every_kind
def test_terms_see_the_perturbed_and_cross_entropy_the_clean(method: str, kind: str) -> None:
    """The step equals the plain method's terms on the perturbed batch, and cross-entropy on the batch itself."""
    batch = numbers()
    references = {"old": teachers(), "ensemble": teachers()}
    student = SingleStudent(network().eval())
    perturbation = Perturbation(kind, size=0.3)  # type: ignore[arg-type]
    step: Step = build_method(method, perturbation=perturbation)(student, references, batch)
    plain = build_method(method)
    shown = perturbation(student, references[plain.needs[0]], batch)
    on_shown, on_batch = plain(student, references, shown), plain(student, references, batch)
    for name, term in step.terms.items():
        there, other = (on_batch, on_shown) if name == "cross_entropy" else (on_shown, on_batch)
        assert torch.allclose(term, there.terms[name])
        assert not torch.allclose(term, other.terms[name], rtol=1e-6)
    assert torch.equal(step.logits, student(batch.x).logits)
    step.loss.backward()
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_no_weight_on_the_labels_saves_the_clean_pass() -> None:
    batch, student = numbers(), SingleStudent(network())
    seen = []
    student.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    references = {"ensemble": teachers()}
    build_method("ensemble_kd", alpha=1.0, perturbation="gaussian")(student, references, batch)
    build_method("ensemble_kd", alpha=0.5, perturbation="gaussian")(student, references, batch)
    assert len(seen) == 3
    assert not torch.equal(seen[0], batch.x)
    assert torch.equal(seen[2], batch.x)


def diversity(logits: Tensor) -> Tensor:
    """Eq. 6, as loops: (M, B, C) -> (B,)."""
    members, logs = len(logits), logits.log_softmax(-1)
    total = sum((logs[i].exp() * (logs[i] - logs[j])).sum(-1) for i in range(members) for j in range(members))
    assert isinstance(total, Tensor)
    return total / (members * (members - 1))


def trained(seed: int, x: Tensor, y: Tensor, epochs: int) -> nn.Module:
    torch.manual_seed(seed)
    made = build_model("cnn", classes=10, width=8)
    optimiser = torch.optim.SGD(made.parameters(), lr=0.05, momentum=0.9)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            optimiser.zero_grad()
            nn.functional.cross_entropy(made(x[rows]), y[rows]).backward()
            optimiser.step()
    return made.eval()


def test_diversity_of_teachers_rises_and_that_of_students_falls() -> None:
    """On digits, with networks that were really trained: the direction of the paper's Fig. 4."""
    data = load_data("digits")
    (batch,) = Batches(data.train, len(data.train), normalisation=data.normalisation)
    assert isinstance(batch.x, Tensor)
    reference = NetworkReference("ensemble", [trained(seed, batch.x, batch.y, 5) for seed in (0, 1)])
    student = Several([trained(seed, batch.x, batch.y, 2) for seed in (10, 11)])

    @torch.no_grad()
    def diversities(shown: Batch) -> tuple[float, float]:
        both = reference(shown).logits, student(shown.x).logits
        return float(diversity(both[0]).mean()), float(diversity(both[1]).mean())

    before, change = diversities(batch), {}
    for kind in KINDS:
        moved = Perturbation(kind, size=4 / 255)(student, reference, batch)  # type: ignore[arg-type]
        change[kind] = [after / start - 1 for after, start in zip(diversities(moved), before, strict=True)]
    assert change["tdiv"][0] > 0.15
    assert change["tdiv_sdiv"][0] > 0.15
    assert change["tdiv_sdiv"][1] < -0.02
    assert change["tdiv_sdiv"][1] < change["tdiv"][1] - 0.02
    assert abs(change["gaussian"][0]) < 0.05
