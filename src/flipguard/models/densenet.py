"""DenseNets (Huang et al. 2017) for small images."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from flipguard.models.classifier import (
    Classifier,
    GlobalAveragePool,
    check_positive,
    classifier,
    convolution,
    initialise,
)


class Dense(nn.Module):
    """x followed by the `growth` new channels that it gives."""

    def __init__(self, inputs: int, growth: int, bottleneck: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm2d(inputs), nn.ReLU()]
        if bottleneck:
            layers += [convolution(inputs, 4 * growth, kernel=1), nn.BatchNorm2d(4 * growth), nn.ReLU()]
            inputs = 4 * growth
        self.branch = nn.Sequential(*layers, convolution(inputs, growth))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.branch(x)), 1)


def densenet(
    depth: int,
    bottleneck: bool,
    *,
    classes: int,
    growth: int = 12,
    in_channels: int = 3,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """Three dense blocks for small images (the paper's Sec. 3, Implementation Details).

    Plain: 16 channels to start with and (depth - 4) / 3 layers a block. With bottlenecks it is DenseNet-BC:
    2 · `growth` channels to start with, half as many layers a block, each with a 1 by 1 convolution before its 3 by 3,
    and transitions that halve the channels. `dropout` sits before the head, not after every convolution.
    """
    check_positive(growth=growth, in_channels=in_channels)
    layers = (depth - 4) // (6 if bottleneck else 3)
    width = 2 * growth if bottleneck else 16
    parts: OrderedDict[str, nn.Module] = OrderedDict(stem=convolution(in_channels, width))
    for number in (1, 2, 3):
        block = nn.Sequential(*(Dense(width + layer * growth, growth, bottleneck) for layer in range(layers)))
        width += layers * growth
        parts[f"block{number}"] = block
        if number < 3:
            kept = width // 2 if bottleneck else width
            parts[f"transition{number}"] = _transition(width, kept)
            width = kept
    parts["activation"] = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())
    body = initialise(nn.Sequential(OrderedDict(**parts, pool=GlobalAveragePool())))
    return classifier(body, width, classes=classes, feature_width=feature_width, dropout=dropout)


def _transition(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(), convolution(inputs, outputs, kernel=1), nn.AvgPool2d(2))
