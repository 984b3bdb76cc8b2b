"""Logit difference inhibition: the student's highest logits held to a reference's."""

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
    each sample's `k` highest logits (ties go to the lower class) as ranked by the reference, by the student, or by
    either: the union, between k and 2k classes. With `y` (B,) the labelled class is left out before the ranking, so
    that k others are kept. No gradient flows through the choice of classes.

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
    student, reference = at_least_float32(student), at_least_float32(reference)
    kept = kept_classes(student, reference, k=k, ranked_by=ranked_by, y=y).to(student.dtype)
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
    if ranked_by not in get_args(Ranking):
        raise InputError(f"ranked_by must be 'reference', 'student' or 'either', got '{ranked_by}'.")
    candidates = torch.ones_like(reference, dtype=torch.bool)
    if y is not None:
        check_labels(reference, y)
        candidates = candidates.scatter(1, y.long().unsqueeze(1), False)
    left = reference.shape[1] - (y is not None)
    if left < 1 or (k is not None and not 1 <= k <= left):
        without = " once the labelled one is left out" if y is not None else ""
        raise InputError(
            f"k={k} classes were asked for, but there are {left}{without}; use a k from 1 to {left}, or None."
        )
    if k is None:
        return candidates
    if ranked_by == "either":
        return _highest(student, candidates, k) | _highest(reference, candidates, k)
    return _highest(student if ranked_by == "student" else reference, candidates, k)


def _highest(logits: Tensor, candidates: Tensor, k: int) -> Tensor:
    """The k highest candidates of each sample as booleans (B, C).

    A stable sort, as topk leaves open which of several equal logits it takes, and bfloat16 logits are often equal.
    """
    ranked = logits.detach().masked_fill(~candidates, -torch.inf)
    order = ranked.argsort(dim=-1, descending=True, stable=True)
    return torch.zeros_like(candidates).scatter(1, order[:, :k], True)
