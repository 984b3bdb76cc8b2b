"""Outcomes of every combination of codes."""

from itertools import product

import numpy as np
import pytest
import torch

from flipguard.metrics import OUTCOMES, outcomes


def expected(label: int, old: int, new: int) -> str:
    agree = "same" if old == new else "different"
    if label == -1:
        return f"unlabelled_{agree}"
    match (old == label, new == label):
        case (True, True):
            return "both_right"
        case (True, False):
            return "negative_flip"
        case (False, True):
            return "positive_flip"
        case _:
            return f"both_wrong_{agree}"


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_every_combination(kind: object, dtype: type) -> None:
    cases = list(product(range(-1, 3), repeat=3))
    label, old, new = (kind(column) for column in np.array(cases, dtype=dtype).T.copy())  # type: ignore[operator]
    found = [OUTCOMES[code] for code in outcomes(label, old, new).tolist()]
    assert found == [expected(*case) for case in cases]
    assert set(found) == set(OUTCOMES)
