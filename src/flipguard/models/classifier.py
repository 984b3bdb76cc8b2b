"""What every network of this room is: a body that gives features, and a linear head."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from flipguard.types import InputError


class Classifier(nn.Module):
    """A body x -> (B, D), then an optional linear bottleneck and dropout, then the head (B, D) -> (B, C).

    `forward(x)` is `head(features(x))` in every mode: dropout belongs to the features, which are what the head sees, so
    that one pass gives both and the head stays a plain linear layer, whose names in a checkpoint do not depend on it.
    """

    def __init__(
        self, body: nn.Module, head: nn.Module, *, bottleneck: nn.Module | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise InputError(f"dropout must be at least 0 and below 1, got {dropout}.")
        self.body = body
        self.bottleneck = bottleneck or nn.Identity()
        # Dropout(0) would still draw random numbers in training.
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.head = head

    @property
    def feature_width(self) -> int:
        """D, the number of penultimate features."""
        return int(self.head.in_features)

    def features(self, x: Any) -> Tensor:
        """The penultimate features (B, D)."""
        return self.dropout(self.bottleneck(self.body(x)))

    def forward(self, x: Any) -> Tensor:
        """The logits (B, C)."""
        return self.head(self.features(x))


def classifier(
    body: nn.Module, width: int, *, classes: int, feature_width: int | None = None, dropout: float = 0.0
) -> Classifier:
    """A body of `width` features with a new head, through a linear bottleneck when `feature_width` is given."""
    if feature_width is None:
        return Classifier(body, nn.Linear(width, classes), dropout=dropout)
    check_positive(feature_width=feature_width)
    bottleneck = nn.Linear(width, feature_width)
    return Classifier(body, nn.Linear(feature_width, classes), bottleneck=bottleneck, dropout=dropout)


class GlobalAveragePool(nn.Module):
    """(B, D, H, W) -> (B, D). A plain mean: the backward of AdaptiveAvgPool2d is not deterministic on CUDA."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1))


def convolution(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution with "same" padding and no bias, as BatchNorm beside it has one."""
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


def normalised(inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, relu: bool = True) -> list[nn.Module]:
    """Convolution, BatchNorm and, unless told otherwise, ReLU."""
    layers = [convolution(inputs, outputs, kernel=kernel, stride=stride), nn.BatchNorm2d(outputs)]
    return [*layers, nn.ReLU()] if relu else layers


def initialise(body: nn.Module) -> nn.Module:
    """Convolutions after He et al. 2015: normal with variance 2 / fan_out. The rest keeps torch's own start.

    fan_out, as in the released code of the ResNet and WRN papers. Numbers come from torch's global generator.
    """
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return body


def check_positive(**sizes: int) -> None:
    """Refuses sizes below 1 by name."""
    for name, size in sizes.items():
        if size < 1:
            raise InputError(f"{name} must be at least 1, got {size}.")


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuses a value that is not among the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got '{value}'.")
