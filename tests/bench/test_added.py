"""Rows and seeds that several machines measured, in one folder: what came apart is whole again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from flipguard.bench.added import add_results
from flipguard.bench.read import read_bench
from flipguard.bench.run import write_tables
from flipguard.bench.tables import read_facts, read_table, write_predictions, write_runs
from flipguard.cli.app import app
from flipguard.types import InputError

ROOT = Path(__file__).parents[2]
WHOLE = ROOT / "results" / "bench" / "digits_growth"
SPEC = ROOT / "recipes" / "bench" / "digits_growth.yaml"


def part(folder: Path, wanted: Callable[[dict[str, Any]], bool], **changes: Any) -> Path:
    """Some of the committed records, as a machine that made only these would have them."""
    records = [record for record in read_table(WHOLE, "runs.parquet").to_pylist() if wanted(record)]
    names = {f"{r['row']}.{r['seed']}.{r['pair']}.{side}" for r in records for side in ("old", "new")}
    said = read_table(WHOLE, "predictions.parquet")
    folder.mkdir()
    write_runs(folder, records, {**read_facts(WHOLE), **changes})
    columns = {name: said[name].to_numpy() for name in said.column_names if name in names}
    write_predictions(folder, said["id"], said["label"].to_numpy(), columns)
    return folder


def test_what_came_apart_by_seeds_and_rows_is_whole_again(tmp_path: Path) -> None:
    rows = list(dict.fromkeys(pq.read_table(WHOLE / "runs.parquet")["row"].to_pylist()))
    late = part(tmp_path / "late", lambda record: record["seed"] > 2)
    half = part(tmp_path / "half", lambda record: record["seed"] <= 2 and record["row"] in rows[::2])
    rest = part(tmp_path / "rest", lambda record: record["seed"] <= 2 and record["row"] not in rows[::2])
    assert add_results(read_bench(SPEC), tmp_path / "all", [late, half, rest]) == []
    write_tables(tmp_path / "all")
    assert (tmp_path / "all" / "table.md").read_text() == (WHOLE / "table.md").read_text()
    made, whole = (read_table(folder, "runs.parquet").to_pylist() for folder in (tmp_path / "all", WHOLE))
    assert made == whole
    made, whole = (read_table(folder, "predictions.parquet") for folder in (tmp_path / "all", WHOLE))
    assert made.select(whole.column_names).equals(whole)
    assert {*made.column_names} == {*whole.column_names}


def test_what_is_there_stays(tmp_path: Path) -> None:
    out = part(tmp_path / "out", lambda record: record["seed"] in (1, 2))
    other = tmp_path / "other"
    shutil.copytree(WHOLE, other)
    records = read_table(WHOLE, "runs.parquet").to_pylist()
    write_runs(other, [{**record, "error_rate_new": 0.5} for record in records], read_facts(WHOLE))
    notes = add_results(read_bench(SPEC), out, [other])
    assert f"samples_kd, seed 1, is there already: that of {other} is passed over." in notes
    found = {(r["seed"], r["error_rate_new"] == 0.5) for r in read_table(out, "runs.parquet").to_pylist()}
    assert found == {(0, True), (1, False), (2, False), (3, True), (4, True)}


def test_other_conditions_and_other_samples_are_refused(tmp_path: Path) -> None:
    out = part(tmp_path / "out", lambda record: record["seed"] == 1)
    kept = (out / "runs.parquet").read_bytes()
    train = {**read_facts(WHOLE)["train"], "epochs": 77}
    longer = part(tmp_path / "longer", lambda record: record["seed"] == 2, train=train)
    with pytest.raises(InputError, match=r"longer was measured with train\.epochs 77, and the others with \d+\.$"):
        add_results(read_bench(SPEC), out, [longer])
    fewer = part(tmp_path / "fewer", lambda record: record["seed"] == 2)
    said = read_table(fewer, "predictions.parquet").slice(1)
    columns = {name: said[name].to_numpy() for name in said.column_names[2:]}
    write_predictions(fewer, said["id"], said["label"].to_numpy(), columns)
    with pytest.raises(InputError, match="fewer has other test samples than"):
        add_results(read_bench(SPEC), out, [fewer])
    assert (out / "runs.parquet").read_bytes() == kept


def test_the_command_adds_and_refuses_where_a_bench_is_under_way(tmp_path: Path) -> None:
    one = part(tmp_path / "one", lambda record: record["seed"] == 1)
    other = part(tmp_path / "other", lambda record: record["seed"] == 2)
    out = tmp_path / "out"
    command = ["bench", str(SPEC), "--add", str(one), "--add", str(other), "--out", str(out)]
    done = CliRunner().invoke(app, command, prog_name="flipguard")
    assert done.exit_code == 0, done.output
    assert "2 seeds, mean ± std." in done.output
    (out / "pairs").mkdir()
    for more, reason in (([], "is where a bench is under way"), (["train.epochs=3"], "does not change: leave it out")):
        refused = CliRunner().invoke(app, [*command[:2], *more, *command[2:]], prog_name="flipguard")
        assert refused.exit_code == 2
        assert reason in refused.output
