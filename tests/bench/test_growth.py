"""Networks on a part of the data: who knew half of the classes, or had half of each class's samples."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_bench import parsed

from flipguard.bench.cost import Costs
from flipguard.bench.evaluate import pairs_of
from flipguard.bench.graph import Graph
from flipguard.bench.run import Bench
from flipguard.metrics import negative_flip_rate, tally
from flipguard.releases import material
from flipguard.types import InputError

HALF = {"data": {"classes": 0.5, "subset_seed": 1}}
NETWORKS: dict[str, Any] = {
    "single": {"copies": 2},
    "half": {"copies": 2, **HALF},
    "few": {"data": {"per_class": 5}},
    "elodi_half": {"method": "elodi", "references": {"ensemble": "half"}, **HALF},
    "kd": {"method": "kd", "references": {"old": "half.0"}},
    "kd_offline": {"method": "kd", "references": {"old": "half.0"}, "offline": True},
}
ROWS: dict[str, Any] = {
    "none": {"old": "half.0", "new": "single.0", "group": "classes"},
    "elodi": {"old": "elodi_half", "new": "single.1", "group": "classes"},
    "kd": {"old": "half.0", "new": "kd", "group": "classes"},
    "kd_offline": {"old": "half.0", "new": "kd_offline", "group": "classes"},
    "few": {"old": "few", "new": "single.0", "group": "samples"},
}


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("growth")
    train = {"epochs": 8, "batch_size": 10, "learning_rate": 0.05}
    Bench(parsed(networks=NETWORKS, rows=ROWS, seeds=[3], train=train), folder).run(processes=1)
    return folder


def graph(**changes: Any) -> Graph:
    spec = parsed(**{"networks": NETWORKS, "rows": ROWS, **changes})
    return Graph(spec, material.load(spec.data))


def test_the_old_model_knows_its_classes_alone(grown: Path) -> None:
    said = pq.read_table(grown / "predictions.parquet")
    known = np.unique(said["none.3.0.old"].to_numpy())
    found = graph()
    pairs_of(found, "none", 3)
    half = next(data for name, data in found.sets.items() if "classes" in name)
    assert {found.data.classes[code] for code in known} <= set(half.classes)
    assert len(half.classes) == 5
    # Numbered by all classes: a model that learnt something is right far more often than one of ten.
    label = said["label"].to_numpy()
    mine = np.isin(label, [found.data.classes.index(name) for name in half.classes])
    assert np.mean(said["none.3.0.old"].to_numpy()[mine] == label[mine]) > 0.5


def test_flips_are_counted_over_the_old_classes_and_over_all(grown: Path) -> None:
    said = pq.read_table(grown / "predictions.parquet")
    label = said["label"].to_numpy()
    found = graph()
    pairs_of(found, "none", 3)
    half = next(data for name, data in found.sets.items() if "classes" in name)
    mine = np.isin(label, [found.data.classes.index(name) for name in half.classes])
    runs = {(run["row"], run["part"]): run for run in pq.read_table(grown / "runs.parquet").to_pylist()}
    for row in ("none", "elodi", "kd", "kd_offline"):
        old, new = (said[f"{row}.3.0.{side}"].to_numpy() for side in ("old", "new"))
        for part, rows in (("test", np.full(len(label), True)), ("test_old_classes", mine)):
            run = runs[row, part]
            assert run["n"] == rows.sum()
            assert run["negative_flip_rate"] == pytest.approx(
                negative_flip_rate(tally(label[rows], old[rows], new[rows]))
            )
            assert run["error_rate_old"] == pytest.approx(np.mean(old[rows] != label[rows]))
            assert run["cnll_new"] is not None
    assert ("few", "test_old_classes") not in runs


def test_a_part_of_the_samples_is_a_part_of_the_cost(grown: Path) -> None:
    found = graph(train={"epochs": 2, "batch_size": 10})
    costs = Costs(found)
    few = pairs_of(found, "few", 3)[0].old[0].node
    whole = pairs_of(found, "none", 3)[0].new[0].node
    assert len(found.set_of(few).train) == 50
    assert len(found.set_of(whole).train) == 110
    hidden = (64 * 5 * 2 + 5 * 10 * 3) / (64 * 7 * 2 + 7 * 10 * 3)
    assert costs.training(few) / costs.training(whole) == pytest.approx(hidden * 50 / 110)


def test_groups_have_tables_of_their_own(grown: Path) -> None:
    page = (grown / "table.md").read_text()
    test = page.split("## Validation")[0]
    assert test.index("*classes*") < test.index("| none |") < test.index("*samples*") < test.index("| few |")
    assert "## Test, the old model's classes alone" in page


@pytest.mark.parametrize(
    ("networks", "rows", "said"),
    [
        (
            {"a": {}, "b": {"method": "kd", "references": {"old": "a"}, **HALF}},
            {"x": {"old": "a", "new": "b"}},
            "networks.b.references.old: the old model knows the class",
        ),
        ({"a": {}, "b": HALF}, {"x": {"old": "a + b", "new": "a"}}, "rows.x.old: the networks know different classes"),
        ({"a": {"data": {"per_class": 900}}}, {"x": "a"}, "networks.a.data: digits: too few samples per class"),
    ],
)
def test_what_cannot_work_is_said(networks: Any, rows: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Bench(parsed(networks=networks, rows=rows), tmp_path).run(processes=1)
    assert said in str(error.value)
