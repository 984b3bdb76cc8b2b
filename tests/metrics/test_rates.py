"""The rates on any counts, and against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score

from flipguard.metrics import (
    OUTCOMES,
    RATES,
    Tally,
    churn,
    churn_bound,
    churn_correct,
    error_rate_new,
    error_rate_old,
    figures,
    flip_cost,
    negative_flip_rate,
    positive_flip_rate,
    relative_negative_flip_rate,
    tally,
    weighted_negative_flip_rate,
)
from flipguard.types import InputError

counts = st.lists(st.integers(0, 10**12), min_size=7, max_size=7)
codes = st.integers(-1, 3)
rows = st.lists(st.tuples(codes, codes, codes), min_size=1, max_size=40)


def of(count: list[int]) -> Tally:
    return Tally(count=np.array(count), missing=np.array([0, 0]))


@given(counts)
def test_flips_are_the_change_of_the_error_rate(count: list[int]) -> None:
    t = of(count)
    change = error_rate_new(t) - error_rate_old(t)
    np.testing.assert_allclose(negative_flip_rate(t) - positive_flip_rate(t), change, atol=1e-12, equal_nan=True)


@given(counts)
def test_churn_of_labelled_rows_stays_below_its_bound(count: list[int]) -> None:
    t = of([*count[:5], 0, 0])
    if sum(count[:5]):
        assert churn(t) <= churn_bound(t) + 1e-12


@given(rows)
def test_counts_are_all_rows_and_flips_follow_from_accuracies(rows: list[tuple[int, int, int]]) -> None:
    label, old, new = np.array(rows).T
    t = tally(label, old, new)
    assert t.count.sum() == len(rows)
    assert t.missing.tolist() == [(old == -1).sum(), (new == -1).sum()]
    known = label >= 0
    if known.any():
        np.testing.assert_allclose(error_rate_old(t), 1 - accuracy_score(label[known], old[known]))
        np.testing.assert_allclose(error_rate_new(t), 1 - accuracy_score(label[known], new[known]))
    np.testing.assert_allclose(churn(t), 1 - accuracy_score(old, new))


def test_independent_errors_have_a_relative_rate_of_one() -> None:
    # Right with 3/4 and 4/5, independently, over 1,200 rows.
    t = of([720, 180, 240, 0, 60, 0, 0])
    assert relative_negative_flip_rate(t) == pytest.approx(1.0)


@pytest.mark.parametrize("name", RATES)
def test_a_rate_counts_rows_of_its_denominator(name: str) -> None:
    rate = RATES[name]
    assert set(rate.numerator) < set(rate.denominator)
    only = np.zeros(7, dtype=np.int64)
    only[list(rate.denominator)] = 1
    assert figures(of(only.tolist()))[name] == pytest.approx(len(rate.numerator) / len(rate.denominator))
    outside = [code for code in range(len(OUTCOMES)) if code not in rate.denominator]
    only[outside] = 99
    assert figures(of(only.tolist()))[name] == pytest.approx(len(rate.numerator) / len(rate.denominator))


def test_unlabelled_rows_enter_churn_alone() -> None:
    t = of([5, 1, 0, 0, 0, 1, 3])
    assert churn(t) == pytest.approx(4 / 10)
    assert churn_correct(t) == pytest.approx(1 / 6)


def test_unit_weights_change_nothing_and_cost_uses_weights() -> None:
    label, old, new = [0, 0, 0, 1, 1], [0, 0, 1, 1, 0], [0, 1, 0, 0, 0]
    plain, unit = tally(label, old, new), tally(label, old, new, weight=np.ones(5))
    assert weighted_negative_flip_rate(unit) == negative_flip_rate(plain) == pytest.approx(2 / 5)
    assert flip_cost(plain, ratio=2.0) == flip_cost(unit, ratio=2.0) == pytest.approx(2 * 2 / 5 - 1 / 5)
    heavy = tally(label, old, new, weight=[1.0, 3.0, 1.0, 0.0, 1.0])
    assert flip_cost(heavy, ratio=2.0) == pytest.approx(2 * 3 / 6 - 1 / 6)
    assert heavy.weight_squared is not None
    assert heavy.weight_squared.tolist() == [1.0, 9.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_weighted_figures_need_weights() -> None:
    with pytest.raises(InputError, match="pass weight="):
        weighted_negative_flip_rate(of([1] * 7))
