"""Models on corrupted test images: one record for each kind and severity, and their mean in the table."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from small_bench import parsed

from flipguard.bench.evaluate import pairs_of
from flipguard.bench.run import Bench
from flipguard.bench.tables import read_rows
from flipguard.data import load_data
from flipguard.data.corruptions import corrupted
from flipguard.training import predict_logits
from flipguard.types import InputError

KINDS, SEVERITIES = ["contrast", "gaussian_noise"], [1, 5]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Digits of 16 by 16 pixels: the smallest images that can be corrupted."""
    folder = tmp_path_factory.mktemp("large")
    found = load_digits()
    x = np.kron(np.rint(found.images * 255 / 16), np.ones((2, 2))).astype(np.uint8)[:, None]
    np.savez(
        folder / "large.npz",
        x_train=x[:300],
        y_train=found.target[:300],
        x_test=x[300:500],
        y_test=found.target[300:500],
        classes=np.array([str(digit) for digit in range(10)]),
    )
    return parsed(
        data={"name": "npz", "file": "large.npz", "layout": "NCHW", "folder": str(folder), "validation": 50},
        old={"name": "mlp", "input_size": 256, "hidden": [5]},
        new={"name": "mlp", "input_size": 256, "hidden": [7]},
        networks={"single": {"copies": 2}},
        rows={"none": "single.0", "paragon": "single"},
        train={"epochs": 10, "batch_size": 25, "learning_rate": 0.1},
        seeds=[3],
        corruptions={"kinds": KINDS, "severities": SEVERITIES},
    )


@pytest.fixture(scope="module")
def bench(spec: Any, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(spec, tmp_path_factory.mktemp("corrupted"))
    made.run(processes=1)
    return made


def test_each_kind_and_severity_is_a_record(bench: Bench) -> None:
    runs = [run for run in pq.read_table(bench.out / "runs.parquet").to_pylist() if run["part"] == "corrupted"]
    assert len(runs) == 2 * len(KINDS) * len(SEVERITIES)
    found = {(run["row"], run["corruption"], run["severity"]): run for run in runs}
    pair = pairs_of(bench.graph, "paragon", 3)[0]
    shop = bench._shop()
    spec = bench.spec.data
    data = load_data({"name": "npz", "file": "large.npz", "layout": "NCHW"}, folder=spec.folder)
    for kind in KINDS:
        for severity in SEVERITIES:
            shown = corrupted(data, kind, severity)
            said = [
                np.mean([predict_logits(shop.network(p.node, p.place), shown) for p in side], axis=0).argmax(1)
                for side in (pair.old, pair.new)
            ]
            label = data.test.y.numpy()
            run = found["paragon", kind, severity]
            assert run["error_rate_new"] == pytest.approx(np.mean(said[1] != label))
            assert run["negative_flips"] == np.sum((said[0] == label) & (said[1] != label))
    noise = [found["none", "gaussian_noise", severity]["error_rate_new"] for severity in SEVERITIES]
    assert noise[0] < noise[1]


def test_the_table_has_their_mean(bench: Bench) -> None:
    runs = [run for run in pq.read_table(bench.out / "runs.parquet").to_pylist() if run["part"] == "corrupted"]
    row = {row.name: row for row in read_rows(bench.out, "corrupted")}["none"]
    wanted = np.mean([run["nll_new"] for run in runs if run["row"] == "none"])
    assert row.cells["nll_new"].mean == pytest.approx(wanted)
    assert "## Test, corrupted: the mean over kinds and severities" in (bench.out / "table.md").read_text()


def test_other_corruptions_are_measured_anew_without_training(bench: Bench) -> None:
    other = bench.spec.model_copy(
        update={"corruptions": bench.spec.corruptions.model_copy(update={"severities": [2]})}  # type: ignore[union-attr]
    )
    told: list[Any] = []
    Bench(other, bench.out).run(processes=1, on_network=told.append)
    assert told == []
    runs = pq.read_table(bench.out / "runs.parquet").to_pylist()
    assert {run["severity"] for run in runs if run["part"] == "corrupted"} == {2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"corruptions": {"kinds": ["blur"]}}, "there is no corruption 'blur'"),
        ({"corruptions": {}}, "corruptions need images in memory"),
        ({"corruptions": {"severities": [6]}}, "corruptions.severities"),
    ],
)
def test_what_cannot_work_is_said(changes: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Bench(parsed(**changes), tmp_path).run(processes=1)
    assert said in str(error.value)
