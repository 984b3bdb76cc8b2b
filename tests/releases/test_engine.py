"""`train.engine`: from the spec to the members, and kept with them."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from flipguard.checkpoints import load_facts
from flipguard.releases import TrainSpec, train
from flipguard.releases.plan import TrainPlan
from flipguard.training.engines import ENGINES
from flipguard.types import InputError

Make = Callable[..., TrainSpec]


def test_the_spec_knows_the_engines() -> None:
    assert get_args(TrainPlan.model_fields["engine"].annotation) == ENGINES


def test_members_are_trained_by_it(small: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The members in one step, the versions each by itself, as ever; and a second call finds all of it."""
    spec = small("method.name=elodi", "method.ensemble.members=3", "train.engine=grouped")
    train(spec, tmp_path)
    assert {load_facts(path)["engine"] for path in tmp_path.rglob("member.safetensors")} == {"grouped"}
    assert "engine" not in caplog.text
    assert train(small("method.name=elodi", "method.ensemble.members=3"), tmp_path).found


def test_no_such_engine(small: Make) -> None:
    with pytest.raises(InputError, match=r"train\.engine"):
        small("train.engine=warp")
