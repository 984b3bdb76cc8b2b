"""What every room may know: the errors, and the nouns of training. No torch is imported here."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor, nn


class FlipguardError(Exception):
    """The root of all errors that flipguard raises on purpose."""


class InputError(FlipguardError, ValueError):
    """Something the user gave is not usable.

    The message is one line that says what was expected, what came, and what to do. The command line prints it on
    stderr and exits 2.

    >>> raise InputError("old.parquet is empty: a prediction file needs at least one row.")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: old.parquet is empty: a prediction file needs at least one row.
    """


class DamagedFile(InputError):
    """A file is no longer what was written: bits flipped, or a part is missing. `path` is the file."""

    def __init__(self, message: str, path: Path) -> None:
        super().__init__(message, path)
        self.path = path

    def __str__(self) -> str:
        return str(self.args[0])


class MissingExtra(FlipguardError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


@dataclass(frozen=True)
class Normalisation:
    """How pixels in [0, 1] become network input: (x - mean) / std per channel. A perturbation needs the way back."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Batch:
    """What a method sees of the data at one step.

    x is a tensor (B, …) or, for text, a dict of tensors; y holds class codes (B,); index holds the rows' places in the
    training set (B,), by which cached references are looked up and randomness is keyed. `progress` is a scalar tensor
    that runs from 0 to 1 over training (a tensor, so that ramps survive the capture of a step), `seed` and `step` key
    any randomness inside a method together with `index`.
    """

    x: "Tensor | dict[str, Tensor]"
    y: "Tensor"
    index: "Tensor"
    progress: "Tensor"
    step: "Tensor"
    seed: int = 0
    normalisation: Normalisation | None = None


@dataclass(frozen=True)
class Output:
    """What a student or a reference says: logits (M, B, C) and, when asked for, features (M, B, D)."""

    logits: "Tensor"
    features: "Tensor | None" = None


@dataclass(frozen=True)
class Step:
    """What a method returns: the scalar to differentiate, the logits (M, B, C) it came from, and its terms by name."""

    loss: "Tensor"
    logits: "Tensor"
    terms: "Mapping[str, Tensor]" = field(default_factory=dict)


@runtime_checkable
class Student(Protocol):
    """What is trained. M is 1 for a plain network, 2 for co-distillation, M for BatchEnsemble."""

    members: int

    def __call__(self, x: Any, *, features: bool = False) -> Output: ...

    def modules(self) -> "Iterable[nn.Module]": ...

    def parameter_groups(self) -> list[dict[str, Any]]: ...

    def release(self) -> "nn.Module": ...


@runtime_checkable
class Reference(Protocol):
    """A frozen predictor that the student is held to. It never receives gradients into its weights.

    `classes` maps its columns to the student's classes, None when they are the same. `differentiable` says whether its
    logits can be differentiated with respect to x (a network can, cached logits cannot).
    """

    name: str
    members: int
    classes: tuple[int, ...] | None
    differentiable: bool

    def __call__(self, batch: Batch, *, features: bool = False) -> Output: ...


Method = Callable[[Student, Mapping[str, Reference], Batch], Step]
