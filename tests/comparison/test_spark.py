"""The same expression on a real Spark gives the cells that DuckDB gives, and from them the same tally."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flipguard.comparison.engine import Counted
from flipguard.comparison.expression import MISSING_NEW, MISSING_OLD, ONLY_OLD, Plan, counts
from flipguard.comparison.spark import check_answers, compare_on_spark
from flipguard.metrics import Tally
from flipguard.types import InputError

pytestmark = [
    pytest.mark.slow,
    # Spark's own Python side opens sockets that the collector closes, and calls what its next version renames.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[1]")
        .appName("flipguard")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()
    del os.environ["SPARK_LOCAL_IP"]


def example(folder: Path) -> tuple[Path, Path, Plan]:
    """Two logs in other orders with gaps, ids in one only, contradictions, splits, weights and slices."""
    random = np.random.default_rng(0)
    paths = []
    for i, name in enumerate(("old", "new")):
        rows = 1_009
        label = np.random.default_rng(1).integers(0, 7, rows)
        said = np.where(random.random(rows) < 0.2, random.integers(0, 7, rows), label)
        gaps = random.random((2, rows)) < 0.05
        columns = {
            "id": pa.array(np.arange(rows) + 13 * i),
            "label": pa.array(np.roll(label, -13 * i), mask=gaps[0]),
            "prediction": pa.array(np.roll(said, -13 * i), mask=gaps[1]),
            "by_0": pa.array([("de", "at", None)[k % 3] for k in range(rows)]),
        }
        if name == "new":
            columns["weight"] = pa.array(random.integers(1, 5, rows).astype(float))
            columns["split"] = pa.array(["validation" if k % 10 == 0 else "test" for k in range(rows)])
        table = pa.table(columns).take(random.permutation(rows))
        paths.append(folder / f"{name}.parquet")
        pq.write_table(table, paths[-1])
    columns_of = [frozenset(pq.read_schema(path).names) for path in paths]
    return paths[0], paths[1], Plan(columns_of[0], columns_of[1], by=("by_0",))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    names = ("cell", "label", "by_0", "count", "weight", "weight_squared", "example")
    found = [tuple(row[name] for name in names) for row in table.to_pylist()]
    return sorted(found, key=lambda row: tuple((value is None, value) for value in row[:3]))


def tally_of(table: pa.Table) -> Tally:
    cell = table["cell"].to_numpy().astype(np.int64)
    kept = (cell & 15) < ONLY_OLD
    table, cell = table.filter(pa.array(kept)), cell[kept]
    counted = Counted(
        outcome=cell & 15,
        label=table["label"].fill_null(-1).to_numpy().astype(np.int64),
        count=table["count"].to_numpy().astype(np.int64),
        missing_old=(cell & MISSING_OLD) > 0,
        missing_new=(cell & MISSING_NEW) > 0,
        weight=table["weight"].fill_null(0.0).to_numpy(),
        weight_squared=table["weight_squared"].fill_null(0.0).to_numpy(),
        example=table["example"],
        by={"by_0": table["by_0"]},
        dropped_old=0,
        dropped_new=0,
        calibration=0,
        other_splits=0,
    )
    return counted.tally(counted.label + 1, 8)


def test_spark_and_duckdb_count_alike(spark: Any, tmp_path: Path) -> None:
    old, new, plan = example(tmp_path)
    on_spark = counts(spark.read.parquet(str(old)), spark.read.parquet(str(new)), plan).collect("pyarrow").to_native()
    with duckdb.connect() as connection:
        relations = [connection.read_parquet(str(path)) for path in (old, new)]
        on_duckdb = counts(*relations, plan).collect("pyarrow").to_native()
    assert rows_of(on_spark) == rows_of(on_duckdb)
    assert len({row[0] for row in rows_of(on_spark)}) > 12
    one, other = tally_of(on_spark).leaves(), tally_of(on_duckdb).leaves()
    assert one.keys() == other.keys() == {"count", "missing", "weight", "weight_squared"}
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    assert one["count"].sum() > 800


def test_a_table_of_the_catalogue_with_scores_alone(spark: Any) -> None:
    rows = [(1, 0, [2.0, 1.0]), (2, 1, [0.0, 3.0]), (3, 1, [1.0, 0.0])]
    spark.createDataFrame(rows, "id long, label int, logits array<double>").createOrReplaceTempView("v1")
    better = [(1, 0, [0.0, 1.0]), (2, 1, [0.0, 3.0]), (3, 1, [0.0, 1.0])]
    spark.createDataFrame(better, "id long, label int, logits array<double>").createOrReplaceTempView("v2")
    found = compare_on_spark("spark://local[1]", "v1", "v2")
    assert (found.negative_flips, found.positive_flips) == (1, 1)
    assert (found.old.name, found.old.rows) == ("v1", 3)
    with pytest.raises(InputError, match=r"Spark cannot compare the tables: .*nowhere"):
        compare_on_spark("spark://local[1]", "v1", "nowhere")


def settings(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a Spark that keeps to this machine and this folder."""
    conf = folder / "conf"
    conf.mkdir(exist_ok=True)
    chosen = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.master.rest.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.starvation.timeout": "1s",
    }
    (conf / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in chosen.items()))
    return {**os.environ, "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flipguard", "compare", *arguments]


