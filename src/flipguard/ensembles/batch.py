"""BatchEnsemble: M members in one network, and the one plain network that they are merged into."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flipguard.ensembles.combine import combined, features_and_logits
from flipguard.ensembles.rank_one import convert, factor_parameters, restore
from flipguard.types import InputError, Output

Init = Literal["ones", "normal"]
Merge = Literal["mean_of_products", "product_of_means"]


class BatchEnsemble(nn.Module):
    """A network whose convolutions and linear layers have M members' rank-one factors; see `batch_ensemble`.

    `forward(x)` answers for all of them, with logits (B, C) of their mean probability; `each(x)` gives every member's
    own. In training the members go through as one folded pass of M·B rows, so that BatchNorm sees all of them; in
    evaluation one by one, M passes of B rows, in which a member whose factors are 1 is the plain network to the last
    bit.
    """

    def __init__(self, network: nn.Module, members: int, *, std: float = 0.0, folded: bool | None = None) -> None:
        super().__init__()
        if members < 1 or not std >= 0:
            raise InputError(
                f"a BatchEnsemble needs at least 1 member and a std of at least 0, got {members} and {std}."
            )
        if any(isinstance(module, BatchEnsemble) for module in network.modules()):
            raise InputError("this network is a BatchEnsemble already: merge it first.")
        self.members = members
        self.network = _copied(network)
        self.turn = convert(self.network, members, std)
        if folded and not self.turn.foldable:
            raise InputError(
                f"{type(network).__name__} cannot be folded: its batch is not on the first axis everywhere, or a layer "
                "takes its weight apart. Leave folded out."
            )
        self.turn.foldable = self.turn.foldable if folded is None else folded
        if not factor_parameters(self.network):
            raise InputError(f"{type(network).__name__} has no convolution or linear layer to make members of.")

    @property
    def folded(self) -> bool:
        """Whether training passes are folded."""
        return self.turn.foldable

    def forward(self, x: Any) -> Tensor:
        return combined(self.each(x).logits, "probabilities")

    def each(self, x: Any, *, features: bool = False) -> Output:
        """Every member's logits (M, B, C) and, when asked for, features (M, B, D)."""
        parts = self._folded_pass(x, features) if self.training and self.folded else self._passes(x, features)
        return Output(*parts) if features else Output(parts[0])

    def chosen(self, x: Any, which: Tensor) -> Tensor:
        """One member's logits (B, C), by its index in a tensor (1,), in a pass of its own."""
        with self._turn(which):
            return self._answer(x, False)[0]

    def _folded_pass(self, x: Any, features: bool) -> tuple[Tensor, ...]:
        with self._turn(None):
            answers = self._answer(_repeated(x, self.members), features)
        for answer in answers:
            if answer.shape[0] % self.members:
                raise InputError(
                    f"{type(self.network).__name__} gave {answer.shape[0]} rows for {self.members} members: use "
                    "batch_ensemble(…, folded=False)."
                )
        return tuple(answer.unflatten(0, (self.members, -1)) for answer in answers)

    def _passes(self, x: Any, features: bool) -> tuple[Tensor, ...]:
        device = next(self.network.parameters()).device
        answers = []
        for member in torch.arange(self.members, device=device).split(1):
            with self._turn(member):
                answers.append(self._answer(x, features))
        return tuple(torch.stack(parts) for parts in zip(*answers, strict=True))

    def _answer(self, x: Any, features: bool) -> tuple[Tensor, ...]:
        if not features:
            return (self.network(x),)
        found, logits = features_and_logits(self.network, x)
        return logits, found

    @contextmanager
    def _turn(self, member: Tensor | None) -> Iterator[None]:
        self.turn.member, self.turn.folding = member, member is None
        try:
            yield
        finally:
            self.turn.member, self.turn.folding = None, False
            self.turn.made.clear()


