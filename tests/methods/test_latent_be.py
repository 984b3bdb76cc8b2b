"""LatentBE, BatchEnsemble, AE-KD and Proxy-EnD² against their formulas, and on digits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from flipguard.data import DataSet, load_data
from flipguard.ensembles import BatchEnsemble, BatchStudent, NetworkReference, SingleStudent
from flipguard.ensembles.rank_one import RankOne, factor_parameters
from flipguard.losses import adaptive_weights, distillation_gradients, proxy_dirichlet
from flipguard.methods import build_method
from flipguard.methods.latent_be import PAPER_SETTINGS
from flipguard.models import build_model
from flipguard.training import ModelSpec, Recipe, Seeds, predict_logits, train_network
from flipguard.types import Batch, InputError, Normalisation

M, B, C, D = 3, 5, 7, 11
ONE_TO_ONE = ("latent_be", "batch_ensemble")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(7)


def a_batch() -> Batch:
    step = torch.tensor(4)
    return Batch(torch.randn(B, D), torch.randint(C, (B,)), torch.arange(B), step / 9, step)


def network(member: int = 0) -> nn.Module:
    torch.manual_seed(member)
    return build_model("mlp", classes=C, input_size=D, hidden=(13,))


def teachers(members: int = M) -> dict[str, Any]:
    return {"ensemble": NetworkReference("ensemble", [network(10 + j) for j in range(members)])}


def divergence(teacher: Tensor, student: Tensor, temperature: float) -> float:
    p, q = (logits.double().div(temperature).softmax(-1).tolist() for logits in (teacher, student))
    total = 0.0
    for row in range(B):
        total += sum(a * torch.tensor(a / b).log().item() for a, b in zip(p[row], q[row], strict=True)) / B
    return temperature**2 * total


@pytest.mark.parametrize("name", ONE_TO_ONE)
def test_each_member_learns_from_its_own_teacher(name: str) -> None:
    method, batch, references = build_method(name, alpha=0.7, temperature=2.0), a_batch(), teachers()
    student = method.student(network, decay_all=True)
    with torch.no_grad():
        for factor in factor_parameters(student):
            factor.normal_(0, 0.3)
    step = method(student, references, batch)
    said, theirs = student(batch.x).logits.detach(), references["ensemble"](batch).logits
    pairs = sum(divergence(theirs[m], said[m], 2.0) for m in range(M))
    labels = sum(float(nn.functional.cross_entropy(said[m], batch.y)) for m in range(M))
    assert float(step.terms["distillation"].detach()) == pytest.approx(pairs, rel=1e-4)
    assert float(step.terms["cross_entropy"].detach()) == pytest.approx(labels, rel=1e-5)
    assert float(step.loss.detach()) == pytest.approx(0.3 * labels + 0.7 * pairs, rel=1e-4)
    crossed = sum(divergence(theirs[(m + 1) % M], said[m], 2.0) for m in range(M))
    assert abs(crossed - pairs) > 1e-3


def test_factors_of_one_at_the_start_and_apart_after_a_step() -> None:
    method, batch, references = build_method("latent_be"), a_batch(), teachers()
    student = method.student(network, decay_all=True)
    assert isinstance(student, BatchStudent)
    assert torch.equal(student.eval()(batch.x).logits[1], network()(batch.x))
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
    student.train()
    method(student, references, batch).loss.backward()
    optimiser.step()
    said = student.eval()(batch.x).logits
    assert not torch.allclose(said[0], said[1], atol=1e-4)
    released = student.release()
    assert not any(isinstance(layer, RankOne) for layer in released.modules())
    assert torch.allclose(released(batch.x), said.mean(0), atol=0.05)


def test_what_is_released() -> None:
    whole = build_method("batch_ensemble", members=2).student(network, decay_all=True)
    assert isinstance(whole.release(), BatchEnsemble)
    assert any(float(factor.detach().abs().max()) > 0.1 for factor in factor_parameters(whole))
    first, second = (
        build_method("latent_be", how=how).student(network, decay_all=True)
        for how in ("mean_of_products", "product_of_means")
    )
    with torch.no_grad():
        for one, other in zip(factor_parameters(first), factor_parameters(second), strict=True):
            other.copy_(one.normal_(0, 0.5))
    x = torch.randn(B, D)
    assert not torch.allclose(first.release()(x), second.release()(x), atol=1e-4)


def test_as_many_members_as_teachers() -> None:
    method = build_method("latent_be", members=2)
    with pytest.raises(InputError, match="the student has 2 and the reference 'ensemble' 3: set members=3"):
        method(method.student(network, decay_all=True), teachers(), a_batch())
    with pytest.raises(InputError, match=r"a student of its own with 2 members.*has 1: make it with the method's"):
        method(SingleStudent(network()), teachers(2), a_batch())
    with pytest.raises(InputError, match="members must be at least 1"):
        build_method("latent_be", members=0)
    with pytest.raises(InputError, match="how must be one of mean_of_products"):
        build_method("latent_be", how="votes")
    with pytest.raises(InputError, match="factor_decay must not be negative"):
        build_method("batch_ensemble", factor_decay=-1.0)


@pytest.mark.parametrize("kind", ["gaussian", "ods", "conf_ods", "tdiv", "tdiv_sdiv"])
@pytest.mark.parametrize("name", ONE_TO_ONE)
def test_every_perturbation_with_a_student_of_several_members(name: str, kind: str) -> None:
    method, batch, references = build_method(name, perturbation=kind), a_batch(), teachers()
    student = method.student(network, decay_all=True)
    plain = build_method(name)(student, references, batch)
    step = method(student, references, batch)
    assert student.training
    assert not torch.equal(step.terms["distillation"], plain.terms["distillation"])
    step.loss.backward()
    gradients = [parameter.grad for parameter in student.parameters()]
    assert all(gradient is not None and bool(torch.isfinite(gradient).all()) for gradient in gradients)


class OnTheDevice(TorchDispatchMode):
    """Refuses what a captured step cannot do: bring values from the host, or read one there."""

    FORBIDDEN = ("lift_fresh", "_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.FORBIDDEN:
            raise AssertionError(f"{func} needs the host")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("classes", [None, (4, 1, 6)])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ae_kd", "gaussian"),
        ("proxy_end2", "ods"),
        ("kd", "ods"),
        ("elodi", "tdiv"),
        ("batch_ensemble", "conf_ods"),
        ("latent_be", "tdiv_sdiv"),
    ],
)
def test_a_step_stays_on_the_device(name: str, kind: str, classes: tuple[int, ...] | None) -> None:
    with OnTheDevice(), pytest.raises(AssertionError, match="lift_fresh"):
        torch.tensor([1.0])

    def teacher(member: int) -> nn.Module:
        return build_model("cnn", classes=C if classes is None else len(classes), width=4)

    method = build_method(name, perturbation=kind)
    held = NetworkReference("ensemble", [teacher(j) for j in range(M)], classes=classes)
    made = getattr(method, "student", None)
    plain = build_model("cnn", classes=C, width=4)
    student = SingleStudent(plain) if made is None else made(lambda _: plain, decay_all=True)
    images = replace(a_batch(), x=torch.randn(B, 1, 8, 8), normalisation=Normalisation((0.5,), (0.25,)))
    with OnTheDevice():
        method(student, {"ensemble": held, "old": held}, images).loss.backward()


def test_student_diversity_counts() -> None:
    """Equal members have none, so that tdiv_sdiv is tdiv at LatentBE's first step, and another later."""
    batch, references = a_batch(), teachers()
    two = [build_method("latent_be", perturbation=kind) for kind in ("tdiv", "tdiv_sdiv")]
    student = two[0].student(network, decay_all=True)
    shown = [method.shown(student, references, batch).x for method in two]
    assert torch.allclose(shown[0], shown[1], atol=1e-7)
    with torch.no_grad():
        for factor in factor_parameters(student):
            factor.normal_(0, 0.5)
    shown = [method.shown(student, references, batch).x for method in two]
    assert not torch.allclose(shown[0], shown[1], atol=1e-3)


