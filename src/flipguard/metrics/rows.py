"""Scored rows, and their sums over groups."""

import math
from dataclasses import dataclass

import array_api_compat as compat

from flipguard.metrics.arrays import Array, Scatter, as_codes, check_rows, namespace
from flipguard.metrics.outcome import OUTCOMES
from flipguard.metrics.sums import BINS, RANKS, ModelScores, PairScores, Tally
from flipguard.types import InputError


@dataclass(frozen=True, eq=False)
class ModelRows:
    """Each model's own scores of each row; nan where there is none. The trailing axis is (old, new)."""

    scored: Array  # (B, 2) bool: the row has finite logits
    labelled: Array  # (B, 2) bool: and its label is among the model's classes
    correct: Array  # (B, 2) bool: and the class with the largest logit is the label
    nll: Array  # (B, 2) float64
    top_probability: Array  # (B, 2) float64
    confidence: Array  # (B, 2) float64: the gap between the two largest probabilities
    entropy: Array  # (B, 2) float64
    top: Array  # (B, 2) int64: the first column with the largest logit; 0 for a model without logits


@dataclass(frozen=True, eq=False)
class PairRows:
    """The scores of each row that need both models' logits; nan where one lacks them."""

    scored: Array  # (B,) bool
    surrogate_churn: Array  # (B,) float64
    nll_difference: Array  # (B,) float64: new - old, nan unless labelled for both
    displacement: Array  # (B,) float64
    rank: Array  # (B,) int64: of the new class in the old logits for negative flips, 0 for all other rows


@dataclass(frozen=True, eq=False)
class Rows:
    """Scored rows."""

    outcome: Array  # (B,) codes into OUTCOMES
    missing: Array  # (B, 2) bool: without a prediction of the old, of the new model
    weight: Array | None = None  # (B,) float64
    old: Array | None = None  # (B,) the predictions, also where they follow from the logits; -1 for none
    new: Array | None = None
    models: ModelRows | None = None
    pair: PairRows | None = None
    calibrated: ModelRows | None = None

    @property
    def nll(self) -> Array | None:
        """(B, 2), or None without logits."""
        return None if self.models is None else self.models.nll

    @property
    def top_probability(self) -> Array | None:
        """(B, 2), or None without logits."""
        return None if self.models is None else self.models.top_probability

    @property
    def displacement(self) -> Array | None:
        """(B,), or None without both models' logits."""
        return None if self.pair is None else self.pair.displacement

    @property
    def surrogate_churn(self) -> Array | None:
        """(B,), or None without both models' logits."""
        return None if self.pair is None else self.pair.surrogate_churn

    @property
    def rank(self) -> Array | None:
        """(B,), or None without both models' logits."""
        return None if self.pair is None else self.pair.rank

    def tally(self, group: Array | None = None, groups: int | None = None) -> Tally:
        """The sums over the rows, by group when `group` (B,) gives each row a code in [0, groups).

        >>> import numpy as np
        >>> rows = Rows(outcome=np.array([0, 1, 2]), missing=np.zeros((3, 2), dtype=bool))
        >>> rows.tally().count
        array([1, 1, 1, 0, 0, 0, 0])
        >>> rows.tally([0, 1, 1], 2).count
        array([[1, 0, 0, 0, 0, 0, 0],
               [0, 1, 1, 0, 0, 0, 0]])
        """
        groups_of = _Groups.of(self.outcome, group, groups)
        by_outcome = groups_of.cells(self.outcome, len(OUTCOMES))
        return Tally(
            count=by_outcome.count(),
            missing=groups_of.of_models().count(self.missing),
            weight=None if self.weight is None else by_outcome.sum(self.weight),
            weight_squared=None if self.weight is None else by_outcome.sum(self.weight**2),
            models=None if self.models is None else _model_scores(self.models, groups_of),
            pair=None if self.pair is None else _pair_scores(self.pair, groups_of, by_outcome),
            calibrated=None if self.calibrated is None else _model_scores(self.calibrated, groups_of),
        )


class _Cells:
    """Sums by cell; a cell is a group and a slot in it."""

    def __init__(self, key: Array, shape: tuple[int, ...]) -> None:
        self._scatter = Scatter(key, math.prod(shape))
        self._shape = shape

    def count(self, mask: Array | None = None) -> Array:
        flat = None if mask is None else mask.reshape(-1)
        return self._scatter.count(flat).reshape(self._shape)

    def sum(self, values: Array) -> Array:
        return self._scatter.sum(values.reshape(-1)).reshape(self._shape)


