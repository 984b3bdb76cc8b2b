"""What intervals and tests say where little was seen, and where weights or clusters add nothing."""

from typing import Any

import numpy as np
import pytest

from flipguard import compare
from flipguard.statistics import combined_shares

Columns = dict[str, Any]


def example(seed: int = 0) -> tuple[Columns, Columns]:
    """Of 211 samples of three classes the old model has about a third wrong, the new one a quarter."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, 211)
    rows = {"id": np.arange(211), "label": label}
    said = [np.where(random.random(211) < error, (label + 1) % 3, label) for error in (0.34, 0.25)]
    return rows | {"prediction": said[0]}, rows | {"prediction": said[1]}


def test_nothing_seen_is_not_nothing_that_can_be() -> None:
    """Fifty samples without an error: what flips cost, and how much can change, may still be above 0."""
    rows = {"id": np.arange(50), "label": np.zeros(50, int), "prediction": np.zeros(50, int)}
    for weighted in ({}, {"weight": np.full(50, 3.0)}):
        found = compare(rows | weighted, rows | weighted, cost_ratio=5)
        assert found.flip_cost is not None
        assert found.churn_bound is not None
        expected = combined_shares(0, 0, 50, factors=(5, -1))
        assert (found.flip_cost.low, found.flip_cost.high) == pytest.approx((expected.low, expected.high))
        assert found.flip_cost.low < 0 < found.flip_cost.high
        assert found.churn_bound.low == 0
        assert found.churn_bound.high == pytest.approx(float(combined_shares(0, 0, 50, factors=(1, 2)).high))


def test_weights_that_are_all_alike_change_no_cost() -> None:
    old, new = example()
    plain, weighted = (
        compare(old | more, new | more, cost_ratio=3).flip_cost for more in ({}, {"weight": np.full(211, 0.7)})
    )
    assert plain is not None
    assert weighted is not None
    assert (weighted.low, weighted.high) == pytest.approx((plain.low, plain.high))


def test_every_sample_may_flip() -> None:
    """In every group, by any weights: what all of them come to is never more than there are."""
    random = np.random.default_rng(3)
    for n in (3, 7, 59, 199):
        label, said = np.zeros(n, int), (np.arange(n) % 3 == 0).astype(int)
        rows = {"id": np.arange(n), "label": label, "group": np.arange(n) % 5}
        for more in ({}, {"weight": random.random(n) + 0.1}):
            found = compare(rows | more | {"prediction": said}, rows | more | {"prediction": 1 - said}, cost_ratio=3)
            assert found.flip_cost is not None
            assert found.flip_cost.low is not None
            assert found.flip_cost.high is not None
            assert -1 <= found.flip_cost.low <= found.flip_cost.high <= 3


def test_no_end_of_a_mean_is_a_value_that_cannot_be() -> None:
    """Three rows, of which one changed: a distance and a confidence gap are not below 0, and no gap above 1."""
    logits = np.array([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]])
    old = {"id": [0, 1, 2], "label": [0, 0, 1], "prediction": [0, 0, 1], "logits": logits}
    found = compare(old, old | {"logits": logits * [[1.0], [1.0], [-1.0]], "prediction": [0, 0, 0]})
    for figure in (found.surrogate_churn, found.logit_displacement):
        assert figure is not None
        assert figure.low == 0
    gap = found.prediction_confidence_new
    assert gap is not None
    assert gap.value is not None
    assert gap.high is not None
    assert gap.value <= gap.high <= 1


def test_clusters_of_one_sample_make_nothing_more_significant() -> None:
    for seed in range(7):
        old, new = example(seed=seed)
        plain, clustered = compare(old, new), compare(old | {"row": np.arange(211)}, new, cluster="row")
        assert plain.mcnemar_p is not None
        assert clustered.mcnemar_p is not None
        assert clustered.mcnemar_p >= plain.mcnemar_p * (1 - 1e-9)
        worse = {group.value: group.mcnemar_p for group in plain.classes}
        assert all(group.mcnemar_p >= worse[group.value] * (1 - 1e-9) for group in clustered.classes)
