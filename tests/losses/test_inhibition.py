"""LDI against a loop over samples and classes, for every choice of ranking, margin, power and reduction."""

import math
from itertools import product
from typing import Any

import pytest
import torch

from flipguard.losses import kept_classes, logit_difference_inhibition, logit_matching
from flipguard.losses.inhibition import kept_places
from flipguard.types import InputError

B, C = 5, 7
Y = torch.tensor([6, 0, 3, 3, 2])


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    student, reference = (2 * torch.randn(B, C, dtype=torch.float64, generator=generator) for _ in range(2))
    return student, reference


def highest(row: list[float], k: int, left_out: int | None) -> set[int]:
    candidates = [c for c in range(C) if c != left_out]
    return set(sorted(candidates, key=lambda c: -row[c])[:k])


def by_loop(
    *, p: float, margin: float, k: int | None, ranked_by: str, y: torch.Tensor | None, reduction: str
) -> list[float]:
    student, reference = (side.tolist() for side in pair())
    losses = []
    for i in range(B):
        left_out = None if y is None else int(y[i])
        count = k if k is not None else C - (y is not None)
        kept = set()
        if ranked_by in ("student", "either"):
            kept |= highest(student[i], count, left_out)
        if ranked_by in ("reference", "either"):
            kept |= highest(reference[i], count, left_out)
        total = sum(max(0.0, abs(student[i][c] - reference[i][c]) - margin) ** p for c in kept)
        losses.append(total / len(kept) if reduction == "mean" else total)
    return losses


GRID = {
    "p": (1.0, 1.5, 2.0),
    "margin": (0.0, 0.5),
    "k": (None, 1, 3),
    "ranked_by": ("reference", "student", "either"),
    "y": (None, Y),
    "reduction": ("sum", "mean"),
}


@pytest.mark.parametrize("values", list(product(*GRID.values())), ids=str)
def test_equals_a_loop(values: tuple[Any, ...]) -> None:
    options = dict(zip(GRID, values, strict=True))
    got = logit_difference_inhibition(*pair(), **options)
    assert got.shape == (B,)
    torch.testing.assert_close(got, torch.tensor(by_loop(**options), dtype=torch.float64))


def test_the_three_rankings_differ_and_the_union_is_the_largest() -> None:
    reference, student, either = (
        logit_difference_inhibition(*pair(), k=2, ranked_by=side, reduction="sum").sum().item()
        for side in ("reference", "student", "either")
    )
    assert len({round(reference, 9), round(student, 9), round(either, 9)}) == 3
    assert either > max(reference, student)


@pytest.mark.parametrize("ranked_by", ["reference", "student", "either"])
@pytest.mark.parametrize("y", [None, Y])
def test_k_of_all_classes_equals_no_k(ranked_by: Any, y: torch.Tensor | None) -> None:
    every = C - (y is not None)
    with_k = logit_difference_inhibition(*pair(), k=every, ranked_by=ranked_by, y=y)
    torch.testing.assert_close(with_k, logit_difference_inhibition(*pair(), y=y))


def test_the_sum_over_all_classes_is_twice_logit_matching() -> None:
    torch.testing.assert_close(logit_difference_inhibition(*pair(), reduction="sum"), 2 * logit_matching(*pair()))


def test_the_top_k_is_chosen_per_sample() -> None:
    reference = torch.eye(C)[:B]
    kept = kept_classes(torch.zeros(B, C), reference, k=1)
    assert torch.equal(kept, reference.bool())


def test_ties_go_to_the_lower_class() -> None:
    reference = torch.tensor([[1.0, 5, 5, 5, 5, 1, 1]])
    assert kept_classes(torch.zeros(1, C), reference, k=2).nonzero()[:, 1].tolist() == [1, 2]
    union = kept_classes(torch.zeros(1, C), reference, k=2, ranked_by="either")
    assert union.nonzero()[:, 1].tolist() == [0, 1, 2]


def test_many_ties_keep_exactly_k_classes() -> None:
    flat = torch.zeros(3, 211)
    kept = kept_classes(flat, flat, k=10)
    assert torch.equal(kept, (torch.arange(211) < 10).expand(3, 211))


