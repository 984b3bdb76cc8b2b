"""Losses that keep a new network's features usable with an old network's head, or beside its features."""

import torch
from torch import Tensor
from torch.nn import functional as F

from flipguard.losses.classification import cross_entropy
from flipguard.losses.logits import at_least_float32, check_labels, check_pair
from flipguard.types import InputError


def fit_width(features: Tensor, width: int) -> Tensor:
    """Features (B, D) as (B, width): the last ones cut off, or zeros added. BCT (Shen et al. 2020), Sec. 3.

    >>> fit_width(torch.tensor([[1.0, 2.0, 3.0]]), 2)
    tensor([[1., 2.]])
    >>> fit_width(torch.tensor([[1.0, 2.0, 3.0]]), 5)
    tensor([[1., 2., 3., 0., 0.]])
    """
    return F.pad(features, (0, width - features.shape[-1]))


def known_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    r"""Cross-entropy of the samples whose class the logits know, 0 for the others (y = -1): (B, C), (B,) -> (B,).

    BCT's influence loss when the logits are the old head's on the new features.

    >>> logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    >>> [round(value, 4) for value in known_cross_entropy(logits, torch.tensor([0, -1])).exp().tolist()]
    [1.3333, 1.0]
    """
    check_labels(logits, y)
    return cross_entropy(logits, y.clamp(min=0)) * (y >= 0)


def joint_cross_entropy(old: Tensor, new: Tensor, y_old: Tensor, y: Tensor) -> Tensor:
    r"""RACT's term between classifiers: both heads' logits of the new features compete, and the old label must win.

    $-\log \frac{e^{o_y}}{\sum_k e^{o_k} + \sum_{k \ne y} e^{n_k}}$ with $o = W_{old} z$ and $n = W_{new} z$: (B, C'),
    (B, C), labels as the old head's columns (B,) and as the new one's (B,) -> (B,). Zhang et al. 2022 (RACT), whose
    negatives are both kinds of class; 0 where the old head does not know the class (y_old = -1).

    Odds 2 for the right old class, 1 for the wrong old one, 1 for the wrong new one; the right new one (9) is left out:

    >>> old, new = torch.tensor([[2.0, 1.0]]).log(), torch.tensor([[9.0, 1.0]]).log()
    >>> label = torch.tensor([0])
    >>> round(joint_cross_entropy(old, new, label, label).exp().item(), 4)  # (2 + 1 + 1) / 2
    2.0
    """
    check_labels(old, y_old)
    check_labels(new, y)
    rivals = at_least_float32(new).scatter(1, y.long().unsqueeze(1), -torch.inf)
    both = torch.cat([at_least_float32(old).to(rivals.dtype), rivals], dim=1)
    return known_cross_entropy(both, y_old)


def contrastive_compatibility(
    new: Tensor, old: Tensor, y: Tensor, *, temperature: float = 0.01, hardest: int = 10
) -> Tensor:
    r"""RACT's term between features: a sample's old feature must be nearer than any other class's, old or new.

    $-\log \frac{e^{z_i o_i/\tau}}{e^{z_i o_i/\tau} + \sum_j e^{z_i o_j/\tau} + \sum_j e^{z_i z_j/\tau}}$ with features
    z (new) and o (old) of length 1 and j over the samples of other classes, the `hardest` (nearest) of each sum: two
    (B, D), class codes (B,) -> (B,). Zhang et al. 2022 (RACT). A batch without other classes has no negatives, and the
    loss is 0; so is the gradient of a feature vector that is all zeros, which has no direction.

    A sample's own old feature has cosine 1, the other class's old and new ones 0: log((e + 1 + 1) / e) at τ = 1.

    >>> z, y = torch.eye(2), torch.tensor([0, 1])
    >>> round(contrastive_compatibility(z, z, y, temperature=1.0)[0].item(), 4)  # log(1 + 2/e)
    0.5514
    """
    check_pair(new, old)
    check_labels(new, y)
    if not temperature > 0 or hardest < 1:
        raise InputError(f"temperature must be above 0 and hardest at least 1, got {temperature} and {hardest}.")
    z, o = _directions(new), _directions(old).to(at_least_float32(new).dtype)
    own = (z * o).sum(-1, keepdim=True)
    same = y[:, None] == y[None, :]
    kept = min(hardest, len(y))
    # Autocast would round the cosines to bfloat16, and τ = 0.01 makes a hundredfold of the error.
    with torch.autocast(z.device.type, enabled=False):
        cosines = [z @ other.T for other in (o, z)]
    rivals = [cosine.masked_fill(same, -torch.inf).topk(kept, dim=1).values for cosine in cosines]
    scores = torch.cat([own, *rivals], dim=1) / temperature
    return scores.logsumexp(-1) - scores[:, 0]


def _directions(features: Tensor) -> Tensor:
    """Rows (B, D) of length 1; a row of zeros stays, with gradient 0 where x / |x| would have an endless one."""
    wide = at_least_float32(features)
    squared = wide.square().sum(-1, keepdim=True)
    alive = squared > 0
    return wide * (alive * torch.where(alive, squared, 1.0).rsqrt())
