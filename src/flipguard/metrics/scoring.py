"""From labels, predictions and logits to scored rows."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np

from flipguard.metrics.arrays import (
    Array,
    as_codes,
    as_logits,
    as_values,
    check_logits,
    check_rows,
    like,
    namespace,
    pick,
)
from flipguard.metrics.outcome import NEGATIVE_FLIP, outcomes
from flipguard.metrics.rows import ModelRows, PairRows, Rows
from flipguard.metrics.scan import Request, Scan, scan
from flipguard.metrics.scores import Softmax, rank_among
from flipguard.metrics.sums import Tally
from flipguard.types import InputError


@dataclass(frozen=True, eq=False)
class ClassMatch:
    """How the logits of two models that know different classes line up.

    Codes of labels and predictions index the union vocabulary of V classes. Scores of a pair (surrogate churn,
    displacement, rank) use the shared classes alone. Arrays that lie on the device of the logits spare a copy per call.
    """

    old_column: Array  # (V,) int: the column of each class in the old logits, -1 where the old model lacks it
    new_column: Array  # (V,) int: likewise in the new logits
    old_shared: Array  # (S,) int: the columns of the shared classes in the old logits
    new_shared: Array  # (S,) int: likewise in the new logits, in the same order


Views: TypeAlias = "tuple[_View | None, _View | None]"


def score_rows(
    label: Array,
    old: Array | None,
    new: Array | None,
    *,
    weight: Array | None = None,
    old_logits: Array | None = None,
    new_logits: Array | None = None,
    classes: ClassMatch | None = None,
    alpha: float = 1.0,
    temperature: tuple[float, float] | None = None,
) -> Rows:
    """Every score of every row.

    `label`, `old` and `new` are (B,) class codes, -1 for none; `old` or `new` may be None where that model's logits
    (B, C) are given, and is then the first largest logit. `weight` is (B,). Without `classes` a code is a column of the
    logits; with it, an index into the union vocabulary. `alpha` is the exponent of the surrogate churn. `temperature`
    (old, new) adds the scores after dividing each model's logits by its own.

    A row with a logit that is not finite has no scores of that model, and no prediction either where the prediction
    would follow from logits that hold a nan.

    >>> rows = score_rows([0, 1], None, [1, 1], old_logits=[[2.0, 1.0], [0.0, 3.0]])
    >>> rows.outcome
    array([1, 0])
    """
    label = as_codes(label, name="label")
    weight = None if weight is None else as_values(weight, name="weight")
    views = (
        None if old_logits is None else _View.of(old_logits, label, classes and classes.old_column, "old_logits"),
        None if new_logits is None else _View.of(new_logits, label, classes and classes.new_column, "new_logits"),
    )
    logits = views[0] and views[0].logits, views[1] and views[1].logits
    check_rows(label=label, weight=weight, old_logits=logits[0], new_logits=logits[1])
    xp = namespace(label, weight, *logits)
    scanned = _scanned(views, classes, alpha, temperature)
    old = _predictions(old, views[0], scanned.old, "old")
    new = _predictions(new, views[1], scanned.new, "new")
    outcome = outcomes(label, old, new)
    models = _model_rows(views, (scanned.old, scanned.new))
    return Rows(
        outcome=outcome,
        missing=xp.stack([old < 0, new < 0], axis=1),
        weight=weight,
        old=old,
        new=new,
        models=models,
        pair=None if models is None else _pair_rows(views, scanned, outcome, new, models, classes),
        calibrated=_model_rows(views, (scanned.calibrated_old, scanned.calibrated_new)),
    )


def tally(
    label: Array,
    old: Array | None,
    new: Array | None,
    *,
    group: Array | None = None,
    groups: int | None = None,
    **scoring: Any,
) -> Tally:
    """The sums over the rows: `score_rows(label, old, new, **scoring).tally(group, groups)`.

    >>> tally([0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]).count
    array([1, 1, 1, 1, 0, 0, 0])
    """
    return score_rows(label, old, new, **scoring).tally(group, groups)


@dataclass(frozen=True, eq=False)
class _View:
    """One model's logits, and where the labels lie in them."""

    logits: Array  # (B, C) in the type they came in
    label: Array  # (B,) the label's column, in range even where there is none
    known: Array  # (B,) bool: the label has a column
    columns: Array | None  # (V,) the column of each class code, -1 for none; None when the code is the column

    @classmethod
    def of(cls, logits: Array, label: Array, columns: Array | None, name: str) -> "_View":
        logits = check_logits(logits, name=name)
        namespace(label, logits)
        columns = None if columns is None else like(columns, logits)
        column, known = _locate(label, columns, logits.shape[1])
        return cls(logits, column, known, columns)

    def predictions(self, top: Array) -> Array:
        """(B,) the codes of the largest logits' columns (B,), -1 where the row has no largest logit."""
        xp = namespace(self.logits)
        code = top if self.columns is None else xp.take(self._codes(self.columns), top, axis=0)
        return xp.where(pick(xp, self.logits, top) > -xp.inf, code, -1)

    def _codes(self, columns: Array) -> Array:
        """(C,) the code of each column, -1 for a column that no code names."""
        xp = namespace(columns)
        named = columns[None, :] == xp.arange(self.logits.shape[1], device=compat.device(columns))[:, None]
        return xp.where(xp.any(named, axis=1), xp.argmax(xp.astype(named, xp.int8), axis=1), -1)