def command(folder: Path, *arguments: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
    environment = settings(folder, **more)
    done = subprocess.run(
        words(*arguments), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == code, done.stderr
    return done


def told(process: "subprocess.Popen[Any]", log: Path, pattern: str) -> str:
    """What a process writes sooner or later."""
    deadline = time.monotonic() + 120
    while (found := re.search(pattern, log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return found[1]


class Cluster:
    """A standalone master, and workers of one core each: processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []
        log = self._start("master", "Master", "--port", "0")
        self.url = told(self.running[-1], log, r"Starting Spark master at (spark://\S+)")

    def add_worker(self) -> None:
        where = str(self.folder / "worker")
        log = self._start("worker", "Worker", "--cores", "1", "--memory", "1g", "--work-dir", where, self.url)
        told(self.running[-1], log, r"Successfully (registered with master)")

    def _start(self, name: str, what: str, *options: str) -> Path:
        import pyspark

        script = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        address = ("--host", "127.0.0.1", "--webui-port", "0")
        call = [script, f"org.apache.spark.deploy.{name}.{what}", *address, *options]
        path = self.folder / f"{name}.log"
        with path.open("w") as log:
            self.running.append(subprocess.Popen(call, env=settings(self.folder), stdout=log, stderr=subprocess.STDOUT))
        return path

    def stop(self) -> None:
        for process in reversed(self.running):
            process.terminate()
            process.wait(timeout=60)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop()


@pytest.mark.long
def test_a_cluster_counts_what_is_counted_on_files(cluster: Cluster, tmp_path: Path) -> None:
    """A master and a worker in processes of their own. Spark says only that it waits, while it has no worker."""
    old, new, _ = example(tmp_path)
    options = ("--on-missing", "drop", "--by", "by_0", "--labels", "old", "--max-nfr", "0.01", "--json", "-")
    started = words(cluster.url, str(old), str(new), *options)
    waits = "has not accepted any resources; check your cluster UI to ensure that workers are registered"
    with (tmp_path / "out").open("w") as out, (tmp_path / "errors").open("w") as errors:
        run = subprocess.Popen(started, cwd=tmp_path, env=settings(tmp_path), stdout=out, stderr=errors)
    try:
        told(run, tmp_path / "errors", f"({waits})")
        cluster.add_worker()
        run.wait(timeout=300)
    finally:
        run.kill()
        run.wait()
    said = (tmp_path / "errors").read_text()
    assert run.returncode == 1, said
    assert all(waits in line for line in said.splitlines()), said
    there = json.loads((tmp_path / "out").read_text())
    here = json.loads(command(tmp_path, str(old), str(new), *options, code=1).stdout)
    # Tables name single flips by an example for each class, and do not count overruled labels.
    for name in here.keys() - {"worst_flips", "notes"}:
        assert there[name] == here[name], name
    assert there["negative_flips"] > 50
    assert list((tmp_path / "worker").glob("app-*/0/stderr")), "the worker did nothing"


@pytest.mark.parametrize("option", [("--html", "page.html"), ("--alpha", "2"), ("--memory", "1GB")])
def test_what_needs_prediction_files_is_refused(option: tuple[str, str], tmp_path: Path) -> None:
    refused = command(tmp_path, "spark://local[2]", "v1", "v2", *option, code=2)
    assert f"{option[0]} needs prediction files" in refused.stderr


def test_a_cluster_that_does_not_answer_is_told_of_on_one_line(tmp_path: Path) -> None:
    """Before any JVM is started: Spark itself would try for a minute."""
    done = command(tmp_path, "spark://127.0.0.1:1", "v1", "v2", code=2)
    assert done.stderr == "flipguard: spark://127.0.0.1:1 cannot be reached: Connection refused.\n"
    with closing(socket.create_server(("127.0.0.1", 0))) as standby:
        several = f"spark://127.0.0.1:1,127.0.0.1:{standby.getsockname()[1]}"
        check_answers(several)
    with pytest.raises(InputError, match=r"spark://127.0.0.1:1,127.0.0.1:\d+ cannot be reached: Connection refused\."):
        check_answers(several)
    for url in ("spark://head", "spark://:7077", "spark://head:port"):
        with pytest.raises(InputError, match=r"named as spark://HOST:PORT"):
            check_answers(url)


def test_a_spark_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Without Java, which is looked for in JAVA_HOME and on PATH."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = command(tmp_path, "spark://local[1]", "v1", "v2", code=2, PATH=str(tools), JAVA_HOME="")
    assert done.stderr == "flipguard: spark://local[1] gives no session: JAVA_HOME is not set.\n"
