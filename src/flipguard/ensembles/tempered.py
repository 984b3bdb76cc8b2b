"""A network whose logits are divided by a temperature: members of different kinds made equally sure of themselves."""

from typing import Any

from torch import Tensor, nn

from flipguard.types import InputError


class TemperedHead(nn.Module):
    """A head whose logits are divided by a temperature."""

    def __init__(self, head: nn.Module, temperature: float) -> None:
        super().__init__()
        self.head, self.temperature = head, temperature

    def forward(self, features: Tensor) -> Tensor:
        return self.head(features) / self.temperature


class Tempered(nn.Module):
    """`forward(x)` is the network's logits divided by `temperature`; features stay as they are.

    ELODI's Table 8 calibrates the members of a mixed guiding ensemble so (Guo et al. 2017): fit each member's
    temperature on validation samples with `flipguard.metrics.fit_temperature`, and give the wrapped members to a
    `NetworkReference`.

    >>> import torch
    >>> Tempered(nn.Identity(), 2.0)(torch.tensor([[4.0, 2.0]]))
    tensor([[2., 1.]])
    """

    def __init__(self, network: nn.Module, temperature: float) -> None:
        super().__init__()
        if not temperature > 0:
            raise InputError(f"a temperature must be above 0, got {temperature}.")
        self.network, self.temperature = network, temperature
        self.differentiable = getattr(network, "differentiable", True)
        if hasattr(network, "features") and isinstance(getattr(network, "head", None), nn.Module):
            self.features, self.head = network.features, TemperedHead(network.head, temperature)

    def forward(self, x: Any) -> Tensor:
        return self.network(x) / self.temperature
