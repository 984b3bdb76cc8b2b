"""VGG networks (Simonyan & Zisserman 2015) with BatchNorm, for small images."""

from torch import nn

from flipguard.models.classifier import (
    Classifier,
    GlobalAveragePool,
    check_positive,
    classifier,
    initialise,
    normalised,
)


def vgg(
    convolutions: tuple[int, ...],
    *,
    classes: int,
    width: int = 64,
    in_channels: int = 3,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """Five groups of 3 by 3 convolutions, each followed by a halving of the image; `width` to 8 · `width` wide.

    The paper's Table 1, columns A (1, 1, 2, 2, 2), B and D. For 32 by 32 images the two layers of 4096 give way to a
    single head on the global mean, and every convolution has BatchNorm, as is usual on CIFAR. Images must be at least
    32 by 32.
    """
    check_positive(width=width, in_channels=in_channels)
    layers: list[nn.Module] = []
    inputs = in_channels
    for count, factor in zip(convolutions, (1, 2, 4, 8, 8), strict=True):
        for _ in range(count):
            layers += normalised(inputs, width * factor)
            inputs = width * factor
        layers.append(nn.MaxPool2d(2))
    body = initialise(nn.Sequential(*layers, GlobalAveragePool()))
    return classifier(body, inputs, classes=classes, feature_width=feature_width, dropout=dropout)
