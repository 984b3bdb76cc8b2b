"""Students: what is trained, with a leading member axis.

A method that trains something else than one plain network says so by a method of its own,
`student(build, *, decay_all)`, where `build(j)` gives a new network from the j-th of the run's initialisations. A
student that has `after_step(done)` is told after each update how many there have been.
"""

from typing import Any

from torch import nn

from flipguard.ensembles.combine import features_and_logits
from flipguard.types import Output


class SingleStudent(nn.Module):
    """One plain network: M = 1, and it is released as it is."""

    members = 1

    def __init__(self, network: nn.Module, *, decay_all: bool = True) -> None:
        super().__init__()
        self.network = network
        self.decay_all = decay_all

    def forward(self, x: Any, *, features: bool = False) -> Output:
        """Logits (1, B, C); features (1, B, D) when asked for."""
        if not features:
            return Output(self.network(x)[None])
        found, logits = features_and_logits(self.network, x)
        return Output(logits[None], found[None])

    def parameter_groups(self) -> list[dict[str, Any]]:
        return decay_groups(self.network, decay_all=self.decay_all)

    def release(self) -> nn.Module:
        return self.network


def decay_groups(network: nn.Module, *, decay_all: bool) -> list[dict[str, Any]]:
    """All parameters in one group, or vectors (BatchNorm, biases) in one of their own without weight decay.

    A network that was built for fine-tuning says by `backbone_rate` what share of the learning rate everything but its
    head gets; the head is then in groups of its own.
    """
    rate = getattr(network, "backbone_rate", None)
    parameters = [p for p in network.parameters() if p.requires_grad]
    if rate is None:
        return _decayed(parameters, decay_all=decay_all)
    head = {id(p) for p in network.head.parameters()}
    body = _decayed([p for p in parameters if id(p) not in head], decay_all=decay_all)
    return [
        *({**group, "rate": rate} for group in body),
        *_decayed([p for p in parameters if id(p) in head], decay_all=decay_all),
    ]


def _decayed(parameters: list[nn.Parameter], *, decay_all: bool) -> list[dict[str, Any]]:
    if decay_all:
        return [{"params": parameters}]
    matrices = [p for p in parameters if p.ndim > 1]
    vectors = [p for p in parameters if p.ndim <= 1]
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