def batch_ensemble(
    network: nn.Module, members: int, *, init: Init = "ones", std: float = 0.5, folded: bool | None = None
) -> BatchEnsemble:
    """A network as a BatchEnsemble: member m's weights are θ ∘ (s_m r_mᵀ) (Wen et al. 2020; LatentBE, Sec. 2.3).

    Every convolution and linear layer of a copy of the network gets r (M, C_in) and s (M, C_out): all 1 ("ones",
    LatentBE), or normal around 1 with `std` from torch's global generator ("normal", plain BatchEnsemble). Attention's
    input projections (nn.MultiheadAttention) are one linear layer each. Weights, biases, BatchNorm and everything else
    are shared, and keep the values that they have.

    `folded` says whether training sends all members through in one pass. By default it does, unless a layer's batch is
    on another axis than the first, or a layer has no place for it (nn.MultiheadAttention, a subclass with a `forward`
    of its own): those networks make M passes, in which BatchNorm sees each member's rows apart. A network that moves
    the batch to another axis by itself needs folded=False; `check_folding` finds out.

    >>> ensemble = batch_ensemble(nn.Linear(2, 3), 5)
    >>> ensemble.each(torch.ones(7, 2)).logits.shape, ensemble(torch.ones(7, 2)).shape
    (torch.Size([5, 7, 3]), torch.Size([7, 3]))
    """
    if init not in get_args(Init):
        raise InputError(f"init must be 'ones' or 'normal', got '{init}'.")
    return BatchEnsemble(network, members, std=std if init == "normal" else 0.0, folded=folded)


def merge(
    ensemble: BatchEnsemble, *, how: Merge = "mean_of_products", weights: Sequence[float] | None = None
) -> nn.Module:
    """One plain network with the members' average weights, of the class and with the names that it was made of.

    θ ∘ Σ_m w_m s_m r_mᵀ (LatentBE, Eq. 5), or θ ∘ (Σ_m w_m s_m)(Σ_m w_m r_m)ᵀ as in the authors' released code
    ("product_of_means"). The weights are 1/M each unless given: (1, 0, …) is the first member alone, (1 - t, t) a point
    on the line between two (Eq. 15).

    >>> plain = nn.Linear(2, 3)
    >>> merged = merge(batch_ensemble(plain, 5))
    >>> type(merged).__name__, bool((merged.weight == plain.weight).all())
    ('Linear', True)
    """
    if how not in get_args(Merge):
        raise InputError(f"members are merged by {' or '.join(get_args(Merge))}, not '{how}'.")
    given = [1 / ensemble.members] * ensemble.members if weights is None else list(weights)
    if len(given) != ensemble.members:
        raise InputError(f"expected one weight for each of {ensemble.members} members, got {len(given)}.")
    network = _copied(ensemble.network)
    with torch.no_grad():
        restore(network, torch.tensor(given, dtype=torch.float64), of_products=how == "mean_of_products")
    return network


@torch.no_grad()
def check_folding(ensemble: BatchEnsemble, x: Any) -> None:
    """Whether the members stay apart in a folded pass over x; InputError when they do not. Costs one pass of a copy.

    The first member's factors are made nan, in evaluation mode: what it reaches is nan, and that must be its own rows.
    """
    if not ensemble.folded:
        return
    broken = copy.deepcopy(ensemble).eval()
    for factor in factor_parameters(broken.network):
        factor[0] = torch.nan
    (logits,) = broken._folded_pass(x, False)
    reached = logits.isnan().flatten(1)
    if not bool(reached[0].all()) or bool(reached[1:].any()):
        raise InputError(
            f"in a folded pass the members of {type(ensemble.network).__name__} reach each other's rows: use "
            "batch_ensemble(…, folded=False)."
        )


def _copied(network: nn.Module) -> nn.Module:
    """A copy with weights of its own, outside of any graph."""
    tensors = [*network.parameters(), *network.buffers()]
    # By hand, as a tensor's own deepcopy looks at memory that a tensor without values has not.
    own = {id(t): t.detach().clone() for t in tensors}
    own |= {id(t): nn.Parameter(own[id(t)], t.requires_grad) for t in network.parameters()}
    return copy.deepcopy(network, own)


def _repeated(x: Any, members: int) -> Any:
    """The rows once for each member, one member's after another's."""
    if isinstance(x, dict):
        return {name: _repeated(value, members) for name, value in x.items()}
    return torch.cat([x] * members)
