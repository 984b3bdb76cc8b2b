"""Several networks of one kind as one call: their weights in one piece of memory, their logits side by side.

Each network keeps its parameters and buffers as objects, so that its optimiser, its state and what it releases stay its
own; only their memory becomes rows of tensors that one pass over all networks can use.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from flipguard.training.capture import CannotCapture

TOLERANCE = 0.02
"""How far the joint logits may be from the networks' own, by norm: a mixed-up member is off by its whole size, rounding
to TensorFloat-32 by a thousandth."""


class Copied(Protocol):
    """Weights that a pass reads copies of: `end` gives the copies' gradients to what they are copies of."""

    def end(self) -> None: ...

    def forget(self) -> None: ...


@dataclass(frozen=True)
class Joined:
    """M networks as one: `call` takes a list of their inputs and gives their logits (M, B, C).

    `weights` pairs each joint parameter, a leaf of the graph, with the networks' own, which are its rows. `copied` are
    other weights, in the order in which their gradients go back. `tolerance` is for `check_same`.
    """

    call: Callable[[list[Any]], Tensor]
    weights: Sequence[tuple[Tensor, Sequence[nn.Parameter]]]
    module: nn.Module
    copied: Sequence[Copied] = ()
    tolerance: float = TOLERANCE

    def hand_out(self) -> None:
        """The joint gradients to the networks' own parameters, added to what a loss that reads them has left there."""
        for joint, parameters in self.weights:
            if joint.grad is not None:
                rows = joint.grad.view(len(parameters), *parameters[0].shape)
                for parameter, row in zip(parameters, rows, strict=True):
                    parameter.grad = row if parameter.grad is None else parameter.grad + row
                joint.grad = None
        for copied in self.copied:
            copied.end()

    def forget(self) -> None:
        """No gradient is left."""
        for joint, parameters in self.weights:
            joint.grad = None
            for parameter in parameters:
                parameter.grad = None
        for copied in self.copied:
            copied.forget()


def in_rows(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors in one (M, …), each from now on a row of it, with its own strides.

    >>> one, other = torch.zeros(2), torch.ones(2)
    >>> rows = in_rows([one, other])
    >>> one.add_(5.0), rows.sum()
    (tensor([5., 5.]), tensor(12.))
    """
    first = tensors[0]
    strides = torch.empty_like(first.detach()).stride()
    rows = torch.empty_strided(
        (len(tensors), *first.shape), (first.numel(), *strides), dtype=first.dtype, device=first.device
    )
    for tensor, row in zip(tensors, rows, strict=True):
        row.copy_(tensor.detach())
        tensor.data = row
    return rows


def check_alike(networks: Sequence[nn.Module]) -> None:
    """Raises unless all have the same names, shapes, types, and parameters to train."""

    def kind(network: nn.Module) -> list[Any]:
        parameters = [(n, p.shape, p.dtype, p.requires_grad) for n, p in network.named_parameters()]
        return [type(network), parameters, [(n, b.shape, b.dtype) for n, b in network.named_buffers()]]

    if any(kind(network) != kind(networks[0]) for network in networks[1:]):
        raise CannotCapture("the networks are not of one shape")


def stacked(networks: Sequence[nn.Module]) -> Joined:
    """The first network's forward pass mapped by torch.func over the weights and statistics of all.

    A pass that draws random numbers (dropout) is refused by vmap: members would not draw what they draw alone. Under
    vmap torch knows no layout but the plain one, so weights are read in it; the networks' own keep theirs.
    """
    check_alike(networks)
    weights: list[tuple[Tensor, Sequence[nn.Parameter]]] = []
    parameters: dict[str, Tensor] = {}
    for name, first in networks[0].named_parameters():
        own = [network.get_parameter(name) for network in networks]
        parameters[name] = in_rows(own).requires_grad_(first.requires_grad)
        weights.append((parameters[name], own))
    buffers = {
        name: in_rows([network.get_buffer(name) for network in networks]) for name, _ in networks[0].named_buffers()
    }

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Any) -> Tensor:
        logits: Tensor = functional_call(networks[0], (parameters, buffers), (x,))
        return logits

    def call(inputs: list[Any]) -> Tensor:
        first = inputs[0]
        x = {n: torch.stack([i[n] for i in inputs]) for n in first} if isinstance(first, dict) else torch.stack(inputs)
        with _mappable_norms(networks[0]):
            logits: Tensor = vmap(one)({name: rows.contiguous() for name, rows in parameters.items()}, buffers, x)
        return logits

    return Joined(call, weights, networks[0])


@contextmanager
def _mappable_norms(network: nn.Module) -> Iterator[None]:
    """Within, BatchNorm takes what its rule under vmap can do, and gives back the type that it gives alone."""
    norms = [(norm, vars(norm).get("forward")) for norm in network.modules() if isinstance(norm, _BatchNorm)]
    try:
        for norm, _ in norms:
            norm.forward = partial(_plainly_normalised, norm, norm.forward)
        yield
    finally:
        for norm, own in norms:
            vars(norm).pop("forward", None)
            if own is not None:
                norm.forward = own


def _plainly_normalised(norm: _BatchNorm, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    # The rule normalises with weights of the input's type, which the running statistics must then have too.
    kept = next((tensor for tensor in (norm.running_mean, norm.weight) if tensor is not None), x)
    wide = x.to(kept.dtype)
    # cuDNN's BatchNorm asks for channels last where strides look like it, and vmap cannot answer.
    if x.dim() > 2 and x.stride(1) < x.stride(-1):
        wide = wide.contiguous()
    return forward(wide).to(x.dtype)


@torch.no_grad()
def check_same(joined: Joined, networks: Sequence[nn.Module], inputs: list[Any]) -> None:
    """Raises unless the joint logits are those of each network, in evaluation mode, where nothing moves."""
    with _evaluated([joined.module, *networks]):
        together = joined.call(inputs)
        alone = torch.stack([network(x) for network, x in zip(networks, inputs, strict=True)])
    if together.shape != alone.shape or not float((together - alone).norm()) <= joined.tolerance * float(alone.norm()):
        raise CannotCapture("the networks as one do not say what they say alone")


@contextmanager
def _evaluated(networks: Sequence[nn.Module]) -> Iterator[None]:
    modes = [(module, module.training) for network in networks for module in network.modules()]
    try:
        for network in networks:
            network.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training
