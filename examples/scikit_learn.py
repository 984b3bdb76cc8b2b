"""Choose among scikit-learn's classifiers by what they would break, and gate the one that is chosen.

    python examples/scikit_learn.py

A grid search reports each candidate's accuracy and its negative flips against the classifier in use, and takes the one
with the best balance when a negative flip counts three times. It is then compared on rows that nothing was fitted on.
"""

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from flipguard.integrations.sklearn import compare_estimators, negative_flip_scorer

CANDIDATES = [
    RandomForestClassifier(30, random_state=0),
    LogisticRegression(max_iter=5000),
    KNeighborsClassifier(),
    SVC(),
]


def main() -> None:
    pixels, label = load_digits(return_X_y=True)
    first, rest, first_label, rest_label = train_test_split(pixels, label, train_size=300, random_state=0)
    more, held, more_label, held_label = train_test_split(rest, rest_label, train_size=500, random_state=0)
    old = LogisticRegression(max_iter=5000).fit(first, first_label)

    # The old classifier was not fitted on the rows that the search sees: its errors there are its own.
    search = GridSearchCV(
        Pipeline([("model", SVC())]),
        {"model": CANDIDATES},
        scoring={
            "accuracy": "accuracy",
            "flips": negative_flip_scorer(old),
            "balance": negative_flip_scorer(old, cost_ratio=3),
        },
        refit="balance",
        cv=3,
    ).fit(more, more_label)
    found = search.cv_results_
    for model, accuracy, flips in zip(CANDIDATES, found["mean_test_accuracy"], found["mean_test_flips"], strict=True):
        print(f"{type(model).__name__:24} accuracy {accuracy:.1%}, negative flips {-flips:.1%}")

    new = search.best_estimator_
    result = compare_estimators(old, new, held, held_label, gate={"max_nfr": 0.03})
    old_error, new_error = float(result.error_rate_old), float(result.error_rate_new)
    print(f"\n{type(new['model']).__name__}: error {new_error:.1%}, was {old_error:.1%}")
    for rule in result.gate.rules:
        print(f"{rule.name} {rule.limit:g}: {'kept' if rule.passed else 'broken'} ({rule.reason})")


if __name__ == "__main__":
    main()
