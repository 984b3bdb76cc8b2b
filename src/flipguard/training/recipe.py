"""How a network is trained: optimiser, schedule, precision. The same for every method."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from flipguard.types import InputError

Schedule = Literal["constant", "step", "cosine", "one_cycle"]
Optimiser = Literal["sgd", "adamw"]
Precision = Literal["float32", "bf16"]
_CHOICES = {"schedule": get_args(Schedule), "optimiser": get_args(Optimiser), "precision": get_args(Precision)}


@dataclass(frozen=True)
class Recipe:
    """The hyper-parameters of training that do not belong to a method.

    `warmup` is a share of all steps, over which the rate rises from 0 (one_cycle: from a 25th of its peak). `step`
    multiplies the rate by 0.1 at each third of training, as ELODI's 30-60-90. The whole schedule is gone through
    `cycles` times, for snapshot ensembles. BatchNorm and biases are not decayed when `decay_all` is off. `accumulate`
    splits a batch into that many parts, one after another, and `checkpoint_activations` computes each block's
    activations again in the backward pass: both for less memory. When `clip_norm` is set, gradients are scaled down to
    at most that norm.
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
    precision: Precision = "float32"
    channels_last: bool = False
    accumulate: int = 1
    checkpoint_activations: bool = False
    clip_norm: float | None = None

    def __post_init__(self) -> None:
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
    """
    if recipe.cycles > 1:
        steps //= recipe.cycles
        step %= steps
    warm = max(1, round(recipe.warmup * steps)) if recipe.warmup > 0 else 0
    if step < warm:
        start = 0.04 if recipe.schedule == "one_cycle" else 0.0
        return start + (1 - start) * (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "step":
        return 0.1 ** math.floor(3 * min(step / steps, 1 - 1e-9))
    if recipe.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0 - done


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
