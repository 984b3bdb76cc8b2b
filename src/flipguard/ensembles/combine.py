"""Several members' logits as one model's."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flipguard.types import InputError

Combination = Literal["logits", "probabilities"]


def combined(logits: Tensor, how: Combination = "logits", *, temperature: float = 1.0) -> Tensor:
    """The ensemble's logits (B, C) from its members' (M, B, C).

    `logits`: their mean (PCT Eq. 10, ELODI Algorithm 1). `probabilities`: LatentBE's Eq. 2, which averages what the
    members say at the temperature τ: τ·log((1/M)·Σ softmax(φ_m/τ)), whose softmax at τ is that mean. A constant for
    each sample is free: these have mean 0 over the classes, as a network's own nearly have. Plain logarithms lie far
    below, by another amount for each sample, which a student that is to match them one by one (LDI) has to learn, too.

    >>> combined(torch.tensor([[[0.0, 2.0]], [[2.0, 0.0]]]))
    tensor([[1., 1.]])
    >>> combined(torch.tensor([[[0.0, 2.0]], [[0.0, 2.0]]]), "probabilities").round(decimals=4)
    tensor([[-1.,  1.]])
    """
    if how == "logits":
        return logits.mean(dim=0)
    if how == "probabilities":
        wide = logits if logits.dtype == torch.float64 else logits.float()
        tempered = torch.log_softmax(wide / temperature, dim=-1)
        together = temperature * torch.logsumexp(tempered, dim=0)
        # A class that no member gives any chance (-inf) stays so, and has no part in the mean.
        known = together.isfinite()
        total = together.where(known, 0.0).sum(dim=-1, keepdim=True)
        return together - total / known.sum(dim=-1, keepdim=True)
    raise InputError(f"an ensemble is combined by 'logits' or 'probabilities', not '{how}'.")


def features_and_logits(network: nn.Module, x: Any) -> tuple[Tensor, Tensor]:
    """A network's penultimate features (B, D) and its logits (B, C), in one pass."""
    if not hasattr(network, "features") or not hasattr(network, "head"):
        raise InputError(
            f"this method works on features, and {type(network).__name__} gives only logits: "
            "wrap it in flipguard.models.split(network, classes=C)."
        )
    found: Tensor = network.features(x)
    return found, network.head(found)


def stacked(logits: Sequence[Tensor], name: str) -> Tensor:
    """Members' (B, C) as (M, B, C)."""
    if len({tuple(part.shape) for part in logits}) > 1:
        shapes = ", ".join(str(part.shape[-1]) for part in logits)
        raise InputError(f"the members of '{name}' disagree on the number of classes ({shapes}).")
    return torch.stack(list(logits))
