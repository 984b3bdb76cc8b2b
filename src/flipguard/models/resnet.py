"""Residual networks (He et al. 2016a): the CIFAR family and the ImageNet family."""

from collections import OrderedDict
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from flipguard.models.classifier import (
    Classifier,
    GlobalAveragePool,
    check_choice,
    check_positive,
    classifier,
    initialise,
    normalised,
)

Shortcut = Literal["pad", "project"]
Stem = Literal["cifar", "imagenet"]


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x))


class PadShortcut(nn.Module):
    """Option A of the paper, without parameters: every second pixel, and zeros for the new channels."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels = new_channels
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def _shortcut(inputs: int, outputs: int, stride: int, kind: Shortcut) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    if kind == "pad":
        return PadShortcut(outputs - inputs, stride)
    return nn.Sequential(*normalised(inputs, outputs, kernel=1, stride=stride, relu=False))


def _basic(inputs: int, outputs: int, stride: int, kind: Shortcut = "project") -> Residual:
    """Two 3 by 3 convolutions."""
    branch = [*normalised(inputs, outputs, stride=stride), *normalised(outputs, outputs, relu=False)]
    return Residual(nn.Sequential(*branch), _shortcut(inputs, outputs, stride, kind))


def _bottleneck(inputs: int, outputs: int, stride: int) -> Residual:
    """1 by 1, 3 by 3, 1 by 1, the middle ones a quarter as wide. The stride sits on the 3 by 3, as in use today."""
    inner = outputs // 4
    branch = [
        *normalised(inputs, inner, kernel=1),
        *normalised(inner, inner, stride=stride),
        *normalised(inner, outputs, kernel=1, relu=False),
    ]
    return Residual(nn.Sequential(*branch), _shortcut(inputs, outputs, stride, "project"))


def stem_layers(stem: Stem, in_channels: int, width: int) -> list[nn.Module]:
    """What comes before the stages: 3 by 3 for small images, 7 by 7 with two halvings for large ones."""
    if stem == "cifar":
        return normalised(in_channels, width)
    return [*normalised(in_channels, width, kernel=7, stride=2), nn.MaxPool2d(3, stride=2, padding=1)]


def cifar_resnet(
    depth: int,
    *,
    classes: int,
    width: int = 16,
    shortcut: Shortcut = "pad",
    in_channels: int = 3,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """The paper's CIFAR network of 6n + 2 layers (its Sec. 4.2): three stages of n blocks, 16, 32 and 64 wide.

    `shortcut="pad"` is its option A, used there on CIFAR; "project" is option B (1 by 1 convolutions).
    """
    check_choice("shortcut", shortcut, get_args(Shortcut))
    check_positive(width=width, in_channels=in_channels)
    stages: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(*normalised(in_channels, width)))
    inputs = width
    for number, outputs in enumerate((width, 2 * width, 4 * width), 1):
        blocks = [_basic(inputs, outputs, 1 if number == 1 else 2, shortcut)]
        blocks += [_basic(outputs, outputs, 1) for _ in range((depth - 2) // 6 - 1)]
        stages[f"stage{number}"], inputs = nn.Sequential(*blocks), outputs
    body = nn.Sequential(OrderedDict(**stages, pool=GlobalAveragePool()))
    return classifier(initialise(body), inputs, classes=classes, feature_width=feature_width, dropout=dropout)


def resnet(
    blocks: tuple[int, ...],
    bottleneck: bool,
    *,
    classes: int,
    width: int = 64,
    stem: Stem = "cifar",
    in_channels: int = 3,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """The paper's ImageNet network (its Table 1): four stages of `blocks`, `width` to 8 · `width` wide.

    `stem="imagenet"` is the paper's; "cifar" keeps the size of 32 by 32 images (3 by 3, no pooling). Shortcuts are
    projections where the shape changes (option B).
    """
    check_choice("stem", stem, get_args(Stem))
    check_positive(width=width, in_channels=in_channels)
    stages: OrderedDict[str, nn.Module] = OrderedDict(stem=nn.Sequential(*stem_layers(stem, in_channels, width)))
    block, expansion, inputs = (_bottleneck, 4, width) if bottleneck else (_basic, 1, width)
    for number, count in enumerate(blocks):
        outputs = width * 2**number * expansion
        first = block(inputs, outputs, 1 if number == 0 else 2)
        rest = [block(outputs, outputs, 1) for _ in range(count - 1)]
        stages[f"stage{number + 1}"], inputs = nn.Sequential(first, *rest), outputs
    body = nn.Sequential(OrderedDict(**stages, pool=GlobalAveragePool()))
    return classifier(initialise(body), inputs, classes=classes, feature_width=feature_width, dropout=dropout)
