"""Co-distillation and its regularisers against their formulas, written out as loops over rows, members and classes."""

import math
from itertools import combinations, permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import JointStudent, SingleStudent, StaleStudent
from flipguard.methods import METHODS, build_method
from flipguard.types import Batch, InputError, Step

M, B, C = 3, 5, 7
Row = list[float]


class Said(nn.Module):
    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits.clone())

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


def batch(progress: float) -> Batch:
    rows = torch.arange(B)
    y = torch.tensor([4, 0, 1, 6, 5])
    return Batch(rows, y, rows, torch.tensor(progress, dtype=torch.float64), torch.tensor(3))


def tables(members: int, seed: int = 11) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(B, C, dtype=torch.float64, generator=generator) for _ in range(members)]


def softmax(row: Row) -> Row:
    powers = [math.exp(value) for value in row]
    return [power / sum(powers) for power in powers]


def ce(row: Row, y: int) -> float:
    return -math.log(softmax(row)[y])


def kl(p: Row, q: Row) -> float:
    return sum(a * math.log(a / b) for a, b in zip(softmax(p), softmax(q), strict=True))


def skl(p: Row, q: Row) -> float:
    return kl(p, q) + kl(q, p)


def l1(p: Row, q: Row) -> float:
    return sum(abs(a - b) for a, b in zip(softmax(p), softmax(q), strict=True))


def entropy(row: Row) -> float:
    return -sum(p * math.log(p) for p in softmax(row))


UNIFORM = [0.0] * C


def loss_of(step: Step) -> float:
    return float(step.loss.detach())


# At progress p the ramp of 0.2 stands at min(1, p / 0.2).
RAMP = [(0.0, 0.0), (0.05, 0.25), (0.2, 1.0), (1.0, 1.0)]


@pytest.mark.parametrize(("progress", "share"), RAMP)
def test_regularisers(progress: float, share: float) -> None:
    (said,) = tables(1)
    student, now = SingleStudent(Said(said)), batch(progress)
    pairs = list(zip(said.tolist(), now.y.tolist(), strict=True))
    for name, value in (("entropy", entropy), ("skl", lambda row: -skl(row, UNIFORM))):
        alpha = 0.3 * share
        expected = sum((1 - alpha) * ce(row, y) + alpha * value(row) for row, y in pairs) / B
        assert loss_of(build_method(name, alpha=0.3)(student, {}, now)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("progress", "share"), RAMP)
@pytest.mark.parametrize("members", [2, M])
@pytest.mark.parametrize("regulariser", ["none", "entropy", "skl"])
@pytest.mark.parametrize(("name", "distance"), [("codistill_skl", skl), ("codistill_l1", l1)])
def test_joint(name: str, distance: Any, regulariser: str, members: int, progress: float, share: float) -> None:
    said, now = tables(members), batch(progress)
    method = build_method(name, beta=0.5, alpha=0.3, members=members, regulariser=regulariser)
    expected = 0.0
    for b, y in enumerate(now.y.tolist()):
        rows = [table[b].tolist() for table in said]
        expected += sum(ce(row, y) for row in rows)
        expected += share * 0.5 * sum(distance(p, q) for p, q in combinations(rows, 2)) / (members - 1)
        if regulariser != "none":
            sure = entropy if regulariser == "entropy" else (lambda row: -skl(row, UNIFORM))
            expected += share * 0.3 * sum(sure(row) for row in rows)
    step = method(JointStudent([Said(table) for table in said]), {}, now)
    assert loss_of(step) == pytest.approx(expected / B, rel=1e-12)


