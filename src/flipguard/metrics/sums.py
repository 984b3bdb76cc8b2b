"""The tally: the sums from which every comparison figure follows. Tallies of disjoint rows add up."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import array_api_compat as compat
import numpy as np

from flipguard.metrics.arrays import Array
from flipguard.metrics.outcome import OUTCOMES
from flipguard.types import InputError

BINS = 15
"""Confidence bins of the calibration error: the L of LatentBE (Nam et al. 2022), App. B.3."""

RANKS = 10
"""Ranks that have a bucket of their own; all larger ones share the last."""


@dataclass(frozen=True, eq=False)
class ModelScores:
    """Sums of each model's own scores. Leading axes are groups; the axis of length 2 is (old, new)."""

    n: Array  # (..., 2) int64: rows with logits
    labelled: Array  # (..., 2) int64: of them, rows whose label is among that model's classes
    nll: Array  # (..., 2) float64, over the labelled rows
    nll_squared: Array
    confidence: Array  # (..., 2) float64: the gap between the two largest probabilities
    confidence_squared: Array
    entropy: Array  # (..., 2) float64
    entropy_squared: Array
    bins: Array
    """(..., 2, 15, 5) float64, labelled rows by top probability p in ((l-1)/15, l/15]: the count, the number right, and
    the sums of p, of p^2, and of p over those that are right."""


@dataclass(frozen=True, eq=False)
class PairScores:
    """Sums of the scores that need both models' logits. Leading axes are groups."""

    n: Array  # (...,) int64: rows where both have logits
    surrogate_churn: Array  # (...,) float64
    surrogate_churn_squared: Array
    labelled: Array  # (...,) int64: of the n, rows labelled for both
    nll_difference: Array  # (...,) float64: new - old, over the labelled rows
    nll_difference_squared: Array
    displacement: Array  # (..., 7) float64: by outcome
    displacement_squared: Array
    displaced: Array  # (..., 7) int64: rows that entered, by outcome
    rank: Array
    """(..., 11) int64: negative flips by the rank of the new, wrong class in the old logits: 1 to 10, and beyond. Flips
    to a class that the old model does not know have no rank and do not enter."""


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts and sums over rows, by group where there are groups (leading axes).

    >>> first = Tally(count=np.array([3, 1, 0, 0, 0, 0, 0]), missing=np.array([0, 0]))
    >>> second = Tally(count=np.array([2, 0, 4, 0, 0, 0, 0]), missing=np.array([0, 1]))
    >>> (first + second).count
    array([5, 1, 4, 0, 0, 0, 0])
    >>> (first + second).missing
    array([0, 1])
    """

    count: Array  # (..., 7) int64: rows by outcome
    missing: Array  # (..., 2) int64: rows without a prediction of the old, of the new model
    weight: Array | None = None  # (..., 7) float64: sums of the rows' weights by outcome
    weight_squared: Array | None = None
    models: ModelScores | None = None
    pair: PairScores | None = None
    calibrated: ModelScores | None = None
    """What `models` holds, after each model's logits were divided by its temperature."""

    def leaves(self) -> dict[str, Array]:
        """All arrays by name; those of a part carry its name in front, as in `models_nll`. `from_leaves` goes back."""
        return dict(_leaves(self))

    @classmethod
    def from_leaves(cls, leaves: Mapping[str, Array]) -> Self:
        """A tally from its named arrays; a part of which no array is there is left out."""

        def part(kind: type[Any], name: str) -> Any:
            names = [field.name for field in fields(kind)]
            given = {field: leaves[f"{name}_{field}"] for field in names if f"{name}_{field}" in leaves}
            if given and len(given) < len(names):
                lacking = ", ".join(f"{name}_{field}" for field in names if field not in given)
                raise InputError(f"the {name} of a tally need all their arrays; lacking: {lacking}.")
            return kind(**given) if given else None

        plain = {name: leaves[name] for name in ("count", "missing", "weight", "weight_squared") if name in leaves}
        return cls(**plain, **{name: part(kind, name) for name, kind in PARTS.items()})

    @property
    def groups(self) -> tuple[int, ...]:
        """The lengths of the leading axes; empty when there are no groups."""
        return tuple(self.count.shape[:-1])

    def __add__(self, other: "Tally") -> "Tally":
        if not isinstance(other, Tally):
            return NotImplemented
        mine, theirs = self.leaves(), other.leaves()
        if mine.keys() != theirs.keys():
            only = ", ".join(sorted(mine.keys() ^ theirs.keys()))
            raise InputError(f"two tallies add up only when they hold the same sums; in one of them only: {only}.")
        if self.groups != other.groups:
            raise InputError(
                f"two tallies add up only over the same groups, got the shapes {self.groups} and {other.groups}."
            )
        return Tally.from_leaves({name: leaf + theirs[name] for name, leaf in mine.items()})

    def __getitem__(self, groups: Any) -> "Tally":
        """The picked groups: an index, a slice, a mask or codes on the leading axis."""
        self._check_grouped("pick groups from")
        return self._map(lambda leaf: leaf[groups])

    def total(self) -> "Tally":
        """The sum over the leading group axis."""
        self._check_grouped("sum the groups of")
        return self._map(lambda leaf: leaf.sum(0))

    def numpy(self) -> "Tally":
        """The same tally with NumPy arrays."""
        return self._map(lambda leaf: leaf.cpu().numpy() if compat.is_torch_array(leaf) else np.asarray(leaf))

    def _check_grouped(self, what: str) -> None:
        if not self.groups:
            raise InputError(f"cannot {what} a tally without groups; pass group= when it is made.")

    def _map(self, function: Callable[[Array], Array]) -> "Tally":
        return Tally.from_leaves({name: function(leaf) for name, leaf in self.leaves().items()})


PARTS: dict[str, type[Any]] = {"models": ModelScores, "pair": PairScores, "calibrated": ModelScores}
"""The parts that a tally may hold beside its counts and weights."""

_MODEL_SHAPES: dict[str, tuple[int, ...]] = {
    field.name: (2, BINS, 5) if field.name == "bins" else (2,) for field in fields(ModelScores)
}
_BY_OUTCOME = (len(OUTCOMES),)
LEAF_SHAPES: dict[str, tuple[int, ...]] = {
    "count": _BY_OUTCOME,
    "missing": (2,),
    "weight": _BY_OUTCOME,
    "weight_squared": _BY_OUTCOME,
    **{f"models_{name}": shape for name, shape in _MODEL_SHAPES.items()},
    **{f"pair_{field.name}": () for field in fields(PairScores)},
    **{f"pair_{name}": _BY_OUTCOME for name in ("displacement", "displacement_squared", "displaced")},
    "pair_rank": (RANKS + 1,),
    **{f"calibrated_{name}": shape for name, shape in _MODEL_SHAPES.items()},
}
"""The shape of each array that a tally may hold, without groups."""

INTEGER_LEAVES: frozenset[str] = frozenset(
    {"count", "missing", "pair_n", "pair_labelled", "pair_displaced", "pair_rank"}
    | {f"{part}_{name}" for part in ("models", "calibrated") for name in ("n", "labelled")}
)
"""The arrays that are exact int64 counts; the others are float64 sums."""


def _leaves(tally: Tally) -> Iterator[tuple[str, Array]]:
    for field in fields(Tally):
        value = getattr(tally, field.name)
        if value is None:
            continue
        if field.name in PARTS:
            for inner in fields(PARTS[field.name]):
                yield f"{field.name}_{inner.name}", getattr(value, inner.name)
        else:
            yield field.name, value
