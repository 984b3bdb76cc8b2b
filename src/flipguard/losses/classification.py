"""The loss towards the labels."""

from torch import Tensor
from torch.nn import functional as F

from flipguard.losses.logits import at_least_float32, check_labels
from flipguard.types import InputError


def cross_entropy(logits: Tensor, y: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    r"""Cross-entropy of each sample: logits (B, C), class codes y (B,) -> (B,).

    $-\sum_k q_k \log \sigma_k(\phi(x))$ with $q = (1 - \epsilon)\,\mathrm{onehot}(y) + \epsilon / C$. PCT (Yan et al.
    2021), Eq. 3; the smoothing is Szegedy et al. 2016, Sec. 7.

    Softmax of (log 3, 0) is (3/4, 1/4), so the loss is log 4/3 or log 4:

    >>> import torch
    >>> logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    >>> [round(value, 4) for value in cross_entropy(logits, torch.tensor([0, 1])).exp().tolist()]
    [1.3333, 4.0]
    """
    check_labels(logits, y)
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}.")
    return F.cross_entropy(at_least_float32(logits), y.long(), reduction="none", label_smoothing=label_smoothing)
