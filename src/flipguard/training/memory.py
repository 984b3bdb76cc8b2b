"""Activation checkpointing for any network: less memory, a second forward pass, the same bits."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputed(network: nn.Module, *, on: bool = True) -> Iterator[None]:
    """Within, each block keeps only its inputs in a training pass and computes the rest again in the backward pass.

    A block is an innermost module with at least two layers that hold a weight matrix; a plain chain with more than
    three of them is cut into about √n pieces of n layers (Chen et al. 2016). Dropout draws the same numbers in both
    passes, and BatchNorm's statistics move in the first one only.
    """
    with ExitStack() as stack:
        for block in _blocks(network) if on else []:
            stack.enter_context(_patched(block))
        yield


def _matrices(module: nn.Module) -> int:
    return sum(parameter.ndim > 1 for parameter in module.parameters())


def _blocks(module: nn.Module) -> list[nn.Module]:
    inside = [block for child in module.children() for block in _blocks(child)]
    return inside or ([module] if _matrices(module) >= 2 and next(module.children(), None) is not None else [])


@contextmanager
def _patched(block: nn.Module) -> Iterator[None]:
    """The block's `forward` as an attribute of this one object; no name in its state changes."""
    chain = list(block) if isinstance(block, nn.Sequential) and _matrices(block) > 3 else None
    plain = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not (block.training and torch.is_grad_enabled()):
            return plain(*args, **kwargs)
        if chain is None:
            return _kept(block, plain, *args, **kwargs)
        (x,) = args
        size = math.ceil(len(chain) / math.ceil(math.sqrt(len(chain))))
        for start in range(0, len(chain), size):
            piece = nn.Sequential(*chain[start : start + size])
            x = _kept(piece, piece.forward, x)
        return x

    block.forward = forward
    try:
        yield
    finally:
        del block.forward


def _kept(block: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _still_statistics(block)

    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextmanager
def _still_statistics(block: nn.Module) -> Iterator[None]:
    """BatchNorm's running statistics do not move: a momentum of 0 adds nothing of the batch to them."""
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        norm.num_batches_tracked = None if norm.num_batches_tracked is None else norm.num_batches_tracked.clone()
    try:
        yield
    finally:
        for norm, momentum, tracked in kept:
            norm.momentum, norm.num_batches_tracked = momentum, tracked
