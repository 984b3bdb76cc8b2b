"""How sure a prediction is, whatever the label: what the minimum-entropy regularisers lower and raise."""

import math

from torch import Tensor

from flipguard.losses.inhibition import kept_places
from flipguard.losses.logits import at_least_float32, check_logits


def prediction_entropy(logits: Tensor, *, k: int | None = None) -> Tensor:
    r"""$H(f(x)) = -\sum_j f_j(x) \log f_j(x)$ of each sample: logits (B, C) -> (B,).

    Bhojanapalli et al. 2021 (churn), Eq. 6. With `k` only the k most likely classes are summed over, the paper's top-k
    form (k = 10 for ImageNet). It gives no formula: here f stays the softmax over all classes, and no gradient flows
    through the choice.

    Half of the probability on the first class, a quarter on each other: ½ log 2 + 2 · ¼ log 4 = 1.5 log 2.

    >>> import torch
    >>> round(prediction_entropy(torch.tensor([[2.0, 1.0, 1.0]]).log()).div(math.log(2)).item(), 4)
    1.5
    >>> round(prediction_entropy(torch.tensor([[2.0, 1.0, 1.0]]).log(), k=1).div(math.log(2)).item(), 4)
    0.5
    """
    check_logits(logits)
    log_p = at_least_float32(logits).log_softmax(-1)
    return -_kept_sum(log_p.exp() * log_p, logits, k)


def divergence_from_uniform(logits: Tensor, *, k: int | None = None) -> Tensor:
    r"""$SKL(f(x), U) = \sum_j (f_j(x) - 1/C) \log(C f_j(x))$ of each sample: logits (B, C) -> (B,).

    Bhojanapalli et al. 2021 (churn), Eq. 7: the sum of both KL divergences between the prediction and the uniform
    distribution. With `k` only the k most likely classes are summed over, as in `prediction_entropy`.

    It grows with the logits without bound, where the entropy ends at 0.

    Half of the probability on the first class, a quarter on each other: (⅙ log 3/2) + 2 · (-1/12 · log 3/4) = ⅙ log 2.

    >>> import torch
    >>> round(divergence_from_uniform(torch.tensor([[2.0, 1.0, 1.0]]).log()).mul(6).exp().item(), 4)
    2.0
    """
    check_logits(logits)
    log_p = at_least_float32(logits).log_softmax(-1)
    classes = logits.shape[1]
    return _kept_sum((log_p.exp() - 1 / classes) * (log_p + math.log(classes)), logits, k)


def _kept_sum(terms: Tensor, logits: Tensor, k: int | None) -> Tensor:
    """Over all classes, or over each sample's k highest: (B, C) -> (B,)."""
    if k is None:
        return terms.sum(-1)
    return terms.gather(1, kept_places(logits, logits, k=k)[0]).sum(-1)
