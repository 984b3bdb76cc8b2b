"""A network's forward pass by quicker kernels, put in place of its own while it trains."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from flipguard.models.fusion import UNTRACEABLE, fuse_layers
from flipguard.training.capture import CannotCapture, first_line

_compiled: dict[type[nn.Module], Callable[..., Any]] = {}


@contextmanager
def compiled(network: nn.Module) -> Iterator[None]:
    """Within, a training pass goes through torch.compile, shared by all networks of its class and shapes.

    Evaluation is left alone: its batches have other shapes, each of which would be compiled by itself.
    """
    kind = type(network)
    if kind not in _compiled:
        try:
            _compiled[kind] = torch.compile(kind.forward, dynamic=False)
        except (RuntimeError, ImportError) as error:
            raise CannotCapture(f"torch.compile does not work here ({first_line(error)})") from error
    quick = _compiled[kind]

    def forward(*inputs: Any) -> Any:
        return quick(network, *inputs) if network.training else kind.forward(network, *inputs)

    with _instead(network, forward):
        yield


@contextmanager
def fused(network: nn.Module) -> Iterator[None]:
    """Within, BatchNorm, sums and ReLU are single kernels, where Triton is there and the network can be traced."""
    try:
        traced = with_fused_norms(network)
    except (ImportError, *UNTRACEABLE):
        yield
        return
    with _instead(network, traced.forward):
        yield


def with_fused_norms(network: nn.Module) -> fx.GraphModule:
    """The network's graph over its own modules, with BatchNorm, sums and ReLU as single kernels."""
    from flipguard.training.normalisation import FusedNorm, fusable

    return fuse_layers(network, fusable, FusedNorm, alone=True)


@contextmanager
def _instead(network: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The network's `forward` as an attribute of this one object; no name in its state changes."""
    network.forward = forward
    try:
        yield
    finally:
        del network.forward