def test_far_logits_in_half_precision() -> None:
    method = build_method("batch_ensemble", std=0.5)

    def far(member: int) -> nn.Module:
        made = nn.Linear(D, C, bias=False)
        nn.init.constant_(made.weight, 1e4)
        return made

    student = method.student(far, decay_all=True)
    references = {"ensemble": NetworkReference("ensemble", [far(0) for _ in range(M)])}
    with torch.autocast("cpu", torch.bfloat16):
        step = method(student, references, a_batch())
    assert float(step.logits.detach().abs().max()) > 1e4
    step.loss.backward()
    assert bool(torch.isfinite(step.loss))
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in student.parameters())


def test_ae_kd() -> None:
    batch, references, student = a_batch(), teachers(), SingleStudent(network())
    step = build_method("ae_kd", alpha=0.7, temperature=2.0, cap=0.5)(student, references, batch)
    said, theirs = student(batch.x).logits[0].detach(), references["ensemble"](batch).logits
    weights = adaptive_weights(distillation_gradients(said, theirs, temperature=2.0), cap=0.5).tolist()
    assert max(weights) - min(weights) > 0.01
    expected = sum(weights[m] * divergence(theirs[m], said, 2.0) for m in range(M))
    assert float(step.terms["distillation"].detach()) == pytest.approx(expected, rel=1e-4)
    label = float(nn.functional.cross_entropy(said, batch.y))
    assert float(step.loss.detach()) == pytest.approx(0.3 * label + 0.7 * expected, rel=1e-4)
    with pytest.raises(InputError, match="cap must be above 0"):
        build_method("ae_kd", cap=0.0)