@pytest.mark.parametrize(("progress", "share"), [(0.0, 0.0), (0.19, 0.0), (0.21, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("members", [2, M])
def test_stale(members: int, progress: float, share: float) -> None:
    said, before, now = tables(members), tables(members, seed=5), batch(progress)
    student = StaleStudent([Said(table) for table in before], every=10)
    for network, table in zip(student.networks, said, strict=True):
        network.load_state_dict({"table": table})
    method = build_method("codistill_ce", beta=0.5, members=members)
    expected = 0.0
    for b, y in enumerate(now.y.tolist()):
        expected += sum(ce(table[b].tolist(), y) for table in said)
        pulls = [kl(before[j][b].tolist(), said[i][b].tolist()) for i, j in permutations(range(members), 2)]
        expected += share * 0.5 * sum(pulls) / (members - 1)
    assert loss_of(method(student, {}, now)) == pytest.approx(expected / B, rel=1e-12)


def test_stale_updates_are_independent() -> None:
    """Eq. 17: a network's gradient knows the peer by its old copy alone. Eq. 18: it is that of the cross-entropy."""
    said, before, now = tables(2), tables(2, seed=5), batch(1.0)
    student = StaleStudent([Said(table) for table in before], every=10)
    method = build_method("codistill_ce", beta=0.5)
    found = []
    for other in (said[1], said[1] + torch.randn_like(said[1])):
        for network, table in zip(student.networks, (said[0], other), strict=True):
            network.load_state_dict({"table": table})
        found.append(torch.autograd.grad(method(student, {}, now).loss, student.networks[0].table)[0])
    assert torch.equal(*found)
    alone = said[0].clone().requires_grad_()
    labels = nn.functional.cross_entropy(alone, now.y)
    (expected,) = torch.autograd.grad(labels + 0.5 * nn.functional.cross_entropy(alone, before[1].softmax(-1)), alone)
    torch.testing.assert_close(found[0], expected)


def test_labels_are_logged_as_the_members_mean() -> None:
    said, now = tables(2), batch(1.0)
    step = build_method("codistill_skl")(JointStudent([Said(table) for table in said]), {}, now)
    each = [nn.functional.cross_entropy(table, now.y) for table in said]
    torch.testing.assert_close(step.terms["cross_entropy"], (each[0] + each[1]) / 2)


def test_networks_of_one_start_stay_equal() -> None:
    """Why the members differ by initialisation: on one batch, equal networks have equal gradients for good."""
    torch.manual_seed(3)
    method = build_method("codistill_skl", beta=1.0, ramp=0.0)
    start = tables(1)[0]
    student = method.student(lambda _: Said(start), decay_all=True)
    optimiser = torch.optim.SGD(student.parameters(), lr=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        method(student, {}, batch(1.0)).loss.backward()
        optimiser.step()
    assert torch.equal(student.networks[0].table, student.networks[1].table)
    assert not torch.equal(student.networks[0].table, start)


def test_settings_of_the_paper_build() -> None:
    """Table 5. The plain defaults are those for CIFAR-100, but for co-distillation's β, which is ours."""
    for name in ("entropy", "skl", "codistill_skl", "codistill_ce"):
        card = METHODS[name]
        for options in card.settings.values():
            built = card.build(**options)
            assert {option: getattr(built, option) for option in options} == dict(options)
        ours = {} if name in ("entropy", "skl") else {"beta": 1.0}
        assert card.build(**{**card.settings["cifar100"], **ours}) == card.build()
    assert METHODS["codistill_skl"].settings["imagenet+entropy"] == {
        "beta": 0.06,
        "regulariser": "entropy",
        "alpha": 0.2,
        "k": 10,
    }


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("entropy", {"alpha": 1.5}, "alpha must lie between 0 and 1"),
        ("entropy", {"regulariser": "skl"}, "'entropy' has no option 'regulariser'"),
        ("skl", {"k": 0}, "k must be at least 1, or None"),
        ("skl", {"ramp": 2.0}, "ramp must lie between 0 and 1"),
        ("codistill_skl", {"members": 1}, "at least 2 members, got 1"),
        ("codistill_skl", {"beta": -1.0}, "beta must not be negative"),
        ("codistill_l1", {"regulariser": "l2"}, "regulariser must be one of none, entropy, skl"),
        ("codistill_ce", {"every": 0}, "every must be at least 1 update"),
        ("codistill_ce", {"burn_in": -0.1}, "burn_in must lie"),
    ],
)
def test_bad_parameters(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_method(name, **options)


@pytest.mark.parametrize("name", ["codistill_skl", "codistill_l1", "codistill_ce"])
def test_another_number_of_members_is_refused(name: str) -> None:
    student = StaleStudent([Said(table) for table in tables(M)], every=10)
    with pytest.raises(InputError, match="a student of 2 members; this one has 3"):
        build_method(name)(student, {}, batch(1.0))
