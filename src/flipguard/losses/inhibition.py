"""Logit difference inhibition: the student's highest logits held to a reference's."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from flipguard.losses.logits import at_least_float32, check_labels, check_pair
from flipguard.types import InputError

Ranking = Literal["reference", "student", "either"]
Reduction = Literal["sum", "mean"]


def logit_difference_inhibition(
    student: Tensor,
    reference: Tensor,
    *,
    p: float = 2.0,
    margin: float = 0.0,
    k: int | None = None,
    ranked_by: Ranking = "reference",
    y: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    r"""LDI: $\sum_{k \in K(x)} \max(0, |\phi_k(x) - \phi_k^{ref}(x)| - \xi)^p$ of each sample: two (B, C) -> (B,).

    ELODI (Zhao et al. 2024), Eq. 8, and Eq. 7 when `k` is None; the margin $\xi$ is the released code's. K(x) holds
    each sample's `k` highest logits as ranked by the reference, by the student, or by either: the union, between k and
    2k classes. Of equal logits the lower class is kept, up to a thousand classes. With `y` (B,) the labelled class is
    left out before the ranking, so that k others are kept. No gradient flows through the choice of classes.

    Departures: the paper's Eq. 8 sums over the kept classes (`reduction="sum"`), the default takes their mean, so that
    the weight of the term does not depend on the number of classes. The released code slices rows instead of classes,
    and always leaves the labelled class out.

    The differences are 1, 3 and 2; the reference's two highest classes are the first and the last:

    >>> student, reference = torch.tensor([[6.0, 4.0, 2.0]]), torch.tensor([[5.0, 1.0, 4.0]])
    >>> logit_difference_inhibition(student, reference, reduction="sum")  # 1 + 9 + 4
    tensor([14.])
    >>> logit_difference_inhibition(student, reference, k=2, reduction="sum")  # 1 + 4
    tensor([5.])
    >>> logit_difference_inhibition(student, reference, k=2, ranked_by="student")  # (1 + 9) / 2
    tensor([5.])
    >>> logit_difference_inhibition(student, reference, margin=1.5, reduction="sum")  # 0 + 1.5² + 0.5²
    tensor([2.5000])
    """
    check_pair(student, reference)
    if not p >= 1 or not margin >= 0:
        raise InputError(f"LDI needs p of at least 1 and a margin of at least 0, got p={p} and margin={margin}.")
    if reduction not in get_args(Reduction):
        raise InputError(f"reduction must be 'sum' or 'mean' (over the kept classes), got '{reduction}'.")
    if k is None:
        kept = kept_classes(student, reference, ranked_by=ranked_by, y=y)
    else:
        # From here on all tensors are (B, k) or (B, 2k): of many classes next to nothing is touched.
        places, kept = kept_places(student, reference, k=k, ranked_by=ranked_by, y=y)
        student, reference = student.gather(1, places), reference.gather(1, places)
    student, reference = at_least_float32(student), at_least_float32(reference)
    kept = kept.to(student.dtype)
    # relu has gradient 0 at 0, so student = reference gives none for any p, also where |.| and the power have a kink.
    total = (torch.relu((student - reference).abs() - margin) ** p * kept).sum(-1)
    return total / kept.sum(-1) if reduction == "mean" else total


def kept_classes(
    student: Tensor,
    reference: Tensor,
    *,
    k: int | None = None,
    ranked_by: Ranking = "reference",
    y: Tensor | None = None,
) -> Tensor:
    """Which classes LDI looks at, as booleans (B, C): per sample the k highest, all when k is None, never class y (B,).

    >>> kept_classes(torch.tensor([[6.0, 4.0, 2.0]]), torch.tensor([[5.0, 1.0, 4.0]]), k=2)
    tensor([[ True, False,  True]])
    """
    if k is None:
        _check_choice(reference, k, ranked_by, y)
        every = torch.ones_like(reference, dtype=torch.bool)
        return every if y is None else every.scatter(1, y.long().unsqueeze(1), False)
    places, kept = kept_places(student, reference, k=k, ranked_by=ranked_by, y=y)
    none = torch.zeros_like(reference, dtype=torch.int8)
    return none.scatter_add(1, places, kept.to(torch.int8)).bool()


def kept_places(
    student: Tensor, reference: Tensor, *, k: int, ranked_by: Ranking = "reference", y: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The same as class codes (B, J), J = k or 2k, and whether each counts (B, J): of two that are equal, one does.

    >>> student, reference = torch.tensor([[6.0, 4.0, 2.0]]), torch.tensor([[5.0, 1.0, 4.0]])
    >>> kept_places(student, reference, k=2, ranked_by="either")
    (tensor([[0, 1, 0, 2]]), tensor([[ True,  True, False,  True]]))
    """
    _check_choice(reference, k, ranked_by, y)
    if ranked_by != "either":
        places = _highest(student if ranked_by == "student" else reference, k, y)
        return places, torch.ones_like(places, dtype=torch.bool)
    mine, theirs = _highest(student, k, y), _highest(reference, k, y)
    again = (theirs.unsqueeze(2) == mine.unsqueeze(1)).any(-1)
    return torch.cat([mine, theirs], 1), torch.cat([torch.ones_like(again), ~again], 1)