def test_ae_kd_without_room_is_the_plain_mean() -> None:
    batch, references, student = a_batch(), teachers(), SingleStudent(network())
    step = build_method("ae_kd", temperature=2.0, cap=0.01)(student, references, batch)
    said, theirs = student(batch.x).logits[0].detach(), references["ensemble"](batch).logits
    expected = sum(divergence(theirs[m], said, 2.0) for m in range(M)) / M
    assert float(step.loss.detach()) == pytest.approx(expected, rel=1e-4)


def test_proxy_end2() -> None:
    batch, references, student = a_batch(), teachers(), SingleStudent(network())
    step = build_method("proxy_end2", alpha=0.6)(student, references, batch)
    said, theirs = student(batch.x).logits[0].detach(), references["ensemble"](batch).logits
    expected = proxy_dirichlet(said, theirs).mean()
    label = nn.functional.cross_entropy(said, batch.y)
    assert torch.allclose(step.terms["proxy_dirichlet"], expected)
    assert torch.allclose(step.loss, 0.4 * label + 0.6 * expected)


def test_settings_of_the_paper_build() -> None:
    for settings in PAPER_SETTINGS.values():
        for name in (*ONE_TO_ONE, "ensemble_kd", "ae_kd"):
            assert build_method(name, **settings).alpha == settings["alpha"]


@pytest.fixture(scope="module")
def digits() -> tuple[DataSet, dict[str, Any], float]:
    """The data, three trained teachers, and the error of a network without treatment."""
    torch.set_num_threads(1)
    data = load_data("digits")
    made = [train(data, build_method("none"), {}, seed) for seed in range(M + 1)]
    return data, {"ensemble": NetworkReference("ensemble", made[:M])}, error(made[M], data)


RECIPE = Recipe(epochs=6, batch_size=64, learning_rate=0.05)


def train(data: DataSet, method: Any, references: dict[str, Any], seed: int = 7, **options: Any) -> nn.Module:
    spec = ModelSpec("mlp", {"hidden": (32,)})
    return train_network(spec, data, method, RECIPE, seeds=Seeds.of(seed), references=references, **options)


def error(network: nn.Module, data: DataSet) -> float:
    return float((predict_logits(network, data).argmax(-1) != data.test.y.numpy()).mean())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("latent_be", {}),
        ("latent_be", {"perturbation": "tdiv_sdiv"}),
        ("latent_be", {"alpha": 0.9, "perturbation": "conf_ods"}),
        ("batch_ensemble", {"perturbation": "tdiv_sdiv"}),
        ("ae_kd", {"perturbation": "tdiv"}),
        ("proxy_end2", {}),
    ],
)
def test_it_learns(digits: Any, name: str, options: dict[str, Any]) -> None:
    data, references, plain = digits
    assert plain < 0.06
    released = train(data, build_method(name, **options), references)
    assert error(released, data) < plain + 0.03
    assert isinstance(released, BatchEnsemble) == (name == "batch_ensemble")


def test_a_run_that_was_killed_goes_on_to_the_same_bits(digits: Any, tmp_path: Path) -> None:
    data, references, _ = digits
    method = build_method("latent_be", perturbation="tdiv_sdiv")
    path = tmp_path / "state.safetensors"

    class Killed(Exception):
        pass

    def kill(record: Any, _: nn.Module) -> None:
        if record.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        train(data, method, references, checkpoint=path, checkpoint_every=5, on_epoch=kill)
    resumed, whole = train(data, method, references, checkpoint=path), train(data, method, references)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value)
