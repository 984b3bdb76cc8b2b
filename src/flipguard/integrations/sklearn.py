"""scikit-learn's classifiers: two of them compared on the same rows, and a score that counts negative flips."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.comparison import Comparison, compare
from flipguard.metrics import flip_cost, negative_flip_rate, tally, weighted_negative_flip_rate
from flipguard.predictions import Predictions
from flipguard.types import InputError


def compare_estimators(
    old: Any,
    new: Any,
    X: Any,
    y: Any,
    *,
    id: Any = None,
    slices: Mapping[str, Any] | None = None,
    sample_weight: Any = None,
    **options: Any,
) -> Comparison:
    """Compare two fitted classifiers on rows that neither was fitted on; the further options are those of `compare`.

    The two may know different classes: they are matched by what `classes_` calls them. `id` names the rows, which are
    numbered otherwise; `slices` are further columns (N,) to slice by.

    >>> from sklearn.dummy import DummyClassifier
    >>> old = DummyClassifier(strategy="constant", constant="cat").fit([[0], [0]], ["cat", "dog"])
    >>> new = DummyClassifier(strategy="constant", constant="dog").fit([[0], [0]], ["cat", "dog"])
    >>> found = compare_estimators(old, new, [[1], [2], [3]], ["cat", "cat", "dog"])
    >>> found.negative_flips, found.positive_flips
    (2, 1)
    """
    said = [
        estimator_predictions(estimator, X, y, id=id, slices=slices, sample_weight=sample_weight, name=name)
        for name, estimator in (("old", old), ("new", new))
    ]
    return compare(*said, **options)


def estimator_predictions(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    id: Any = None,
    slices: Mapping[str, Any] | None = None,
    sample_weight: Any = None,
    name: str = "predictions",
    **facts: Any,
) -> Predictions:
    """What a fitted classifier says of rows, ready to be compared or written; `facts` are version and metadata.

    Predictions are those of `predict`, which need not be the largest of the probabilities (an SVM's, a tuned
    threshold's). Probabilities come along where the classifier gives them.
    """
    classes = _classes(estimator, name)
    probabilities = estimator.predict_proba(X) if hasattr(estimator, "predict_proba") else None
    return Predictions.from_arrays(
        id=id,
        label=_names(y),
        prediction=_names(estimator.predict(X)),
        probabilities=None if probabilities is None else np.asarray(probabilities, np.float32),
        weight=sample_weight,
        slices=slices,
        classes=classes,
        name=name,
        **{"model": type(estimator).__name__, **facts},
    )


@dataclass(frozen=True)
class FlipScorer:
    """A scorer as scikit-learn calls it: (estimator, X, y) to a number, the larger the better."""

    old: Any
    cost_ratio: float | None = None

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        label, before, after = _codes(y, self.old.predict(X), estimator.predict(X))
        weight = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        counted = tally(label, before, after, weight=weight)
        if self.cost_ratio is not None:
            return -float(flip_cost(counted, ratio=self.cost_ratio))
        return -float((negative_flip_rate if weight is None else weighted_negative_flip_rate)(counted))


def negative_flip_scorer(old: Any, *, cost_ratio: float | None = None) -> FlipScorer:
    """A scorer for `GridSearchCV` and its kin that holds candidates to the classifier in use.

    Alone it is minus the negative flip rate, which a candidate that repeats the old model's every answer maximises: use
    it beside accuracy. With `cost_ratio`, what a negative flip costs in positive flips, it is PFR - cost_ratio·NFR: at
    1 the gain in accuracy, above 1 a gain that negative flips count against more than once.

    Rows that `old` was fitted on show fewer errors of it than there are: tune on others.

    >>> from sklearn.dummy import DummyClassifier
    >>> old = DummyClassifier(strategy="constant", constant=0).fit([[0], [0]], [0, 1])
    >>> new = DummyClassifier(strategy="constant", constant=1).fit([[0], [0]], [0, 1])
    >>> X, y = [[1], [2], [3], [4]], [0, 1, 1, 1]
    >>> negative_flip_scorer(old)(new, X, y), negative_flip_scorer(old, cost_ratio=2)(new, X, y)
    (-0.25, 0.25)
    """
    if cost_ratio is not None and not 0 <= cost_ratio < np.inf:
        raise InputError(f"cost_ratio must not be negative, it is {cost_ratio:g}.")
    return FlipScorer(old, cost_ratio)


def _classes(estimator: Any, name: str) -> list[str]:
    classes = getattr(estimator, "classes_", None)
    if classes is None:
        raise InputError(f"the {name} estimator has no classes_: pass a classifier that is fitted.")
    if isinstance(classes, list):
        raise InputError(f"the {name} estimator has {len(classes)} outputs: compare classifiers of one output each.")
    return _names(classes)


def _names(values: Any) -> list[str]:
    """Classes by name: scikit-learn's may be numbers, texts or booleans. A column (N, 1) counts as (N,)."""
    return [_name(value) for value in np.asarray(values).reshape(-1).tolist()]


def _name(value: Any) -> str:
    # Labels that passed through a data frame come as 3.0 where the classifier was fitted on 3.
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _codes(*columns: Any) -> list[npt.NDArray[np.int64]]:
    """Columns of class names as codes of one vocabulary."""
    names = [_names(column) for column in columns]
    code = {name: place for place, name in enumerate(sorted({name for column in names for name in column}))}
    return [np.array([code[name] for name in column], np.int64) for column in names]
