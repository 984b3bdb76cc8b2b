"""What a step does to each of many small tensors, done to all of them in one kernel.

Under autocast every layer casts its weights to bfloat16 and its gradients back: some forty kernels a step of ResNet-18
that move a few kilobytes each. At small batches a GPU is busy starting them. Here layers read copies of their weights
that are cast together, and gradients go back together. The casts are the same, so the numbers are too.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


class AtOnce:
    """The casts of one traced network: `begin` before a forward pass, `end` after its backward pass.

    `others` are weights, with copies of them, that are read elsewhere and cast with these.
    """

    def __init__(
        self, traced: fx.GraphModule, dtype: torch.dtype, others: Sequence[tuple[nn.Parameter, Tensor]] = ()
    ) -> None:
        uses = Counter(str(node.target) for node in traced.graph.nodes if node.op == "call_module")
        # A layer that is used twice would add up its gradients in half precision.
        once = [node for node in traced.graph.nodes if uses[str(node.target)] == 1 and _casts(traced, node)]
        pairs = [pair for node in once for pair in _in_place_of(traced, node, dtype).weights()] + list(others)
        traced.recompile()
        self._masters, self._copies = [master for master, _ in pairs], [copy for _, copy in pairs]

    @torch.no_grad()
    def begin(self) -> None:
        if self._copies:
            torch._foreach_copy_(self._copies, self._masters)

    @torch.no_grad()
    def end(self) -> None:
        """The copies' gradients to the weights themselves, where they are added to what is there."""
        found = [
            (master, copy) for master, copy in zip(self._masters, self._copies, strict=True) if copy.grad is not None
        ]
        fresh = [(master, copy.grad) for master, copy in found if master.grad is None]
        more = [(master.grad, copy.grad) for master, copy in found if master.grad is not None]
        if more:
            torch._foreach_add_([grad for grad, _ in more], [grad for _, grad in more])
        if fresh:
            grads = [torch.empty_like(master) for master, _ in fresh]
            torch._foreach_copy_(grads, [grad for _, grad in fresh])
            for (master, _), grad in zip(fresh, grads, strict=True):
                master.grad = grad
        self.forget()

    def forget(self) -> None:
        """No gradient is left in the copies."""
        for copy in self._copies:
            copy.grad = None


class _Cast(nn.Module):
    """A convolution or linear layer that reads copies of its weights."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        # Not registered: the layer's own parameters stay the network's only ones.
        self._layer = [layer]
        self._copies = {name: own.detach().to(dtype).requires_grad_() for name, own in layer.named_parameters()}

    def weights(self) -> list[tuple[nn.Parameter, Tensor]]:
        return [(own, self._copies[name]) for name, own in self._layer[0].named_parameters()]

    def forward(self, x: Tensor) -> Tensor:
        layer, weight, bias = self._layer[0], self._copies["weight"], self._copies.get("bias")
        if isinstance(layer, nn.Linear):
            return F.linear(x, weight, bias)
        return layer._conv_forward(x, weight, bias)


def _casts(traced: fx.GraphModule, node: fx.Node) -> bool:
    """Layers of torch's own kind whose weights learn; a subclass may do anything with them."""
    if node.op != "call_module" or len(node.args) != 1 or node.kwargs:
        return False
    layer = traced.get_submodule(str(node.target))
    return type(layer) in (nn.Conv2d, nn.Linear) and all(own.requires_grad for own in layer.parameters())


def _in_place_of(traced: fx.GraphModule, node: fx.Node, dtype: torch.dtype) -> _Cast:
    name = f"cast_{node.name}"
    cast = _Cast(traced.get_submodule(str(node.target)), dtype)
    traced.add_submodule(name, cast)
    node.target = name
    return cast
