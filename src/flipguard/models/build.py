"""Networks by name."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

from torch import nn

from flipguard._nearest import nearest
from flipguard.models.adapters import ADAPTERS, user_model
from flipguard.models.densenet import densenet
from flipguard.models.preactivation import resnet_v2, wide_resnet
from flipguard.models.resnet import cifar_resnet, resnet
from flipguard.models.small import cnn, lenet5, mlp
from flipguard.models.transformer import text_transformer
from flipguard.models.vgg import vgg
from flipguard.types import InputError

MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet5": lenet5,
    "resnet20": partial(cifar_resnet, 20),
    "resnet32": partial(cifar_resnet, 32),
    "resnet56": partial(cifar_resnet, 56),
    "resnet10": partial(resnet, (1, 1, 1, 1), False),
    "resnet18": partial(resnet, (2, 2, 2, 2), False),
    "resnet34": partial(resnet, (3, 4, 6, 3), False),
    "resnet50": partial(resnet, (3, 4, 6, 3), True),
    "resnet20_v2": partial(wide_resnet, 3, 1),
    "resnet56_v2": partial(wide_resnet, 9, 1),
    "resnet50_v2": partial(resnet_v2, (3, 4, 6, 3)),
    "wrn28_1": partial(wide_resnet, 4, 1),
    "wrn28_4": partial(wide_resnet, 4, 4),
    "vgg11": partial(vgg, (1, 1, 2, 2, 2)),
    "vgg13": partial(vgg, (2, 2, 2, 2, 2)),
    "vgg16": partial(vgg, (2, 2, 3, 3, 3)),
    "densenet40": partial(densenet, 40, False),
    "densenet100": partial(densenet, 100, True),
    "text_transformer": text_transformer,
}
"""The networks of this room by name. Each is called with `classes` and its options, all by keyword."""


def model_names() -> tuple[str, ...]:
    """The names of this room's own networks, in order of the alphabet.

    >>> "resnet18" in model_names()
    True
    """
    return tuple(sorted(MODELS))


def build_model(name: str, *, classes: int, **options: Any) -> nn.Module:
    """A new network with `forward(x)` -> logits (B, C), `features(x)` -> (B, D), `head` and `feature_width`.

    The name is one of `MODELS`, or `timm:NAME`, `torchvision:NAME`, `transformers:FOLDER`, `pretrained:NAME`,
    `onnx:FILE` (logits alone, nothing to train), or `package.module:factory` for the user's own. The caller seeds
    torch's global generator, the only source of the start weights.

    >>> build_model("resnet18", classes=10, width=32).feature_width
    256
    >>> build_model("resnet-18", classes=10)
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: there is no model 'resnet-18'; did you mean 'resnet18'?
    """
    if classes < 2:
        raise InputError(f"a classifier needs at least 2 classes, got {classes}.")
    prefix, colon, rest = name.partition(":")
    if colon and prefix in ADAPTERS:
        return ADAPTERS[prefix](rest, classes=classes, **options)
    if colon:
        return user_model(name, classes=classes, **options)
    if name not in MODELS:
        raise InputError(f"there is no model '{name}'{nearest(name, MODELS)}")
    known = [option for option in signature(MODELS[name]).parameters if option != "classes"]
    for option in options:
        if option not in known:
            raise InputError(f"{name} has no option '{option}'{nearest(option, known)}")
    return MODELS[name](classes=classes, **options)
