"""Small networks: a perceptron and a convolutional network for digits, and LeNet-5."""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from flipguard.models.classifier import (
    Classifier,
    GlobalAveragePool,
    check_positive,
    classifier,
    initialise,
    normalised,
)
from flipguard.types import InputError


def mlp(
    *,
    classes: int,
    input_size: int = 64,
    hidden: Sequence[int] = (64,),
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """A perceptron with ReLU on inputs (B, …) of `input_size` numbers each; no BatchNorm.

    >>> mlp(classes=10, hidden=(32, 16)).feature_width
    16
    """
    _check_widths(hidden)
    check_positive(input_size=input_size, hidden=min(hidden))
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise((input_size, *hidden)):
        linear = nn.Linear(inputs, outputs)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        layers += [linear, nn.ReLU()]
    return classifier(nn.Sequential(*layers), hidden[-1], classes=classes, feature_width=feature_width, dropout=dropout)


def _check_widths(hidden: Any) -> None:
    """A spec gives what its YAML says, and one width is easily written without its brackets."""
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise InputError(f"hidden must be a list of widths, such as [300], it is {hidden!r}.")
    if not hidden:
        raise InputError("hidden must hold at least one width, for instance hidden=(64,).")


def cnn(
    *,
    classes: int,
    width: int = 16,
    in_channels: int = 1,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """Three convolutions with BatchNorm, one halving of the image, a global mean: for the 8 by 8 digits."""
    check_positive(width=width, in_channels=in_channels)
    body = nn.Sequential(
        *normalised(in_channels, width),
        *normalised(width, width),
        nn.MaxPool2d(2),
        *normalised(width, 2 * width),
        GlobalAveragePool(),
    )
    return classifier(initialise(body), 2 * width, classes=classes, feature_width=feature_width, dropout=dropout)


def lenet5(
    *,
    classes: int,
    image_size: int = 32,
    in_channels: int = 1,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> Classifier:
    """LeNet-5 (LeCun et al. 1998): two 5 by 5 convolutions, then layers of 120 and 84, on square images.

    ReLU and max pooling instead of the original's scaled tanh and trained averages, and full connections to its third
    layer: the form in use today. At 32 by 32 with one channel and 10 classes it has the well-known 61,706 parameters.
    """
    side = ((image_size - 4) // 2 - 4) // 2
    if side < 1:
        raise InputError(f"lenet5 needs images of at least 16 by 16, got image_size={image_size}.")
    check_positive(in_channels=in_channels)
    body = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, 6, 5),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(6, 16, 5),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            linear1=nn.Linear(16 * side**2, 120),
            relu3=nn.ReLU(),
            linear2=nn.Linear(120, 84),
            relu4=nn.ReLU(),
        )
    )
    return classifier(initialise(body), 84, classes=classes, feature_width=feature_width, dropout=dropout)
