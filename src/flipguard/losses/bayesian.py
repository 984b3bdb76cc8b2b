"""Targets of the Bayesian update with a cost ratio: what to believe after the old model and the new one have spoken."""

import math

import torch
from torch import Tensor

from flipguard.losses.logits import at_least_float32, check_pair
from flipguard.types import InputError


def cost_ratio_target(old: Tensor, new: Tensor, stored: Tensor, *, cost_ratio: float) -> Tensor:
    r"""The label to store, class codes (B,), from two models' log-probabilities or logits (B, C) and the stored (B,).

    With $p(k) \propto \sigma_k(old)\,\sigma_k(new)$ and $\hat l = \arg\max_k p(k)$: $\hat l$ where
    $p(\hat l) / p(stored)$ is above the cost ratio $|c_{NF}/c_{PF}|$, else what is stored. Träuble et al. 2021
    (BU-CR), the CR rule; there p is the posterior given both *predictions* under their confusion matrices, here a
    model's own probabilities stand for its row of the confusion matrix. No gradient flows.

    The old model says 1 : 2, the new one 8 : 1, so p is 8 : 2 for the first class, a ratio of 4:

    >>> old, new = torch.tensor([[1.0, 2.0]]).log(), torch.tensor([[8.0, 1.0]]).log()
    >>> [cost_ratio_target(old, new, torch.tensor([1]), cost_ratio=c).item() for c in (2.0, 5.0)]
    [0, 1]
    """
    check_pair(old, new)
    if not cost_ratio >= 1:
        raise InputError(f"the cost ratio must be at least 1, got {cost_ratio}.")
    with torch.no_grad():
        log_p = torch.log_softmax(at_least_float32(old), -1) + torch.log_softmax(at_least_float32(new), -1)
        best = log_p.argmax(-1)
        ahead = (log_p.gather(1, best[:, None]) - log_p.gather(1, stored[:, None]))[:, 0]
        return torch.where(ahead > math.log(cost_ratio), best, stored)
