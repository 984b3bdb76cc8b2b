"""The loss towards the labels."""

from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from flipguard.losses.logits import at_least_float32, check_labels
from flipguard.types import InputError

MANY_CLASSES = 1024
"""From here on memory counts more than a second derivative: one tensor (B, C) of 1,000 x 100,000 is 400 MB."""


def cross_entropy(logits: Tensor, y: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    r"""Cross-entropy of each sample: logits (B, C), class codes y (B,) -> (B,).

    $-\sum_k q_k \log \sigma_k(\phi(x))$ with $q = (1 - \epsilon)\,\mathrm{onehot}(y) + \epsilon / C$. PCT (Yan et al.
    2021), Eq. 3; the smoothing is Szegedy et al. 2016, Sec. 7. With more than a thousand classes the gradient takes the
    place of the log-probabilities, so that it can be taken once.

    Softmax of (log 3, 0) is (3/4, 1/4), so the loss is log 4/3 or log 4:

    >>> import torch
    >>> logits = torch.tensor([[3.0, 1.0], [3.0, 1.0]]).log()
    >>> [round(value, 4) for value in cross_entropy(logits, torch.tensor([0, 1])).exp().tolist()]
    [1.3333, 4.0]
    """
    check_labels(logits, y)
    if not 0 <= label_smoothing < 1:
        raise InputError(f"label_smoothing must be at least 0 and below 1, got {label_smoothing}.")
    logits, y = at_least_float32(logits), y.long()
    if logits.shape[1] > MANY_CLASSES:
        loss: Tensor = _InPlace.apply(logits, y, label_smoothing)[0]
        return loss
    return F.cross_entropy(logits, y, reduction="none", label_smoothing=label_smoothing)


class _InPlace(Function):
    """Cross-entropy whose gradient is written over its log-probabilities: one tensor (B, C) where torch has two.

    A second derivative, or a second gradient from a kept graph, is an error of torch's own: the saved tensor has
    another version by then.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, y: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        log_probability = logits.log_softmax(-1)
        of_label = log_probability.gather(1, y[:, None])[:, 0]
        # From 0, so that a loss of nothing has no sign.
        loss = 0 - (1 - smoothing) * of_label
        if smoothing:
            # Only then: a class that is masked with -inf makes the mean endless, and 0 times that is no number.
            loss = loss - smoothing * log_probability.mean(-1)
        return loss, log_probability

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        _, y, ctx.smoothing = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, None, None]:
        """(softmax - q) · dL/dloss, with q as in `cross_entropy`."""
        if of_loss is None:
            return None, None, None
        log_probability, y = ctx.saved_tensors
        gradient = log_probability.exp_().mul_(of_loss[:, None])
        if ctx.smoothing:
            gradient.sub_((ctx.smoothing / gradient.shape[1]) * of_loss[:, None])
        gradient.scatter_add_(1, y[:, None], (ctx.smoothing - 1) * of_loss[:, None])
        return gradient, None, None
