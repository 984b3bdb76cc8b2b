"""Layers with a rank-one factor per member: member m's weight is θ ∘ (s_m r_mᵀ), all else is shared.

A layer keeps its object, its names and its own `forward`: only its class is exchanged, for a subclass whose weight is
that of the member whose turn it is. So a network's code need not know, also where it reads a layer's weight itself.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.types import InputError

_ATTENTION = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
_PLAIN = {layer.forward for layer in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}


@dataclass(eq=False)
class Turn:
    """Whose pass it is; one object for all layers of a network.

    `member` (1,) is the index of the only one; None means a folded pass, of `members` groups of rows one after another.
    `folding` is set within a folded pass, `made` holds the weights of the present member.
    """

    members: int
    foldable: bool = True
    member: Tensor | None = None
    folding: bool = False
    made: dict[tuple[int, str], Tensor] = field(default_factory=dict)


class RankOne:
    """What a converted layer's class has besides the layer's own; `plain` is the class that it was."""

    plain: type[nn.Module]
    names: tuple[str, ...]
    turn: Turn
    _parameters: dict[str, Any]

    def factors(self, name: str) -> tuple[Tensor, Tensor]:
        """r (M, C_in) and s (M, C_out) of one weight. They are stored as r - 1 and s - 1: decay pulls them to 1."""
        return 1 + self._deviation(f"{name}_r"), 1 + self._deviation(f"{name}_s")

    def _deviation(self, name: str) -> Tensor:
        deviation: Tensor = self._parameters[name]
        if torch.is_grad_enabled() and deviation.requires_grad:
            # Adds zero, and makes the gradient M times as large: the student's loss reaches the shared weights as the
            # mean over members, but each factor has a member of its own (Algorithm 1, line 5).
            deviation = deviation + (self.turn.members - 1) * (deviation - deviation.detach())
        return deviation

    def weight_of(self, name: str, member: Tensor) -> Tensor:
        """θ ∘ (s_m r_mᵀ) for the member (1,)."""
        key = (id(self), name)
        if key not in self.turn.made:
            weight, recorded = self._parameters[name], torch.is_grad_enabled()
            # Torch chooses kernels by whether a weight asks for gradients and is no inference tensor; this one must be
            # like the plain network's, or the last bit may differ.
            with torch.inference_mode(False), torch.set_grad_enabled(recorded):
                r, s = (factor.index_select(0, member)[0] for factor in self.factors(name))
                made = weight * outer(r, s, weight, getattr(self, "groups", 1))
                self.turn.made[key] = made if recorded else made.requires_grad_(weight.requires_grad)
        return self.turn.made[key]

    def averaged(self, name: str, weights: Tensor, *, of_products: bool) -> Tensor:
        """θ ∘ Σ_m w_m s_m r_mᵀ, or θ ∘ (Σ_m w_m s_m)(Σ_m w_m r_m)ᵀ, computed in float64; weights w (M,)."""
        weight = self._parameters[name].detach()
        r, s = (factor.detach().double() for factor in self.factors(name))
        share, wide, groups = weights.double().to(r.device), weight.double(), getattr(self, "groups", 1)
        if not of_products:
            return (wide * outer(share @ r, share @ s, weight, groups)).to(weight.dtype)
        product = sum(w * outer(mine, theirs, weight, groups) for w, mine, theirs in zip(share, r, s, strict=True))
        return (wide * product).to(weight.dtype)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.turn.member is None:
            if not self.turn.foldable:
                raise InputError(
                    "a BatchEnsemble that cannot be folded has no pass of its own outside of its forward; activations "
                    "of such a network cannot be computed again: set checkpoint_activations=False."
                )
            return self._folded(*args, **kwargs)
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def _folded(self, x: Tensor) -> Tensor:
        """Each member's weight times its own rows, plus bias; x (M·n, …) with one member's n rows after another's.

        Factors could go to the activations instead, s ∘ (θ (r ∘ x)), and the rows through one product of θ. A weight
        mostly has far fewer values than what passes through it (`benchmarks/factors.py` measures both).
        """
        members = self.turn.members
        if x.shape[0] % members:
            raise InputError(
                f"a folded pass needs one group of rows per member, but {self.plain.__name__} got {x.shape[0]} rows "
                f"for {members} members: use batch_ensemble(…, folded=False)."
            )
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        r, s = self.factors("weight")
        weights = weight * outer(r, s, weight, getattr(self, "groups", 1))
        kind = x.device.type
        if x.is_floating_point() and torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            # Once for all members, where autocast would cast each one's by itself.
            weights = weights.to(torch.get_autocast_dtype(kind))
        if not isinstance(self, nn.Linear):
            each = zip(x.chunk(members), weights.flatten(0, 1).chunk(members), strict=True)
            return torch.cat([self._conv_forward(own, theta, bias) for own, theta in each])  # type: ignore[attr-defined]
        y = x.unflatten(0, (members, x.shape[0] // members)).flatten(1, -2) @ weights.transpose(1, 2)
        return (y if bias is None else y + bias.to(y.dtype)).reshape(*x.shape[:-1], len(weight))


def outer(r: Tensor, s: Tensor, weight: Tensor, groups: int) -> Tensor:
    """s rᵀ, which broadcasts against a weight (C_out, C_in / groups, …); r (…, C_in), s (…, C_out).

    >>> outer(torch.tensor([2.0, 3.0]), torch.tensor([5.0, 7.0]), torch.empty(2, 2), 1)
    tensor([[10., 15.],
            [14., 21.]])
    """
    (out, inner), lead = weight.shape[:2], r.shape[:-1]
    own = r.reshape(*lead, groups, 1, inner).expand(*lead, groups, out // groups, inner).reshape(*lead, out, inner)
    return (s[..., None] * own).reshape(*lead, out, inner, *[1] * (weight.ndim - 2))


def convert(network: nn.Module, members: int, std: float) -> Turn:
    """Give every convolution, linear layer and attention projection of a network its factors, in place.

    Deviations from 1 are normal with `std`, from torch's global generator. A weight that is tied to a layer of another
    kind (an embedding) stays as it is; layers that share one weight share its factors.
    """
    layers = list(network.modules())
    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for layer in layers:
        for name, parameter in layer._parameters.items():
            owners.setdefault(id(parameter), []).append((layer, name))
    turn = Turn(members)
    made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for layer in layers:
        names = _weights(layer)
        names = [n for n in names if all(own in _weights(other) for other, own in owners[id(layer._parameters[n])])]
        for name in names:
            key = id(layer._parameters[name])
            made[key] = made.get(key) or _new_factors(layer, name, members, std)
            layer.register_parameter(f"{name}_r", made[key][0])
            layer.register_parameter(f"{name}_s", made[key][1])
        turn.foldable = turn.foldable and _foldable(layer)
        if names:
            plain: Any = type(layer)
            layer.__class__, layer.turn = _class(plain, tuple(names)), turn
    return turn


def restore(network: nn.Module, weights: Tensor, *, of_products: bool) -> None:
    """The layers as they were, in place, with the members' weighted average; weights (M,)."""
    made: dict[int, nn.Parameter] = {}
    for layer in [layer for layer in network.modules() if isinstance(layer, RankOne)]:
        for name in layer.names:
            raw = layer._parameters[name]
            if id(raw) not in made:
                average = layer.averaged(name, weights, of_products=of_products)
                made[id(raw)] = nn.Parameter(average, requires_grad=raw.requires_grad)
            layer._parameters[name] = made[id(raw)]
        for name in layer.names:
            del layer._parameters[f"{name}_r"], layer._parameters[f"{name}_s"]
        del layer.turn
        layer.__class__ = layer.plain


