"""Any classifier as a body and a head: its last linear layer is taken out, and an identity stands in its place."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.models.classifier import Classifier, check_positive
from flipguard.types import InputError


class SplitClassifier(Classifier):
    """Somebody else's network: `body` is the network with an identity at `head_name`, where `head` stood.

    The features are what the body then gives. This needs no hooks, gives features and logits in one pass, and survives
    torch.func, compilation and graph capture. It is right where nothing but a choice of rows, tokens or fields follows
    the head; a softmax after it is refused by `check_split`, which compares with the network as it was.
    """

    def __init__(self, body: nn.Module, head: nn.Module, head_name: str, **options: Any) -> None:
        super().__init__(body, head, **options)
        self.head_name = head_name

    def whole(self) -> nn.Module:
        """A copy of the network as its author wrote it, head in place, with the weights as they are now.

        A bottleneck goes in before the head; dropout, which a released network does not need, is left out.
        """
        narrow = not isinstance(self.bottleneck, nn.Identity)
        network = deepcopy(self.body)
        head = nn.Sequential(self.bottleneck, self.head) if narrow else self.head
        network.set_submodule(self.head_name, deepcopy(head))
        return network

    def from_whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Weights by the names that the author's network gives them, under the names here; others stay as they are."""
        # An author's head may be called `head` too, so the names as a whole decide.
        if set(tensors) == set(self.state_dict()) or f"{self.head_name}.weight" not in tensors:
            return dict(tensors)
        parts = {name: name.removeprefix(f"{self.head_name}.") for name in tensors}
        return {f"body.{name}" if rest == name else f"head.{rest}": tensors[name] for name, rest in parts.items()}


def split(
    network: nn.Module,
    *,
    classes: int,
    head: str | None = None,
    feature_width: int | None = None,
    dropout: float = 0.0,
    outputs: int | None = None,
) -> SplitClassifier:
    """Takes the head out of a network: the layer named `head`, or else the last nn.Linear with `classes` outputs.

    "Last" is the order in which the layers were registered. Pretrained weights of other classes: say with `outputs` how
    many the present head has, and a fresh one for `classes` takes its place. The network itself is changed.

    >>> network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> model = split(network, classes=2)
    >>> model.head_name, model.feature_width
    ('2', 3)
    """
    if isinstance(network, nn.Linear):
        network = nn.Sequential(network)
    present = classes if outputs is None else outputs
    name = find_head(network, present) if head is None else head
    old = _linear(network, name)
    if old.out_features != present:
        raise InputError(f"the head '{name}' has {old.out_features} outputs, expected {present}.")
    network.set_submodule(name, nn.Identity())
    width, bottleneck = old.in_features, None
    if feature_width is not None:
        check_positive(feature_width=feature_width)
        bottleneck, width = nn.Linear(width, feature_width), feature_width
    fresh = present != classes or feature_width is not None
    layer = nn.Linear(width, classes) if fresh else old
    return SplitClassifier(network, layer, name, bottleneck=bottleneck, dropout=dropout)


def find_head(network: nn.Module, outputs: int) -> str:
    """The dotted name of the last nn.Linear with that many outputs."""
    linear = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear) and name}
    fitting = [name for name, layer in linear.items() if layer.out_features == outputs]
    if fitting:
        return fitting[-1]
    found = ", ".join(f"{name} ({layer.out_features})" for name, layer in list(linear.items())[-3:]) or "none"
    raise InputError(
        f"{type(network).__name__} has no linear layer with {outputs} outputs inside it (its last ones: {found}); "
        "name its head with the option head='…', or give the factory's network that many outputs."
    )


def check_split(model: SplitClassifier, x: Any) -> None:
    """Compares the split network with the original on one batch, both in eval mode; InputError when they differ.

    Catches what comes after the head: a softmax, a scale, a sum of two heads. Costs two forward passes; call it once,
    before training.
    """
    with torch.no_grad():
        logits = model.whole().eval()(x)
        try:
            # On a copy too: setting the mode back would not know which layers stood in eval mode before.
            split_logits = deepcopy(model).eval()(x)
        except (RuntimeError, TypeError, AttributeError):
            # Without the head in its place the shapes, or the types, no longer fit.
            split_logits = None
    comparable = split_logits is not None and isinstance(logits, Tensor) and logits.shape == split_logits.shape
    if not comparable or not torch.allclose(logits, split_logits, rtol=1e-3, atol=1e-4, equal_nan=True):
        raise InputError(
            f"{type(model.body).__name__} does something after its last linear layer '{model.head_name}' (a softmax?); "
            "it must return that layer's logits. Remove it, or name the right layer with the option head='…'."
        )


def _linear(network: nn.Module, name: str) -> nn.Linear:
    try:
        layer = network.get_submodule(name)
    except AttributeError:
        raise InputError(f"{type(network).__name__} has no layer '{name}' to use as its head.") from None
    if not isinstance(layer, nn.Linear):
        raise InputError(f"the head '{name}' must be an nn.Linear, it is a {type(layer).__name__}.")
    return layer
