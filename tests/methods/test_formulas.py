"""Each method against its formula, written out as loops over rows and classes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flipguard.ensembles import CachedReference, SingleStudent
from flipguard.methods import Paragon, build_method
from flipguard.types import Batch

M, B, C = 3, 5, 7
KNOWN = (4, 1, 6)
Row = list[float]


class Said(nn.Module):
    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(logits)

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


def softmax(row: Row, temperature: float = 1.0) -> Row:
    powers = [math.exp(value / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def ce(row: Row, y: int, smoothing: float = 0.0) -> float:
    logs = [math.log(p) for p in softmax(row)]
    return -(1 - smoothing) * logs[y] - smoothing * sum(logs) / len(row)


def kl(p: Row, q: Row, temperature: float) -> float:
    pairs = zip(softmax(p, temperature), softmax(q, temperature), strict=True)
    return sum(a * math.log(a / b) for a, b in pairs)


def right(reference: Row, column: int) -> bool:
    return max(range(len(reference)), key=lambda k: reference[k]) == column


def squares(new: Row, old: Row) -> float:
    return sum((a - b) ** 2 for a, b in zip(new, old, strict=True)) / 2


def ldi(new: Row, ref: Row, column: int, *, p: float, k: int, margin: float, with_label: bool, mean: bool) -> float:
    classes = [c for c in range(len(new)) if with_label or c != column]
    kept = set()
    for side in (new, ref):
        kept |= set(sorted(classes, key=lambda c: -side[c])[:k])
    total = sum(max(0.0, abs(new[c] - ref[c]) - margin) ** p for c in kept)
    return total / len(kept) if mean else total


Formula = Callable[[Row, Row, Row, Row, int, int], float]
"""All the student's logits, those that the reference knows, the old model's, the ensemble's, y, y's column or -1."""

FORMULAS: dict[str, tuple[str, dict[str, Any], Formula]] = {
    "none": ("none", {"label_smoothing": 0.2}, lambda all_, n, o, e, y, c: ce(all_, y, 0.2)),
    "dropout": ("dropout", {}, lambda all_, n, o, e, y, c: ce(all_, y)),
    "naive": ("naive", {"strength": 2.0}, lambda all_, n, o, e, y, c: (1 + 2 * right(o, c)) * ce(all_, y)),
    "kd": (
        "kd",
        {"alpha": 0.3, "temperature": 2.0},
        lambda all_, n, o, e, y, c: 0.7 * ce(all_, y) + 0.3 * 4 * kl(o, n, 2.0),
    ),
    "kd smoothed": (
        "kd",
        {"alpha": 0.3, "temperature": 2.0, "label_smoothing": 0.1},
        lambda all_, n, o, e, y, c: 0.7 * ce(all_, y, 0.1) + 0.3 * 4 * kl(o, n, 2.0),
    ),
    "ensemble_kd": (
        "ensemble_kd",
        {"temperature": 3.0},
        lambda all_, n, o, e, y, c: 0.5 * ce(all_, y) + 0.5 * 9 * kl(e, n, 3.0),
    ),
    "fd_kl": (
        "fd_kl",
        {"temperature": 2.0},
        lambda all_, n, o, e, y, c: ce(all_, y) + (1 + 5 * right(o, c)) * 4 * kl(o, n, 2.0),
    ),
    "fd_kl reversed": (
        "fd_kl",
        {"temperature": 2.0, "distance": "reverse_kl", "strength": 3.0},
        lambda all_, n, o, e, y, c: ce(all_, y) + 3 * (1 + 5 * right(o, c)) * kl(n, o, 2.0),
    ),
    "fd_lm": (
        "fd_lm",
        {"strength": 0.5, "alpha": 2.0, "beta": 3.0},
        lambda all_, n, o, e, y, c: ce(all_, y) + 0.5 * (2 + 3 * right(o, c)) * squares(n, o),
    ),
    "ensemble_fd": (
        "ensemble_fd",
        {},
        lambda all_, n, o, e, y, c: ce(all_, y) + (1 + 5 * right(e, c)) * squares(n, e),
    ),
    "ldi": (
        "ldi",
        {},
        lambda all_, n, o, e, y, c: (
            0.5 * ce(all_, y) + 0.5 * ldi(n, o, c, p=2, k=C, margin=0.5, with_label=True, mean=True)
        ),
    ),
    "heir": (
        "heir",
        {},
        lambda all_, n, o, e, y, c: (
            0.5 * ce(all_, y) + 0.5 * ldi(n, o, c, p=2, k=C, margin=0.0, with_label=True, mean=True)
        ),
    ),
    "elodi": (
        "elodi",
        {},
        lambda all_, n, o, e, y, c: (
            0.2 * ce(all_, y) + 0.8 * ldi(n, e, c, p=2, k=C, margin=0.0, with_label=True, mean=True)
        ),
    ),
    "elodi mixed, top-k, without the label": (
        "elodi",
        {"alpha": 0.6, "mix": 0.3, "difference": {"p": 3.0, "k": 2, "with_label": False, "reduction": "sum"}},
        lambda all_, n, o, e, y, c: (
            0.4 * ce(all_, y)
            + 0.6 * 0.3 * ldi(n, e, c, p=3, k=2, margin=0.0, with_label=False, mean=False)
            + 0.6 * 0.7 * ldi(n, o, c, p=3, k=2, margin=0.0, with_label=False, mean=False)
        ),
    ),
}


@pytest.mark.parametrize("known", [tuple(range(C)), KNOWN], ids=["all classes", "three classes"])
@pytest.mark.parametrize("name", FORMULAS)
def test_loss(name: str, known: tuple[int, ...]) -> None:
    """With labels inside and outside of what the reference knows, and rows on which it is right and wrong."""
    method, options, formula = FORMULAS[name]
    torch.manual_seed(11)
    said = torch.randn(B, C, dtype=torch.float64)
    old = torch.randn(1, B, len(known), dtype=torch.float64)
    ensemble = torch.randn(M, B, len(known), dtype=torch.float64)
    y = torch.tensor([4, 0, 1, 6, 5])
    for row in (0, 3):
        old[0, row, known.index(int(y[row]))] += 10
        ensemble[:, row, known.index(int(y[row]))] += 10
    classes = None if len(known) == C else known
    references = {
        "old": CachedReference("old", old, classes=classes),
        "ensemble": CachedReference("ensemble", ensemble, classes=classes),
    }
    zero = torch.zeros(())
    # The batch's second row is the set's third, and so on: cached logits are looked up by place.
    index = torch.tensor([0, 2, 1, 4, 3])
    batch = Batch(index, y[index], index, zero, zero.long())
    step = build_method(method, **options)(SingleStudent(Said(said)), references, batch)
    expected = 0.0
    for row in range(B):
        label = int(y[row])
        new = said[row].tolist()
        mine = [new[c] for c in known]
        mean = [sum(ensemble[m, row, k].item() for m in range(M)) / M for k in range(len(known))]
        column = known.index(label) if label in known else -1
        expected += formula(new, mine, old[0, row].tolist(), mean, label, column) / B
    assert float(step.loss.detach()) == pytest.approx(expected, rel=1e-12)


def test_terms_are_plain_means() -> None:
    """A term's figure is the loss itself, whatever its weight in the sum."""
    said, old = torch.tensor([[0.0, 0.0]]), torch.tensor([[[2.0, 0.0]]])
    zero = torch.zeros(())
    batch = Batch(torch.tensor([0]), torch.tensor([1]), torch.tensor([0]), zero, zero.long())
    step = build_method("fd_lm", strength=10.0)(SingleStudent(Said(said)), {"old": CachedReference("old", old)}, batch)
    assert float(step.terms["cross_entropy"].detach()) == pytest.approx(math.log(2))
    assert float(step.terms["focal_distillation"].detach()) == 2.0
    assert float(step.loss.detach()) == pytest.approx(math.log(2) + 20)