@dataclass(frozen=True, eq=False)
class _Groups:
    """Each row's group, and the leading axes that the groups give to every sum."""

    key: Array  # (B,) int64
    lead: tuple[int, ...]

    @classmethod
    def of(cls, outcome: Array, group: Array | None, groups: int | None) -> "_Groups":
        xp = namespace(outcome)
        if group is None:
            return cls(xp.zeros_like(outcome), ())
        if groups is None:
            raise InputError("group= needs groups=, the number of groups: group codes lie in [0, groups).")
        key = as_codes(group, name="group")
        check_rows(outcome=outcome, group=key)
        # On a device the check would wait for it; there an index out of range is the device's own error.
        if not compat.is_torch_array(key) and key.size and not (key.min() >= 0 and key.max() < groups):
            raise InputError(f"group codes must lie in [0, {groups}), got {key.min()} to {key.max()}.")
        return cls(key, (groups,))

    def cells(self, slot: Array | None = None, slots: int | None = None) -> _Cells:
        """A sum per group, or per group and slot: `slot` (B,) in [0, slots)."""
        if slot is None or slots is None:
            return _Cells(self.key, self.lead)
        return _Cells(self.key * slots + slot, (*self.lead, slots))

    def of_models(self, slot: Array | None = None, slots: int = 1) -> _Cells:
        """A sum per group and model of (B, 2) values, or per group, model and slot: `slot` (B, 2) in [0, slots)."""
        xp = namespace(self.key)
        key = xp.stack([2 * self.key, 2 * self.key + 1], axis=1)
        if slot is None:
            return _Cells(key.reshape(-1), (*self.lead, 2))
        return _Cells((key * slots + slot).reshape(-1), (*self.lead, 2, slots))


def _model_scores(rows: ModelRows, groups: _Groups) -> ModelScores:
    xp = namespace(rows.nll)
    by_model = groups.of_models()
    p = rows.top_probability
    # One slot more than there are bins takes the rows without a label, and their nan, and is cut off.
    bin_of = xp.astype(xp.ceil(xp.where(rows.labelled, BINS * p, BINS + 1.0)) - 1, xp.int64)
    by_bin = groups.of_models(bin_of, BINS + 1)
    correct = xp.astype(rows.correct, xp.float64)
    ones = xp.ones_like(p)
    sums = [by_bin.sum(values) for values in (ones, correct, p, p**2, p * correct)]
    nll = xp.where(rows.labelled, rows.nll, 0.0)
    confidence = xp.where(rows.scored, rows.confidence, 0.0)
    entropy = xp.where(rows.scored, rows.entropy, 0.0)
    return ModelScores(
        n=by_model.count(rows.scored),
        labelled=by_model.count(rows.labelled),
        nll=by_model.sum(nll),
        nll_squared=by_model.sum(nll**2),
        confidence=by_model.sum(confidence),
        confidence_squared=by_model.sum(confidence**2),
        entropy=by_model.sum(entropy),
        entropy_squared=by_model.sum(entropy**2),
        bins=xp.stack(sums, axis=-1)[..., :BINS, :],
    )


def _pair_scores(rows: PairRows, groups: _Groups, by_outcome: _Cells) -> PairScores:
    xp = namespace(rows.displacement)
    by_group = groups.cells()
    # Slot 0 takes the rows without a rank and is cut off.
    by_rank = groups.cells(xp.clip(rows.rank, 0, RANKS + 1), RANKS + 2)
    churn = xp.where(rows.scored, rows.surrogate_churn, 0.0)
    displacement = xp.where(rows.scored, rows.displacement, 0.0)
    labelled = ~xp.isnan(rows.nll_difference)
    difference = xp.where(labelled, rows.nll_difference, 0.0)
    return PairScores(
        n=by_group.count(rows.scored),
        surrogate_churn=by_group.sum(churn),
        surrogate_churn_squared=by_group.sum(churn**2),
        labelled=by_group.count(labelled),
        nll_difference=by_group.sum(difference),
        nll_difference_squared=by_group.sum(difference**2),
        displacement=by_outcome.sum(displacement),
        displacement_squared=by_outcome.sum(displacement**2),
        displaced=by_outcome.count(rows.scored),
        rank=by_rank.count()[..., 1:],
    )
