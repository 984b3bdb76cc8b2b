"""scikit-learn's own classifiers and searches, against counts by hand."""

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from flipguard.integrations.sklearn import compare_estimators, estimator_predictions, negative_flip_scorer
from flipguard.types import InputError

PIXELS, LABEL = load_digits(return_X_y=True)
FITTED, HELD = slice(0, 401), slice(401, 1004)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    old = DecisionTreeClassifier(max_depth=5, random_state=0).fit(PIXELS[FITTED], LABEL[FITTED])
    new = make_pipeline(StandardScaler(), RandomForestClassifier(17, random_state=0))
    return old, new.fit(PIXELS[FITTED], LABEL[FITTED])


def flips(old: Any, new: Any, X: Any, y: Any) -> tuple[int, int]:
    """By a loop over rows."""
    said = list(zip(y, old.predict(X), new.predict(X), strict=True))
    return sum(a == c != b for c, a, b in said), sum(b == c != a for c, a, b in said)


def test_flips_are_those_of_a_loop(models: tuple[Any, Any]) -> None:
    X, y = PIXELS[HELD], LABEL[HELD]
    ink = np.where(X.mean(axis=1) > 4.9, "heavy", "light")
    found = compare_estimators(*models, X, y, slices={"ink": ink}, gate={"max_nfr": 0.5})
    assert (found.negative_flips, found.positive_flips) == flips(*models, X, y)
    assert found.negative_flips > 0
    assert found.n == 603
    assert (found.old.model, found.new.model) == ("DecisionTreeClassifier", "Pipeline")
    assert {group.value for group in found.slices["ink"]} == {"heavy", "light"}
    assert {group.value for group in found.classes} == set("0123456789")
    assert found.gate.passed is True
    # Both give probabilities, so figures of scores are there.
    assert found.nll_new is not None


def test_names_numbers_and_floats_are_the_same_classes(models: tuple[Any, Any]) -> None:
    X, y = PIXELS[HELD], LABEL[HELD]
    whole = compare_estimators(*models, X, y)
    assert compare_estimators(*models, X, y.astype(float)).negative_flips == whole.negative_flips
    names = np.array([f"digit {c}" for c in range(10)])
    named = [
        DecisionTreeClassifier(max_depth=5, random_state=0).fit(PIXELS[FITTED], names[LABEL[FITTED]]),
        make_pipeline(StandardScaler(), RandomForestClassifier(17, random_state=0)).fit(
            PIXELS[FITTED], names[LABEL[FITTED]]
        ),
    ]
    assert compare_estimators(*named, X, names[y]).negative_flips == whole.negative_flips


def test_a_model_that_knows_fewer_classes_is_matched_by_name() -> None:
    few = LABEL[FITTED] < 7
    old = DecisionTreeClassifier(max_depth=5, random_state=0).fit(PIXELS[FITTED][few], LABEL[FITTED][few])
    new = DecisionTreeClassifier(max_depth=9, random_state=0).fit(PIXELS[FITTED], LABEL[FITTED])
    found = compare_estimators(old, new, PIXELS[HELD], LABEL[HELD])
    assert (found.negative_flips, found.positive_flips) == flips(old, new, PIXELS[HELD], LABEL[HELD])
    assert found.old_classes is not None
    assert found.old_classes.labelled == int((LABEL[HELD] < 7).sum())


def test_a_classifier_without_probabilities_is_compared_by_its_predictions() -> None:
    old = RidgeClassifier().fit(PIXELS[FITTED], LABEL[FITTED])
    new = RidgeClassifier(alpha=100.0).fit(PIXELS[FITTED], LABEL[FITTED])
    found = compare_estimators(old, new, PIXELS[HELD], LABEL[HELD])
    assert found.nll_new is None
    assert (found.negative_flips, found.positive_flips) == flips(old, new, PIXELS[HELD], LABEL[HELD])


def test_predictions_can_be_written_and_compared_later(models: tuple[Any, Any], tmp_path: Any) -> None:
    from flipguard import compare

    for name, model in zip(("old", "new"), models, strict=True):
        said = estimator_predictions(model, PIXELS[HELD], LABEL[HELD], version="1", sample_weight=np.arange(603) % 3)
        said.write(tmp_path / f"{name}.parquet")
    found = compare(tmp_path / "old.parquet", tmp_path / "new.parquet")
    assert found.negative_flips == flips(*models, PIXELS[HELD], LABEL[HELD])[0]
    assert found.weighted_negative_flip_rate is not None
    assert found.new.version == "1"


def test_the_scorer_counts_what_a_loop_counts(models: tuple[Any, Any]) -> None:
    old, new = models
    X, y = PIXELS[HELD], LABEL[HELD]
    negative, positive = flips(old, new, X, y)
    assert negative_flip_scorer(old)(new, X, y) == pytest.approx(-negative / 603)
    assert negative_flip_scorer(old, cost_ratio=3)(new, X, y) == pytest.approx((positive - 3 * negative) / 603)
    gain = negative_flip_scorer(old, cost_ratio=1)(new, X, y)
    assert gain == pytest.approx(new.score(X, y) - old.score(X, y))
    weight = np.random.default_rng(0).random(603)
    harmed = (old.predict(X) == y) & (new.predict(X) != y)
    expected = -(weight * harmed).sum() / weight.sum()
    assert negative_flip_scorer(old)(new, X, y, sample_weight=weight) == pytest.approx(expected)


def test_a_grid_search_takes_the_scorer_beside_accuracy(models: tuple[Any, Any]) -> None:
    old, _ = models
    X, y = PIXELS[HELD], LABEL[HELD]
    search = GridSearchCV(
        DecisionTreeClassifier(random_state=0),
        {"max_depth": [2, 11]},
        scoring={"accuracy": "accuracy", "flips": negative_flip_scorer(old)},
        refit="flips",
        cv=3,
    ).fit(X, y)
    shallow, deep = search.cv_results_["mean_test_flips"]
    assert shallow < deep < 0
    assert search.best_params_ == {"max_depth": 11}


def test_the_scorer_travels_to_other_processes(models: tuple[Any, Any]) -> None:
    old, new = models
    scorer = negative_flip_scorer(old, cost_ratio=2)
    again = pickle.loads(pickle.dumps(scorer))
    assert again(new, PIXELS[HELD], LABEL[HELD]) == scorer(new, PIXELS[HELD], LABEL[HELD])


def test_what_is_no_fitted_classifier_is_said() -> None:
    fitted = DummyClassifier().fit(PIXELS[FITTED], LABEL[FITTED])
    with pytest.raises(InputError, match="the old estimator has no classes_"):
        compare_estimators(LogisticRegression(), fitted, PIXELS[HELD], LABEL[HELD])
    several = MultiOutputClassifier(DummyClassifier()).fit(PIXELS[FITTED], np.stack([LABEL[FITTED]] * 2, 1))
    with pytest.raises(InputError, match="the new estimator has 2 outputs"):
        compare_estimators(fitted, several, PIXELS[HELD], LABEL[HELD])
    with pytest.raises(InputError, match="cost_ratio must not be negative"):
        negative_flip_scorer(fitted, cost_ratio=-1)
