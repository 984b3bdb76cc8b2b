"""Run folders of a small update on digits: passed by a gate, refused by one, and without any."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GATES: dict[str, dict[str, Any]] = {
    "passed": {"gate": {"max_nfr": 0.9}},
    "refused": {"gate": {"max_nfr": 0.0001}},
    "not judged": {},
}
SMALL: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "old": {"model": {"name": "mlp", "hidden": [5]}},
    "new": {"model": {"name": "mlp", "hidden": [7]}},
    "method": {"name": "kd"},
    "train": {"epochs": 3, "batch_size": 31, "learning_rate": 0.05, "device": "cpu", "processes": 1},
}


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run by what its gate says; each is trained once."""
    from flipguard.releases import train
    from flipguard.spec import parse_training_spec

    made: dict[str, Path] = {}

    def folder(verdict: str) -> Path:
        if verdict not in made:
            made[verdict] = tmp_path_factory.mktemp("run") / "update"
            train(parse_training_spec({**SMALL, **GATES[verdict]}), made[verdict])
        return made[verdict]

    return folder
