"""A small update on digits that trains in a fraction of a second, and ways to change it."""

from collections.abc import Callable
from typing import Any

import pytest

from flipguard.releases import TrainSpec
from flipguard.spec import parse_training_spec
from flipguard.spec.training import changed

SMALL: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "old": {"model": {"name": "mlp", "hidden": [5]}},
    "new": {"model": {"name": "mlp", "hidden": [7]}},
    "method": {"name": "none"},
    "train": {"epochs": 3, "batch_size": 31, "learning_rate": 0.05, "device": "cpu", "processes": 1},
}


@pytest.fixture(scope="session")
def small() -> Callable[..., TrainSpec]:
    """The small update with `key=value` changes; whole sections can be replaced by keyword, or dropped by None."""

    def make(*changes: str, **sections: Any) -> TrainSpec:
        raw = {name: value for name, value in {**SMALL, **sections}.items() if value is not None}
        return parse_training_spec(changed(raw, changes))

    return make
