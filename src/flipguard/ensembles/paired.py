"""Two frozen networks of one architecture as one, where their convolutions are narrow.

A convolution of 32 channels leaves a tensor core mostly idle. Two of them side by side, as one of 64 channels whose
weights are zero between the two, do twice the arithmetic that is needed in half as many kernels of a better shape;
whether that pays is measured where it is used. Where the networks get wider their ways part: each goes on by itself,
its first convolution reading both networks' channels with zeros for those of the other.
"""

import torch
from torch import Tensor, fx, nn

from flipguard.ensembles.pairing import NARROW, Both, CannotPair, Each, Pairing

__all__ = ["NARROW", "CannotPair", "paired"]


def paired(first: fx.GraphModule, second: fx.GraphModule) -> fx.GraphModule:
    """x -> (what the first says, what the second says). Both are frozen, in evaluation mode, with one graph.

    Of the paired network's convolutions only those with zeros between channels are new; others are shared.
    """
    return _Frozen(first, second).made()


class _Frozen(Pairing):
    """Both see the same input, and weights are put together once."""

    def input(self, node: fx.Node) -> Both:
        return Both(self.graph.placeholder(str(node.target)), None)

    def convolved(self, given: Both, convolutions: tuple[nn.Conv2d, nn.Conv2d]) -> fx.Node:
        first, second = convolutions
        weights = [conv.weight for conv in convolutions]
        weight = torch.cat(weights) if given.channels is None else _block_diagonal(*weights)
        bias = None if first.bias is None or second.bias is None else torch.cat([first.bias, second.bias])
        return self.call(_convolution(first, weight, bias), given.node)

    def parted(self, node: fx.Node, given: Both, convolutions: tuple[nn.Conv2d, nn.Conv2d]) -> Each:
        first, second = convolutions
        if given.channels is None:
            return Each((self.call(first, given.node), self.call(second, given.node)))
        nothing = torch.zeros_like(first.weight)
        wide = (torch.cat([first.weight, nothing], 1), torch.cat([nothing, second.weight], 1))
        apart = [
            self.call(_convolution(conv, weight, conv.bias), given.node)
            for conv, weight in zip(convolutions, wide, strict=True)
        ]
        return Each((apart[0], apart[1]))


def _block_diagonal(first: Tensor, second: Tensor) -> Tensor:
    """Two weights (O, I, h, w) -> (2·O, 2·I, h, w), zero between the one's channels and the other's."""
    nothing = torch.zeros_like(first)
    return torch.cat([torch.cat([first, nothing], 1), torch.cat([nothing, second], 1)])


def _convolution(like: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """Another convolution with the same stride and padding."""
    found = nn.Conv2d(
        weight.shape[1],
        weight.shape[0],
        like.kernel_size,
        like.stride,
        like.padding,
        like.dilation,
        bias=bias is not None,
        device="meta",
    )
    found.weight = nn.Parameter(weight.detach(), requires_grad=False)
    found.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
    return found