@pytest.mark.parametrize("distance", ["kl", "reverse_kl", "logits"])
@pytest.mark.parametrize(("combination", "weight"), [("logits", 1.0), ("probabilities", 6.0)])
def test_an_ensemble_is_right_by_what_it_answers(distance: str, combination: str, weight: float) -> None:
    """The logits' mean says class 0. So do probabilities at τ = 100, and at τ = 1, the answer, class 1: 0.65 of it."""
    members = torch.tensor([[[8.0, 0.0]], [[0.0, 4.0]], [[0.0, 3.0]]])
    zero = torch.zeros(())
    batch = Batch(torch.tensor([0]), torch.tensor([1]), torch.tensor([0]), zero, zero.long())
    references = {"ensemble": CachedReference("ensemble", members)}
    terms = []
    for beta in (5.0, 0.0):
        method = build_method("ensemble_fd", distance=distance, combination=combination, temperature=100.0, beta=beta)
        step = method(SingleStudent(Said(torch.tensor([[3.0, 0.0]]))), references, batch)
        terms.append(float(step.terms["focal_distillation"].detach()))
    assert terms[1] > 0
    assert terms[0] / terms[1] == pytest.approx(weight)


def test_paragon() -> None:
    said = [torch.randn(B, C) for _ in range(M)]
    x = torch.arange(B)
    members = [Said(logits) for logits in said]
    assert torch.allclose(Paragon()(members)(x), (said[0] + said[1] + said[2]) / 3)
    mean = sum(logits.softmax(-1) for logits in said) / 3
    assert torch.allclose(Paragon(combination="probabilities")(members)(x).softmax(-1), mean)
