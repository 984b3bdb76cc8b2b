"""Averages of weights: interpolation between two networks, soups of several, running averages of one.

They make sense between networks that share an architecture and a start (a pretrained checkpoint, or the old model
itself): weights from different starts lie in different basins, and a network half-way between them is good for nothing.
The architecture is checked here; a common start cannot be seen in the weights.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flipguard.types import Batch, InputError


def average_weights(networks: Sequence[nn.Module], weights: Sequence[float] | None = None) -> nn.Module:
    r"""A new network, in evaluation mode, with $\theta = \sum_j w_j \theta_j$; equal weights when none are given.

    Sums are taken in float64 and rounded once, so that equal networks give themselves. Numbers that are no floats
    (BatchNorm's count of batches) are the last network's. BatchNorm's statistics are averaged like the rest; see
    `recompute_statistics` for why that is not what the averaged weights would have seen.

    >>> first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> for network, value in ((first, 1.0), (second, 4.0)):
    ...     _ = nn.init.constant_(network.weight, value)
    >>> average_weights([first, second], [2 / 3, 1 / 3]).weight.item()
    2.0
    """
    if not networks:
        raise InputError("there is no network to average.")
    shares = [1 / len(networks)] * len(networks) if weights is None else list(weights)
    if len(shares) != len(networks) or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"{len(networks)} networks need as many weights of sum 1, got {shares}.")
    states = [network.state_dict() for network in networks]
    for state in states[1:]:
        _check_same_tensors(states[0], state)
    mixed = copy.deepcopy(networks[-1])
    mixed.load_state_dict({name: _weighted([state[name] for state in states], shares) for name in states[-1]})
    return mixed.eval()


def interpolate(old: nn.Module, new: nn.Module, alpha: float) -> nn.Module:
    r"""$\theta = \alpha\,\theta_{old} + (1 - \alpha)\,\theta_{new}$: at 0 the new network to the bit, at 1 the old one.

    Schumann et al. 2023 (BCWI).
    """
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha must lie between 0 and 1, got {alpha}.")
    return average_weights([old, new], [alpha, 1 - alpha])


def _weighted(tensors: Sequence[Tensor], shares: Sequence[float]) -> Tensor:
    if not tensors[0].is_floating_point():
        return tensors[-1]
    device = tensors[-1].device
    total = sum(share * tensor.to(device, torch.float64) for share, tensor in zip(shares, tensors, strict=True))
    assert isinstance(total, Tensor)
    return total.to(tensors[-1].dtype)


def _check_same_tensors(first: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name in (*first, *other):
        shapes = [tuple(state[name].shape) if name in state else None for state in (first, other)]
        if shapes[0] != shapes[1]:
            said = " and ".join("missing" if shape is None else f"of shape {shape}" for shape in shapes)
            raise InputError(
                f"only networks of one architecture can be averaged: {name} is {said}. Weights of another architecture "
                "have nothing to average with."
            )


@torch.no_grad()
def recompute_statistics(network: nn.Module, batches: Iterable[Batch | Tensor]) -> nn.Module:
    """BatchNorm's statistics measured anew, in place: the mean over batches of training data, each counting the same.

    The mean of two networks' statistics is not what the mean of their weights sees; with BatchNorm an interpolated
    network should be passed through this. Dropout and the rest stay in evaluation mode. Without BatchNorm nothing
    changes.
    """
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return network
    with _measuring(network, layers):
        seen = 0
        for batch in batches:
            network(batch.x if isinstance(batch, Batch) else batch)
            seen += 1
    if not seen:
        raise InputError("there are no batches to measure BatchNorm's statistics on.")
    return network


@contextmanager
def _measuring(network: nn.Module, layers: list[Any]) -> Iterator[None]:
    """BatchNorm alone in training mode, from nothing, with momentum None: the plain mean of what it sees."""
    momenta = [layer.momentum for layer in layers]
    network.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        network.eval()


class MovingAverage(nn.Module):
    r"""A network whose weights follow another's: $\bar\theta \leftarrow d\,\bar\theta + (1 - d)\,\theta$ by update.

    `decay=None` is the plain mean of the weights at all updates (SWA, Izmailov et al. 2018); the copy that it starts
    from then counts for nothing. Buffers are averaged too, counts copied. The update works in place and asks for no
    value on the host, so that it can be part of a captured step.

    >>> network = nn.Linear(1, 1)
    >>> average = MovingAverage(network, decay=0.5)
    >>> for value in (2.0, 4.0):
    ...     _ = nn.init.constant_(network.weight, value)
    ...     average.update(network)
    >>> swa = MovingAverage(network, decay=None)
    >>> swa.update(network)
    >>> swa.network.weight.item()
    4.0
    """

    updates: Tensor

    def __init__(self, network: nn.Module, *, decay: float | None = 0.999) -> None:
        super().__init__()
        if decay is not None and not 0 <= decay < 1:
            raise InputError(f"decay must be at least 0 and below 1, or None for a plain mean, got {decay}.")
        self.decay = decay
        self.network = copy.deepcopy(network).requires_grad_(False)
        device = next((tensor.device for tensor in network.state_dict().values()), None)
        self.register_buffer("updates", torch.zeros((), device=device))
        self.eval()

    def train(self, mode: bool = True) -> "MovingAverage":
        """Stays in evaluation mode: its statistics come from the network that it follows."""
        return super().train(False)

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        self.updates += 1
        share = 1 / self.updates if self.decay is None else torch.full_like(self.updates, 1 - self.decay)
        latest = network.state_dict()
        for name, mine in self.network.state_dict().items():
            if mine.is_floating_point():
                mine.lerp_(latest[name].to(mine.dtype), share.to(mine.dtype))
            else:
                mine.copy_(latest[name])

    def forward(self, x: Any) -> Tensor:
        return self.network(x)