def _check_choice(reference: Tensor, k: int | None, ranked_by: Ranking, y: Tensor | None) -> None:
    if ranked_by not in get_args(Ranking):
        raise InputError(f"ranked_by must be 'reference', 'student' or 'either', got '{ranked_by}'.")
    if y is not None:
        check_labels(reference, y)
    left = reference.shape[1] - (y is not None)
    if left < 1 or (k is not None and not 1 <= k <= left):
        without = " once the labelled one is left out" if y is not None else ""
        raise InputError(
            f"k={k} classes were asked for, but there are {left}{without}; use a k from 1 to {left}, or None."
        )


MOST_SORTED = 1024


def _highest(logits: Tensor, k: int, y: Tensor | None) -> Tensor:
    """The codes (B, k) of each sample's k highest classes, without class y, the highest first.

    A stable sort, as topk leaves open which of several equal logits it takes, and bfloat16 logits are often equal. Of
    very many classes not: sorting 100,000 takes twenty times as long as their cross-entropy.
    """
    ranked = logits.detach()
    if ranked.shape[1] > MOST_SORTED:
        return _highest_of_many(ranked, k) if y is None else _without(_highest_of_many(ranked, k + 1), y)
    if y is not None:
        ranked = ranked.scatter(1, y.long().unsqueeze(1), -torch.inf)
    return ranked.argsort(dim=-1, descending=True, stable=True)[:, :k]


def _without(places: Tensor, y: Tensor) -> Tensor:
    """Of k + 1 codes (B, k + 1) the k that are not y (B,), in their order: y where it is among them, else the last."""
    is_label = (places == y.unsqueeze(1)).to(torch.int8)
    return places.gather(1, is_label.argsort(dim=-1, stable=True)[:, :-1])


def _highest_of_many(ranked: Tensor, k: int) -> Tensor:
    """topk's codes (B, k), with one look at each of the C classes where topk takes several.

    The k highest classes lie in the k runs of classes whose maxima are highest: were one of them elsewhere, each of
    these k runs would hold a class that is no lower. Among those runs, k·√(C/k) classes, topk looks again.
    """
    classes = ranked.shape[1]
    length = 1 << max(4, round(math.log2(math.sqrt(classes / k))))
    runs = classes // length
    if k >= runs:
        return ranked.topk(k, dim=-1).indices
    whole = ranked[:, : runs * length].unflatten(1, (runs, length))
    best = whole.amax(-1).topk(k, dim=-1).indices
    inside = (best * length).unsqueeze(2) + torch.arange(length, device=ranked.device)
    rest = torch.arange(runs * length, classes, device=ranked.device).expand(len(ranked), -1)
    places = torch.cat([inside.flatten(1), rest], 1)
    return places.gather(1, ranked.gather(1, places).topk(k, dim=-1).indices)
