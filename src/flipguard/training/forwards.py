"""A network's forward pass by quicker kernels, put in place of its own while it trains."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from flipguard.ensembles.rank_one import RankOne
from flipguard.models.fusion import UNTRACEABLE, fuse_layers
from flipguard.training.at_once import AtOnce
from flipguard.training.capture import CannotCapture, first_line

LOG = logging.getLogger("flipguard.training")
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
def fused(network: nn.Module, dtype: torch.dtype | None = None) -> Iterator[AtOnce | None]:
    """Within, in training, BatchNorm, sums and ReLU are single kernels, where Triton is there and the network can be
    traced. With a `dtype` weights are cast to it together, by what is yielded.
    """
    seen: list[Tensor] = []
    try:
        traced = with_fused_norms(network, seen)
    except torch.OutOfMemoryError:
        raise
    except (ImportError, *UNTRACEABLE) as error:
        LOG.info("BatchNorm, sums and ReLU by torch's own kernels: %s", first_line(error))
        yield None
        return
    at_once = None if dtype is None else AtOnce(traced, dtype)

    def forward(x: Any) -> Any:
        if not network.training:
            return type(network).forward(network, x)
        said = traced(x)
        if seen:
            torch._foreach_add_(seen, 1)
            seen.clear()
        return said

    with _instead(network, forward):
        yield at_once


def with_fused_norms(network: nn.Module, seen: list[Tensor] | None = None) -> fx.GraphModule:
    """The network's graph over its own modules, with BatchNorm, sums and ReLU as single kernels.

    With `seen` the norms leave their counts of batches there, for the caller to raise all at once.
    """
    from flipguard.training.normalisation import FusedNorm, for_each_reader, fusable

    traced = network if isinstance(network, fx.GraphModule) else fx.GraphModule(network, _Tracer().trace(network))
    return for_each_reader(fuse_layers(traced, fusable, lambda norm, relu: FusedNorm(norm, relu, seen), alone=True))


class _Tracer(fx.Tracer):
    """Layers of a BatchEnsemble are called, as torch's own are: what they do depends on whose turn it is."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, RankOne) or bool(super().is_leaf_module(m, module_qualified_name))


@contextmanager
def _instead(network: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The network's `forward` as an attribute of this one object; no name in its state changes."""
    network.forward = forward
    try:
        yield
    finally:
        del network.forward
