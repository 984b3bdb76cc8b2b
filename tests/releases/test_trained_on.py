"""Rows that a model was trained on, found by id where ids mean the same rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard.releases import TrainSpec, train
from flipguard.releases.plan import DataPlan
from flipguard.releases.release import predict_release
from flipguard.releases.trained_on import rows_trained_on

Make = Callable[..., TrainSpec]
MODEL: dict[str, Any] = {"name": "mlp", "hidden": [3], "input_size": 2}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of 7, 11 and 13 rows; their ids stand in a column, which need not be read."""
    home = tmp_path_factory.mktemp("tables")
    chance = np.random.default_rng(5)
    for name, rows in (("a", 7), ("b", 11), ("c", 13)):
        lines = [f"{name if row else 'a'}{row},{chance.normal():.3f},{row},{'xy'[row % 2]}" for row in range(rows)]
        (home / f"{name}.csv").write_text("\n".join(["key,u,v,label", *lines, ""]))
    return home


def plan(home: Path, **options: Any) -> DataPlan:
    return DataPlan.model_validate({"name": "table", "folder": str(home), "features": ["u", "v"], **options})


def told(run: Path, own: DataPlan, asked: DataPlan, part: str, version: str = "new") -> int | None:
    return rows_trained_on(predict_release(run, asked, version=version, part=part), asked, part, own)


def test_ids_of_the_data_s_own_are_found_in_any_file(tables: Path, tmp_path: Path, small: Make) -> None:
    own = plan(tables, train="b.csv", test="c.csv", id="key")
    train(
        small(
            "train.epochs=1", "train.batch_size=5", data=own.model_dump(), old={"model": MODEL}, new={"model": MODEL}
        ),
        tmp_path / "run",
    )
    assert told(tmp_path / "run", own, own, "train") == 11
    assert told(tmp_path / "run", own, own, "test") == 0
    turned = plan(tables, train="c.csv", test="b.csv", id="key")
    assert told(tmp_path / "run", own, turned, "test") == 11
    # Row 0 of each table is called a0.
    assert told(tmp_path / "run", own, turned, "train") == 1
    (tables / "gone").mkdir()
    assert told(tmp_path / "run", plan(tables / "gone", train="b.csv", test="c.csv", id="key"), turned, "test") is None
    # The run's data are not those any more that it was trained on.
    assert told(tmp_path / "run", plan(tables, train="a.csv", test="c.csv", id="key"), turned, "test") is None


def test_rows_that_are_numbered_are_known_in_the_same_files_alone(tables: Path, tmp_path: Path, small: Make) -> None:
    own = plan(tables, train="b.csv", test="c.csv")
    spec = small(
        "train.epochs=1", "train.batch_size=5", data=own.model_dump(), old={"model": MODEL}, new={"model": MODEL}
    )
    train(spec, tmp_path / "run")
    assert told(tmp_path / "run", own, plan(tables, train="a.csv", test="c.csv"), "train") == 0
    held = plan(tables, train="b.csv", test="c.csv", validation=3)
    assert told(tmp_path / "run", own, held, "train") == 8
    assert told(tmp_path / "run", own, held, "validation") == 3


def test_of_a_network_from_elsewhere_nothing_is_known(tmp_path: Path, small: Make) -> None:
    train(small("train.epochs=1"), tmp_path / "a")
    weights = tmp_path / "a/versions/old/model.safetensors"
    given = {"checkpoint": str(weights), "model": {"name": "mlp", "hidden": [5]}}
    spec = small("train.epochs=1", old=given)
    train(spec, tmp_path / "b")
    assert told(tmp_path / "b", spec.data, spec.data, "train", version="old") == 0
    assert told(tmp_path / "b", spec.data, spec.data, "train", version="new") == 130