def _locate(code: Array, columns: Array | None, width: int) -> tuple[Array, Array]:
    """(B,) class codes -> their columns, clipped into range, and whether they have one."""
    xp = namespace(code)
    column = code
    if columns is not None:
        vocabulary = columns.shape[0]
        found = xp.take(columns, xp.clip(code, 0, vocabulary - 1), axis=0)
        column = xp.where((code >= 0) & (code < vocabulary), found, -1)
    return xp.clip(column, 0, width - 1), (column >= 0) & (column < width)


def _scanned(views: Views, classes: ClassMatch | None, alpha: float, temperature: tuple[float, float] | None) -> Scan:
    old, new = views
    if old is None and new is None:
        return Scan()
    shared = None
    if old is not None and new is not None:
        widths = old.logits.shape[1], new.logits.shape[1]
        if classes is not None:
            shared = like(classes.old_shared, old.logits), like(classes.new_shared, new.logits)
        elif widths[0] != widths[1]:
            raise InputError(
                f"old_logits have {widths[0]:,} classes and new_logits {widths[1]:,}; "
                "pass classes= to say how they line up."
            )
    return scan(
        Request(
            logits=(old and old.logits, new and new.logits),
            label=(old and old.label, new and new.label),
            shared=shared,
            alpha=alpha,
            temperature=temperature,
        )
    )


def _predictions(given: Array | None, view: _View | None, softmax: Softmax | None, name: str) -> Array:
    if given is not None:
        return as_codes(given, name=name)
    if view is None or softmax is None:
        raise InputError(f"{name} predictions are needed: pass {name}= or {name}_logits=.")
    return view.predictions(softmax.top)


def _model_rows(views: Views, softmaxes: tuple[Softmax | None, Softmax | None]) -> ModelRows | None:
    given = [softmax for softmax in softmaxes if softmax is not None]
    if not given:
        return None
    xp = namespace(given[0].top)
    false = xp.zeros_like(given[0].top, dtype=xp.bool)
    nan = xp.full_like(given[0].rest, xp.nan)
    first = xp.zeros_like(given[0].top)

    def scores(view: _View | None, softmax: Softmax | None) -> tuple[Array, ...]:
        if view is None or softmax is None:
            return (false, false, false, nan, nan, nan, nan, first)
        scored = softmax.finite
        labelled = view.known & scored
        correct = labelled & (softmax.top == view.label)
        with np.errstate(invalid="ignore"):
            nll = xp.where(labelled, softmax.nll, nan)
            own = (softmax.top_probability, softmax.confidence, softmax.entropy)
            return (scored, labelled, correct, nll, *(xp.where(scored, score, nan) for score in own), softmax.top)

    both = zip(*map(scores, views, softmaxes), strict=True)
    return ModelRows(*(xp.stack(pair, axis=1) for pair in both))


def _pair_rows(
    views: Views, scanned: Scan, outcome: Array, new: Array, models: ModelRows, classes: ClassMatch | None
) -> PairRows | None:
    old_view = views[0]
    if old_view is None or scanned.displacement is None:
        return None
    xp = namespace(outcome)
    scored = models.scored[:, 0] & models.scored[:, 1]
    column, known = _locate(new, old_view.columns, old_view.logits.shape[1])
    ranked = scored & known & (outcome == NEGATIVE_FLIP)
    shared = None if classes is None else like(classes.old_shared, old_view.logits)
    nan = xp.full_like(scanned.displacement, xp.nan)
    return PairRows(
        scored=scored,
        surrogate_churn=xp.where(scored, scanned.surrogate_churn, nan),
        nll_difference=models.nll[:, 1] - models.nll[:, 0],
        displacement=xp.where(scored, scanned.displacement, nan),
        rank=_ranks(old_view.logits, column, ranked, shared),
    )


def _ranks(logits: Array, column: Array, ranked: Array, shared: Array | None) -> Array:
    """(B,) the rank of a column (B,) among the shared columns of the logits (B, C) where `ranked`, else 0."""
    xp = namespace(logits)
    if not compat.is_torch_array(logits):
        # Flips are few: picking their rows costs less than ranking all. A device would have to wait for their number.
        ranks = np.zeros(logits.shape[0], dtype=np.int64)
        rows = np.flatnonzero(ranked)
        ranks[rows] = _rank(as_logits(logits[rows]), column[rows], shared)
        return ranks
    return xp.where(ranked, _rank(as_logits(logits), column, shared), 0)


def _rank(logits: Array, column: Array, shared: Array | None) -> Array:
    xp = namespace(logits)
    value = pick(xp, logits, column)
    return rank_among(logits if shared is None else xp.take(logits, shared, axis=1), value)