@pytest.mark.parametrize("ranked_by", ["reference", "student", "either"])
@pytest.mark.parametrize("with_y", [False, True])
def test_very_many_classes_are_ranked_as_few_are(ranked_by: Any, with_y: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without equal logits, topk and the sort keep the same classes."""
    draw = torch.Generator().manual_seed(5)
    student, reference = (torch.randn(7, 5_003, generator=draw) for _ in range(2))
    y = torch.arange(7) if with_y else None
    if with_y:
        student[:, :7], reference[:, :7] = 9.0, 9.0
        student += torch.rand(7, 5_003, generator=draw) / 100
        reference += torch.rand(7, 5_003, generator=draw) / 100
    quick = logit_difference_inhibition(student, reference, k=9, ranked_by=ranked_by, y=y)
    monkeypatch.setattr("flipguard.losses.inhibition.MOST_SORTED", 6_000)
    torch.testing.assert_close(quick, logit_difference_inhibition(student, reference, k=9, ranked_by=ranked_by, y=y))


def test_few_kept_classes_leave_the_others_alone() -> None:
    """Beside the ranking and the gradient no tensor has a place for every class."""
    from torch.utils._python_dispatch import TorchDispatchMode

    made: list[str] = []

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = function(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found.shape == (3, 5_003) and "detach" not in str(function):
                made.append(str(function))
            return found

    student, reference = torch.randn(3, 5_003, dtype=torch.bfloat16), torch.randn(3, 5_003, dtype=torch.bfloat16)
    student.requires_grad_()
    with Watch():
        loss = logit_difference_inhibition(student, reference, k=10, ranked_by="either").sum()
        assert made == []
        loss.backward()
    # The gradient itself: zeros, into which the kept classes' are added.
    assert {name.split(".")[1] for name in made} <= {"new_zeros", "zeros", "scatter_add", "scatter_add_", "fill_"}


def test_the_labelled_class_is_left_out_before_the_ranking() -> None:
    reference = torch.arange(C, 0, -1.0).unsqueeze(0)
    kept = kept_classes(reference, reference, k=2, y=torch.tensor([0]))
    assert kept.nonzero()[:, 1].tolist() == [1, 2]


def test_classes_that_are_not_kept_get_no_gradient() -> None:
    student, reference = pair()
    student.requires_grad_()
    logit_difference_inhibition(student, reference, k=3).sum().backward()
    assert torch.equal(student.grad != 0, kept_classes(student, reference, k=3))


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_equal_logits_give_exactly_zero_and_no_gradient(p: float, margin: float) -> None:
    _, reference = pair()
    student = reference.clone().requires_grad_()
    loss = logit_difference_inhibition(student, reference, p=p, margin=margin, k=3, ranked_by="either")
    loss.sum().backward()
    assert torch.equal(loss, torch.zeros_like(loss))
    assert torch.equal(student.grad, torch.zeros_like(student))


def test_differences_within_the_margin_cost_nothing() -> None:
    student = torch.zeros(1, 3, requires_grad=True)
    loss = logit_difference_inhibition(student, torch.tensor([[0.4, -0.5, 0.7]]), p=1.0, margin=0.5, reduction="sum")
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.2)
    assert student.grad.tolist() == [[0, 0, -1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 8}, "k=8 classes were asked for, but there are 7; use a k from 1 to 7"),
        ({"k": 0}, "k=0 classes were asked for"),
        ({"k": 7, "y": Y}, "there are 6 once the labelled one is left out"),
        ({"p": 0.5}, "p of at least 1"),
        ({"p": math.nan}, "p of at least 1"),
        ({"margin": -0.1}, "a margin of at least 0"),
        ({"ranked_by": "teacher"}, "ranked_by must be 'reference', 'student' or 'either', got 'teacher'"),
        ({"reduction": "none"}, "reduction must be 'sum' or 'mean'"),
        ({"y": Y.unsqueeze(1)}, r"\(5, 7\) and \(5, 1\)"),
    ],
)
def test_refuses_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        logit_difference_inhibition(*pair(), **options)


@pytest.mark.parametrize("classes", [1025, 1031, 4096, 10_007])
@pytest.mark.parametrize("k", [1, 10, 600])
def test_the_highest_of_many_are_those_of_a_sort(classes: int, k: int) -> None:
    """Also in the classes that make no whole run, with equal logits, and with the label left out."""
    draw = torch.Generator().manual_seed(classes + k)
    reference = torch.randn(B, classes, generator=draw)
    reference[0, -3:] = 9.0
    reference[1] = 0.0
    student = torch.zeros_like(reference)
    y = reference.argmax(-1)
    y[2] = reference[2].argmin()
    for label in (None, y):
        places, kept = kept_places(student, reference, k=k, y=label)
        assert bool(kept.all())
        assert places.shape == (B, k)
        for row, codes in enumerate(places.tolist()):
            others = [c for c in range(classes) if label is None or c != label[row]]
            assert len(set(codes)) == k
            assert set(codes) <= set(others)
            expected = sorted(reference[row, others].tolist(), reverse=True)[:k]
            assert reference[row, codes].tolist() == expected
