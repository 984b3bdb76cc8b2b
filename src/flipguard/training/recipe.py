"""How a network is trained: optimiser, schedule, precision. The same for every method."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from flipguard.types import InputError

Schedule = Literal["constant", "step", "cosine", "one_cycle"]
Optimiser = Literal["sgd", "adamw"]
Precision = Literal["float32", "bf16"]
_FALLING = ("cosine", "one_cycle")
_CHOICES = {"schedule": get_args(Schedule), "optimiser": get_args(Optimiser), "precision": get_args(Precision)}


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of training that do not belong to a method.

    `warmup` is a share of all steps, over which the rate rises from 0 (one_cycle: from a 25th of its peak). `step`
    multiplies the rate by 0.1 at each third of training, as ELODI's 30-60-90. The whole schedule is gone through
    `cycles` times, for snapshot ensembles. `cosine` and `one_cycle` fall to `floor`, a share of their peak, and stay
    there for the last share `tail` of a cycle's steps. With `average` the mean of the weights after each of the last so
    many epochs is released, its BatchNorm's statistics measured anew (SWA, Izmailov et al. 2018). With `views` a
    network that is held to references meets so many augmented forms of each sample, again and again, and the references
    are asked of each once, before the first step. With `dealt` the rows of each batch are dealt out among the networks
    of a reference, so that each row is answered by one of them. With `scales` the student meets images at these shares
    of their sides, each for an equal part of the epochs, and at the last whole. BatchNorm and biases are not decayed
    when `decay_all` is off. `accumulate` splits a batch into that many parts, one after another, and
    `checkpoint_activations` computes each block's activations again in the backward pass: both for less memory. When
    `clip_norm` is set, gradients are scaled down to at most that norm.
    """

    epochs: int = 16
    batch_size: int = 128
    optimiser: Optimiser = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    decay_all: bool = True
    schedule: Schedule = "one_cycle"
    warmup: float = 0.2
    cycles: int = 1
    floor: float = 0.0
    tail: float = 0.0
    average: int = 0
    views: int = 0
    dealt: bool = False
    scales: tuple[float, ...] = ()
    precision: Precision = "float32"
    channels_last: bool = False
    accumulate: int = 1
    checkpoint_activations: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "scales", tuple(self.scales))
        except TypeError as error:
            raise InputError(f"scales must be a list of shares, got {self.scales!r}.") from error
        for name in ("epochs", "batch_size", "accumulate", "cycles"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, got '{getattr(self, name)}'.")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise InputError(
                f"learning_rate must be above 0 and weight_decay not below, got {self.learning_rate} and "
                f"{self.weight_decay}."
            )
        if not 0 <= self.warmup < 1 or not 0 <= self.momentum < 1:
            raise InputError(
                f"warmup and momentum must be at least 0 and below 1, got {self.warmup} and {self.momentum}."
            )
        if not 0 <= self.floor < 1 or not 0 <= self.tail < 1:
            raise InputError(f"floor and tail must be at least 0 and below 1, got {self.floor} and {self.tail}.")
        if (self.floor or self.tail) and self.schedule not in _FALLING:
            raise InputError(f"floor and tail have no meaning: the schedule {self.schedule} does not fall to a floor.")
        if self.tail and not self.floor:
            raise InputError("tail needs a floor above 0: at a rate of 0 nothing is learned.")
        if not self.warmup + self.tail < 1:
            raise InputError(f"warmup {self.warmup} and tail {self.tail} leave no steps between them.")
        if not 0 <= self.average <= self.epochs:
            raise InputError(f"average must be between 0 and the {self.epochs} epochs, got {self.average}.")
        if self.views < 0:
            raise InputError(f"views must be at least 1, or 0 for new ones in each epoch, got {self.views}.")
        if self.views and self.dealt:
            raise InputError("views keeps what all networks of a reference say, and dealt asks one: take either.")
        if not all(0 < scale <= 1 for scale in self.scales) or (self.scales and self.scales[-1] != 1):
            raise InputError(
                f"scales must be above 0 and at most 1, and the last of them 1, got {', '.join(map(str, self.scales))}."
            )
        if self.cycles > 1 and any(scale < 1 for scale in self.scales):
            raise InputError("scales end with whole images once, and each of several cycles is an end: take either.")
        if len(self.scales) > self.epochs:
            raise InputError(f"scales has {len(self.scales)} parts, and there are {self.epochs} epochs.")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InputError(f"clip_norm must be above 0, or None, got {self.clip_norm}.")
        if self.epochs % self.cycles:
            raise InputError(f"epochs {self.epochs} do not divide into {self.cycles} equal cycles.")
        if self.batch_size % self.accumulate:
            raise InputError(f"batch_size {self.batch_size} does not divide into {self.accumulate} equal parts.")


def rate(recipe: Recipe, step: int, steps: int) -> float:
    """The learning rate at a step of `steps`, as a multiple of the recipe's.

    >>> cosine = Recipe(schedule="cosine", warmup=0.0)
    >>> [round(rate(cosine, s, 4), 3) for s in (0, 2, 4)]
    [1.0, 0.5, 0.0]
    >>> tailed = Recipe(schedule="one_cycle", warmup=0.0, floor=0.1, tail=0.5)
    >>> [round(rate(tailed, s, 8), 3) for s in (0, 2, 4, 7)]
    [1.0, 0.55, 0.1, 0.1]
    """
    if recipe.cycles > 1:
        steps //= recipe.cycles
        step %= steps
    warm = max(1, round(recipe.warmup * steps)) if recipe.warmup > 0 else 0
    if step < warm:
        start = 0.04 if recipe.schedule == "one_cycle" else 0.0
        return start + (1 - start) * (step + 1) / warm
    done = min(1.0, (step - warm) / max(1, steps - warm - round(recipe.tail * steps)))
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "step":
        return 0.1 ** math.floor(3 * min(step / steps, 1 - 1e-9))
    left = 0.5 * (1 + math.cos(math.pi * done)) if recipe.schedule == "cosine" else 1.0 - done
    return recipe.floor + (1 - recipe.floor) * left


def build_optimiser(groups: list[dict[str, object]], recipe: Recipe, *, fused: bool = False) -> torch.optim.Optimizer:
    """SGD with Nesterov momentum, or AdamW, over the student's parameter groups.

    `fused` updates all parameters in a few kernels whose learning rate may be a tensor, as a captured step needs it.
    """
    if recipe.optimiser == "adamw":
        return torch.optim.AdamW(
            groups,
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=fused or None,
            capturable=fused,
        )
    return torch.optim.SGD(
        groups,
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        fused=fused or None,
    )
