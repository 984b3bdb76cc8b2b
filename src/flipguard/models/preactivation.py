"""Pre-activation residual networks (He et al. 2016b), and the wide ones (Zagoruyko & Komodakis 2016) made of them."""

from collections import OrderedDict
from typing import get_args

from torch import Tensor, nn

from flipguard.models.classifier import (
    Classifier,
    GlobalAveragePool,
    check_choice,
    check_positive,
    classifier,
    convolution,
    initialise,
)
from flipguard.models.resnet import Stem


class PreactivationResidual(nn.Module):
    """branch(a) + x with a = relu(norm(x)), or branch(a) + projection(a) where the shape changes."""

    def __init__(self, inputs: int, branch: nn.Module, projection: nn.Module | None) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.branch = branch
        self.projection = projection

    def forward(self, x: Tensor) -> Tensor:
        active = self.activation(x)
        return self.branch(active) + (x if self.projection is None else self.projection(active))


def _activated(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    return [nn.BatchNorm2d(inputs), nn.ReLU(), convolution(inputs, outputs, kernel=kernel, stride=stride)]


def _block(inputs: int, outputs: int, stride: int, bottleneck: bool) -> PreactivationResidual:
    if bottleneck:
        inner = outputs // 4
        branch = [
            convolution(inputs, inner, kernel=1),
            *_activated(inner, inner, stride=stride),
            *_activated(inner, outputs, kernel=1),
        ]
    else:
        branch = [convolution(inputs, outputs, stride=stride), *_activated(outputs, outputs)]
    same = inputs == outputs and stride == 1
    projection = None if same else convolution(inputs, outputs, kernel=1, stride=stride)
    return PreactivationResidual(inputs, nn.Sequential(*branch), projection)


def _body(stem: nn.Module, inputs: int, stages: list[tuple[int, int]], *, bottleneck: bool) -> nn.Module:
    """The stem, stages of (blocks, width) of which all but the first halve the image, a last activation, the mean."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(stem=stem)
    for number, (count, outputs) in enumerate(stages, 1):
        first = _block(inputs, outputs, 1 if number == 1 else 2, bottleneck)
        rest = [_block(outputs, outputs, 1, bottleneck) for _ in range(count - 1)]
        parts[f"stage{number}"], inputs = nn.Sequential(first, *rest), outputs
    parts["activation"] = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
    return initialise(nn.Sequential(OrderedDict(**parts, pool=GlobalAveragePool())))


def wide_resnet(
    blocks: int,
    widen: int,
    *,
    classes: int,
    width: int = 16,
    in_channels: int = 3,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """Three stages of `blocks` pre-activation blocks on small images, `widen` times 16, 32 and 64 wide.

    WRN-28-k has 4 blocks a stage; ResNet-20 and -56 v2 are the same with 3 and 9 and k = 1, their shortcuts projections
    of the activated input where the shape changes. `dropout` sits before the head, not inside the blocks as in the WRN
    paper's Sec. 2.4.
    """
    check_positive(width=width, in_channels=in_channels)
    stages = [(blocks, width * widen * factor) for factor in (1, 2, 4)]
    body = _body(convolution(in_channels, width), width, stages, bottleneck=False)
    return classifier(body, stages[-1][1], classes=classes, feature_width=feature_width, dropout=dropout)


def resnet_v2(
    blocks: tuple[int, ...],
    *,
    classes: int,
    width: int = 64,
    stem: Stem = "cifar",
    in_channels: int = 3,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """Four stages of pre-activation bottlenecks, 4 · `width` to 32 · `width` wide.

    `stem="imagenet"` has a 7 by 7 convolution and pooling, "cifar" a 3 by 3. The stride sits on the 3 by 3 convolution
    of each stage's first block.
    """
    check_choice("stem", stem, get_args(Stem))
    check_positive(width=width, in_channels=in_channels)
    first: nn.Module = convolution(in_channels, width)
    if stem == "imagenet":
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        first = nn.Sequential(convolution(in_channels, width, kernel=7, stride=2), pool)
    stages = [(count, 4 * width * 2**number) for number, count in enumerate(blocks)]
    body = _body(first, width, stages, bottleneck=True)
    return classifier(body, stages[-1][1], classes=classes, feature_width=feature_width, dropout=dropout)
