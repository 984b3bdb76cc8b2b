"""Between the old and the new weights: interpolation and soups, without any training of their own."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from flipguard.ensembles import average_weights, interpolate, recompute_statistics
from flipguard.methods.card import Card
from flipguard.methods.checks import check_shares
from flipguard.types import Batch, InputError

ALPHAS = tuple(tenth / 10 for tenth in range(10))
Share = float | Literal["validation"]
"""The old network's share α; "validation" leaves it to `choose_alpha`, as `flipguard train` does it."""


def _check_share(alpha: Share) -> None:
    if alpha != "validation":
        check_shares(alpha=alpha)


def _settled(alpha: Share) -> float:
    if isinstance(alpha, str):
        raise InputError("alpha is still to be chosen on validation data: take the one that choose_alpha finds.")
    return alpha


@dataclass(frozen=True)
class WeightInterpolation:
    """θ = α·θ_old + (1 - α)·θ_new (Schumann et al. 2023, BCWI): called with both networks, returns a third.

    The new network must have been trained from the old one's weights, or from the same pretrained start. With
    BatchNorm pass `batches` of training data: the statistics are then measured anew. `choose_alpha` finds an α.
    """

    alpha: Share = 0.5

    def __post_init__(self) -> None:
        _check_share(self.alpha)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("old",)

    def __call__(self, old: nn.Module, new: nn.Module, *, batches: Iterable[Batch] | None = None) -> nn.Module:
        return _measured(interpolate(old, new, _settled(self.alpha)), batches)


@dataclass(frozen=True)
class Soup:
    """θ = α·θ_old + (1 - α)·mean_j θ_j over several new networks from one start (Wortsman et al. 2022; BCWI's soup).

    α = 0, the default, needs no old network. The networks differ in what they were fine-tuned with, not in their start.
    """

    alpha: Share = 0.0

    def __post_init__(self) -> None:
        _check_share(self.alpha)

    @property
    def needs(self) -> tuple[str, ...]:
        return ("ensemble",) if self.alpha == 0 else ("ensemble", "old")

    def __call__(
        self, networks: Sequence[nn.Module], *, old: nn.Module | None = None, batches: Iterable[Batch] | None = None
    ) -> nn.Module:
        alpha, mean = _settled(self.alpha), average_weights(networks)
        if alpha == 0:
            return _measured(mean, batches)
        if old is None:
            raise InputError(f"a soup with alpha={alpha} is mixed with the old network: pass old=.")
        return _measured(interpolate(old, mean, alpha), batches)


def _measured(network: nn.Module, batches: Iterable[Batch] | None) -> nn.Module:
    return network if batches is None else recompute_statistics(network, batches)


@dataclass(frozen=True)
class Tried:
    """One α on validation data: the error of the mixed network, and its negative flip rate against the old one."""

    alpha: float
    error_rate: float
    negative_flip_rate: float


@dataclass(frozen=True)
class Choice:
    """The α that was chosen, and all that were tried."""

    alpha: float
    tried: tuple[Tried, ...]


def choose_alpha(
    old: nn.Module,
    new: nn.Module,
    validation: Sequence[Batch],
    *,
    alphas: Sequence[float] = ALPHAS,
    tolerance: float = 0.0,
    batches: Iterable[Batch] | None = None,
) -> Choice:
    """The α of the smallest negative flip rate among those whose error is at most the new network's plus `tolerance`.

    `validation` holds samples that the release is not judged by afterwards; `batches`, training data for BatchNorm's
    statistics, are gone through once for each α. α = 1, the old network itself, is not tried unless asked for: it has
    no flips and is no update. Of equal rates the smallest α, the nearest to the new network, is taken.
    """
    if not alphas or not validation:
        raise InputError("choose_alpha needs at least one alpha and one batch of validation data.")
    y = torch.cat([batch.y for batch in validation])
    right = _predictions(old, validation) == y
    limit = _error(_predictions(new, validation), y) + tolerance
    tried = []
    for alpha in sorted(alphas):
        mixed = WeightInterpolation(alpha)(old, new, batches=None if alpha == 0 else batches)
        said = _predictions(mixed, validation)
        tried.append(Tried(alpha, _error(said, y), float((right & (said != y)).float().mean())))
    allowed = [one for one in tried if one.error_rate <= limit]
    if not allowed:
        best = min(tried, key=lambda one: one.error_rate)
        raise InputError(
            f"no alpha keeps the error at {limit:.4f}; the best, {best.alpha}, has {best.error_rate:.4f}: "
            "add 0 to the alphas, or allow a tolerance."
        )
    return Choice(min(allowed, key=lambda one: (one.negative_flip_rate, one.alpha)).alpha, tuple(tried))


@torch.no_grad()
def _predictions(network: nn.Module, batches: Sequence[Batch]) -> Tensor:
    """(N,) class codes, in evaluation mode."""
    training = network.training
    network.eval()
    said = torch.cat([network(batch.x).argmax(-1) for batch in batches])
    network.train(training)
    return said


def _error(said: Tensor, y: Tensor) -> float:
    return float((said != y).float().mean())


CARDS = (
    Card(
        name="weight_interpolation",
        summary="Mixes the old network's weights with those of the new one that was trained from it.",
        kind="post-hoc",
        paper="Schumann et al. 2023 (BCWI)",
        equation="-",
        training_cost="1",
        references=("old",),
        factory=WeightInterpolation,
    ),
    Card(
        name="soup",
        summary="Averages the weights of several new networks that had one start.",
        kind="post-hoc",
        paper="Wortsman et al. 2022; Schumann et al. 2023 (BCWI)",
        equation="-",
        training_cost="m",
        references=("ensemble",),
        factory=Soup,
    ),
)
