"""Rows and seeds that several machines measured, in one folder: what came apart is whole again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner, Result

from flipguard.bench.added import add_results
from flipguard.bench.read import read_bench
from flipguard.bench.tables import read_facts, read_table, write_predictions, write_runs
from flipguard.bench.written import write_tables
from flipguard.cli.app import app
from flipguard.releases.folder import RunFolder
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
    write_runs(other, [{**record, "error_rate_new": 0.5, "key": "other"} for record in records], read_facts(WHOLE))
    notes = add_results(read_bench(SPEC), out, [other, other])
    said = f"samples_kd, seed 1: {out} counts; that of {other}, of other settings, is passed over."
    assert notes.count(said) == 2
    assert f"samples_kd, seed 3: {other} counts; that of {other} is passed over." in notes
    found = {(r["seed"], r["error_rate_new"] == 0.5) for r in read_table(out, "runs.parquet").to_pylist()}
    assert found == {(0, True), (1, False), (2, False), (3, True), (4, True)}


def test_who_has_more_parts_of_the_data_takes_the_place_of_who_has_fewer(tmp_path: Path) -> None:
    """Whole: parts that were measured on other networks would not belong together."""
    fewer = part(tmp_path / "out", lambda record: record["seed"] == 1 and record["part"] == "test")
    other = part(tmp_path / "other", lambda record: record["seed"] == 1)
    table, row = read_table(other, "predictions.parquet"), "samples_kd.1.0.new"
    turned = {name: table[name].to_numpy() for name in table.column_names[2:]}
    turned[row] = turned[row][::-1].copy()
    write_predictions(other, table["id"], table["label"].to_numpy(), turned)
    (note,) = (n for n in add_results(read_bench(SPEC), fewer, [other]) if n.startswith("samples_kd,"))
    assert note == f"samples_kd, seed 1: {other} counts, which has more parts; that of {fewer} is passed over."
    assert {r["part"] for r in read_table(fewer, "runs.parquet").to_pylist()} > {"test", "validation"}
    assert read_table(fewer, "predictions.parquet")[row].to_pylist() == turned[row].tolist()
    again = add_results(read_bench(SPEC), fewer, [part(tmp_path / "third", lambda record: record["part"] == "test")])
    assert f"samples_kd, seed 1: {fewer} counts; that of {tmp_path / 'third'} is passed over." in again


def test_other_conditions_samples_and_benches_are_refused(tmp_path: Path) -> None:
    out = part(tmp_path / "out", lambda record: record["seed"] == 1)
    kept = (out / "runs.parquet").read_bytes()
    train = {**read_facts(WHOLE)["train"], "epochs": 77}
    longer = part(tmp_path / "longer", lambda record: record["seed"] == 2, train=train)
    fewer = part(tmp_path / "fewer", lambda record: record["seed"] == 2)
    said = read_table(fewer, "predictions.parquet").slice(1)
    columns = {name: said[name].to_numpy() for name in said.column_names[2:]}
    write_predictions(fewer, said["id"], said["label"].to_numpy(), columns)
    bare = part(tmp_path / "bare", lambda record: record["seed"] == 2)
    (bare / "predictions.parquet").unlink()
    rows = tmp_path / "rows"
    shutil.copytree(WHOLE, rows)
    records = [{**record, "row": "unheard"} for record in read_table(WHOLE, "runs.parquet").to_pylist()]
    write_runs(rows, records, read_facts(WHOLE))
    for folder, message in (
        (longer, r"longer was measured with train\.epochs 77, and this bench has \d+: leave it out\.$"),
        (fewer, r"fewer has other test samples than .*out, or another order of them: add it to another --out\.$"),
        (bare, r"bare holds a part of a bench's results alone: there is no predictions\.parquet\.$"),
        (rows, r"rows has the row 'unheard', which this bench has not: is it another one's\?$"),
        (tmp_path / "nowhere", r"nowhere holds no results of a bench: there is no runs\.parquet\.$"),
        (ROOT / "results" / "bench" / "digits", "digits has the row 'none', which this bench has not"),
        (ROOT / "results" / "bench" / "cifar100", "cifar100 was measured with data"),
    ):
        with pytest.raises(InputError, match=message):
            add_results(read_bench(SPEC), out, [folder])
    assert (out / "runs.parquet").read_bytes() == kept


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], prog_name="flipguard")


def test_the_command_adds_and_refuses_where_a_bench_is_under_way(tmp_path: Path) -> None:
    one = part(tmp_path / "one", lambda record: record["seed"] == 1)
    other = part(tmp_path / "other", lambda record: record["seed"] == 2)
    out = tmp_path / "out"
    command = ["bench", SPEC, "--add", one, "--add", other, "--out", out]
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "2 seeds, mean ± std." in done.stdout
    assert {path.name for path in out.iterdir()} == {"runs.parquet", "predictions.parquet", "table.md", "front.svg"}
    trained = run("bench", SPEC, "--out", out, "--device", "cpu")
    assert trained.exit_code == 2
    assert "out holds results and no pairs/ that they come from, and this would write over them" in trained.stderr
    assert run(*command).exit_code == 0
    begun = tmp_path / "begun"
    with RunFolder(begun).held():
        refused = run(*command[:-1], begun)
    (out / "pairs").mkdir()
    for refusal in (refused, run(*command)):
        assert refusal.exit_code == 2
        assert "is where a bench is under way" in refusal.stderr


@pytest.mark.parametrize(
    "option",
    [
        ["--count"],
        ["--tables"],
        ["--repair"],
        ["--networks", "there"],
        ["--processes", "2"],
        ["--on", "ray"],
        ["train.epochs=3"],
    ],
)
def test_what_has_no_meaning_beside_it_is_refused(option: list[str], tmp_path: Path) -> None:
    refused = run("bench", SPEC, *option, "--add", WHOLE, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert f"--add only takes what was measured: leave {option[0]} out." in refused.stderr
    assert not (tmp_path / "out").exists()


def test_rows_of_another_bench_under_the_same_conditions(tmp_path: Path) -> None:
    """Of the folder that is added only the named ones are taken; what else it holds need not be of this bench."""
    spec = tmp_path / "some.yaml"
    some = yaml.safe_load(SPEC.read_text())
    some["rows"] = {name: plan for name, plan in some["rows"].items() if name in ("samples_kd", "samples_none")}
    some["like"] = "digits.yaml"
    shutil.copy(SPEC.with_name("digits.yaml"), tmp_path)
    spec.write_text(yaml.safe_dump(some))
    out = tmp_path / "out"
    refused = run("bench", spec, "--add", WHOLE, "--out", out)
    assert refused.exit_code == 2
    assert "which this bench has not" in refused.stderr
    added = run("bench", spec, "--add", WHOLE, "--row", "samples_kd", "--seed", "1", "--seed", "3", "--out", out)
    assert added.exit_code == 0, added.output
    found = {(r["row"], r["seed"]) for r in read_table(out, "runs.parquet").to_pylist()}
    assert found == {("samples_kd", 1), ("samples_kd", 3)}
    # What is there stays, of whichever rows and seeds.
    added = run("bench", spec, "--add", WHOLE, "--row", "samples_none", "--seed", "2", "--out", out)
    assert added.exit_code == 0, added.output
    found = {(r["row"], r["seed"]) for r in read_table(out, "runs.parquet").to_pylist()}
    assert found == {("samples_kd", 1), ("samples_kd", 3), ("samples_none", 2)}
    said = read_table(out, "predictions.parquet").column_names
    assert {name.rsplit(".", 3)[0] for name in said[2:]} == {"samples_kd", "samples_none"}
    assert len([name for name in said if name.startswith("samples_kd.")]) == 4


@pytest.mark.parametrize(("option", "there"), [("--row", "samples_kd"), ("--seed", "0, 1, 2, 3, 4")])
def test_a_row_or_seed_that_is_not_there_is_named(option: str, there: str, tmp_path: Path) -> None:
    refused = run("bench", SPEC, "--add", WHOLE, option, "77", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert f"has no {option[2:]} 77; it has " in refused.stderr
    assert there in refused.stderr
    assert not (tmp_path / "out").exists()


def test_a_row_that_a_seed_has_not_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    some = part(tmp_path / "some", lambda r: r["seed"] == 1 or r["row"] == "samples_kd")
    refused = run("bench", SPEC, "--add", some, "--row", "samples_none", "--seed", "3", "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "some has samples_none by seed 1, and not by 3." in refused.stderr
    assert not (tmp_path / "out").exists()


def test_a_folder_is_not_added_to_itself(tmp_path: Path) -> None:
    out = part(tmp_path / "out", lambda record: record["seed"] in (1, 2))
    before = (out / "runs.parquet").read_bytes()
    refused = run("bench", SPEC, "--add", tmp_path / "." / "out", "--row", "samples_kd", "--out", out)
    assert refused.exit_code == 2
    assert "is --out itself" in refused.stderr
    assert (out / "runs.parquet").read_bytes() == before


def test_the_name_of_the_bench_is_needed(tmp_path: Path) -> None:
    refused = run("bench", "--add", WHOLE, "--out", tmp_path / "out")
    assert refused.exit_code == 2
    assert "--add needs the name of the bench" in refused.stderr