def factor_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Every r - 1 and s - 1 (M, width), each once."""
    layers = [layer for layer in network.modules() if isinstance(layer, RankOne)]
    found = [layer._parameters[f"{name}_{side}"] for layer in layers for name in layer.names for side in "rs"]
    return list({id(parameter): parameter for parameter in found}.values())


def _weights(layer: nn.Module) -> list[str]:
    """The names of a layer's weights that take factors."""
    if isinstance(layer, RankOne):
        return list(layer.names)
    if isinstance(layer, nn.MultiheadAttention):
        return [name for name in _ATTENTION if layer._parameters.get(name) is not None]
    if not isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return []
    if layer._parameters.get("weight") is None:
        raise InputError(
            f"a {type(layer).__name__} computes its weight from others (weight or spectral norm): remove its "
            "parametrisations before making a BatchEnsemble of it."
        )
    return ["weight"]


def _new_factors(layer: nn.Module, name: str, members: int, std: float) -> tuple[nn.Parameter, nn.Parameter]:
    weight = layer._parameters[name]
    widths = weight.shape[1] * getattr(layer, "groups", 1), weight.shape[0]
    r, s = (torch.zeros(members, width, dtype=weight.dtype, device=weight.device) for width in widths)
    return nn.Parameter(r.normal_(0, std) if std else r), nn.Parameter(s.normal_(0, std) if std else s)


def _foldable(layer: nn.Module) -> bool:
    """Whether the members' rows can go through a layer one after another in one pass.

    Not where the batch is on another axis than the first, and not where a `forward` of its own does more with the
    weight than torch's, or attention takes weights rather than layers.
    """
    if isinstance(layer, nn.MultiheadAttention):
        return False
    if isinstance(layer, nn.RNNBase):
        return bool(layer.batch_first)
    if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        plain = layer.plain if isinstance(layer, RankOne) else type(layer)
        return plain.forward in _PLAIN
    return True


@cache
def _class(plain: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    body = {"plain": plain, "names": names, **{name: property(_reader(name)) for name in names}}
    return type(f"RankOne{plain.__name__}", (RankOne, plain), body)


def _reader(name: str) -> Any:
    """A layer's weight as its code reads it: the present member's, and the shared one between passes."""

    def read(layer: Any) -> Tensor:
        if layer.turn.folding:
            raise InputError(
                f"the network reads the weight of a {layer.plain.__name__} without calling the layer, which has no one "
                "weight in a folded pass: use batch_ensemble(…, folded=False)."
            )
        if layer.turn.member is None:
            return layer._parameters[name]
        return layer.weight_of(name, layer.turn.member)

    return read
