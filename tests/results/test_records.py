"""The committed tables are what the committed records give."""

import os
import re
import shutil
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from held import ROOT, rows_of

from flipguard.bench.read import read_bench
from flipguard.bench.written import write_tables


@pytest.mark.parametrize("name", ["elodi_cifar100", "elodi_cifar100_long"])
def test_the_cifar_tables_are_made_from_their_records(name: str) -> None:
    command = [sys.executable, "recipes/table.py", f"results/{name}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "results" / f"{name}.md").read_text()


def test_what_is_still_to_be_run_can_be(tmp_path: Path) -> None:
    """Each bench that the script asks for is there, each row and seed is one of its bench, and none has a record."""
    lanes = [_asked(lane, tmp_path) for lane in ("first", "second")]
    asked = list(chain.from_iterable(lanes))
    names = {name for name, _ in asked}
    assert {"cifar100_ways", "cifar100_corrupted", "cifar100_architectures", "clinc", "agnews_tuned"} <= names
    specs = {name: read_bench(ROOT / "recipes" / "bench" / f"{name}.yaml") for name in names}
    for name, given in asked:
        assert "--seed" in dict(given)
        for option, value in given:
            allowed = {"--row": specs[name].every_row, "--seed": map(str, specs[name].seeds)}
            assert option not in allowed or value in allowed[option], name
        record = ROOT / "results" / "bench" / name / "runs.parquet"
        there = {(row, str(seed)) for row, seed in _recorded(record)} if record.exists() else set()
        rows, seeds = ([value for option, value in given if option == wanted] for wanted in ("--row", "--seed"))
        assert not there & {(row, seed) for row in rows or specs[name].every_row for seed in seeds}, name
    # Lanes run at the same time, and a folder is one command's.
    folders = [{dict(given)["--out"] for _, given in lane} for lane in lanes]
    assert len(set().union(*folders)) == sum(map(len, folders))


def _recorded(path: Path) -> set[tuple[str, int]]:
    return {(run["row"], run["seed"]) for run in pq.read_table(path, columns=["row", "seed"]).to_pylist()}


def _asked(lane: str, folder: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """What a lane of evidence.sh would run: each bench, and its options with their values."""
    command = ["bash", str(ROOT / "recipes" / "evidence.sh"), "DATA", str(folder)]
    environment = {**os.environ, "PYTHON": "echo", "LANES": lane}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    words = [line.removeprefix("-m flipguard bench ").split() for line in done.stdout.splitlines()]
    return [(name, [pair for pair in pairwise(rest) if pair[0].startswith("--")]) for name, *rest in words]


def test_the_state_of_the_papers_tables_is_what_is_here() -> None:
    """What is said to be measured has its record and links to it; what is still to be run has a spec and no record."""
    text = (ROOT / "results" / "README.md").read_text().split("## The papers' tables, and where ours stand")[1]
    rows = [line.split("|") for line in text.split("\n## ")[0].splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 15
    for _, table, measured, open_, _ in rows:
        for name, target in re.findall(r"\[(\w+)\]\(bench/(\w+)/table\.md\)", measured):
            assert name == target
            assert (ROOT / "results" / "bench" / target / "runs.parquet").exists(), (table, target)
        for name in re.findall(r"`(\w+)`", open_):
            assert (ROOT / "recipes" / "bench" / f"{name}.yaml").exists(), (table, name)
            assert "the rest of" in open_ or not (ROOT / "results" / "bench" / name).exists(), (table, name)


@pytest.mark.parametrize("name", ["cifar100", "clinc_methods"])
def test_how_many_rows_are_measured_is_what_is_here(name: str) -> None:
    spec = read_bench(ROOT / "recipes" / "bench" / f"{name}.yaml", [])
    rows = len(rows_of(name))
    text = (ROOT / "results" / "README.md").read_text()
    assert f"[{name}](bench/{name}/table.md) ({rows} of {len(spec.every_row)} rows" in text


BENCHES = sorted(path.parent for path in (ROOT / "results" / "bench").glob("*/runs.parquet"))


def test_the_benches_are_there() -> None:
    assert "digits" in {path.name for path in BENCHES}


@pytest.mark.parametrize("folder", BENCHES, ids=lambda folder: folder.name)
def test_a_bench_s_tables_are_made_from_its_two_files(folder: Path, tmp_path: Path) -> None:
    for name in ("runs.parquet", "predictions.parquet"):
        shutil.copy(folder / name, tmp_path)
    write_tables(tmp_path)
    assert (tmp_path / "table.md").read_text() == (folder / "table.md").read_text()


@pytest.mark.parametrize("folder", BENCHES, ids=lambda folder: folder.name)
def test_a_bench_s_runs_are_what_its_models_said(folder: Path) -> None:
    """Each rate of each run, from the predictions themselves."""
    said = pq.read_table(folder / "predictions.parquet").to_pandas()
    label = said["label"].to_numpy()
    runs = [run for run in pq.read_table(folder / "runs.parquet").to_pylist() if run["part"] == "test"]
    assert runs
    for run in runs:
        old, new = (said[f"{run['row']}.{run['seed']}.{run['pair']}.{side}"].to_numpy() for side in ("old", "new"))
        wrong_old, wrong_new = np.mean(old != label), np.mean(new != label)
        flipped = np.mean((old == label) & (new != label))
        assert run["error_rate_old"] == pytest.approx(wrong_old)
        assert run["error_rate_new"] == pytest.approx(wrong_new)
        assert run["negative_flip_rate"] == pytest.approx(flipped)
        assert run["relative_negative_flip_rate"] == pytest.approx(flipped / ((1 - wrong_old) * wrong_new))
        assert run["churn"] == pytest.approx(np.mean(old != new))


def test_the_figures_in_words_are_the_tables() -> None:
    """Each mean in the summary of results/README.md stands in the test half of its table."""
    words = (ROOT / "results" / "README.md").read_text()
    table = (ROOT / "results" / "elodi_cifar100_long.md").read_text().split("## Test")[1]
    summary = words.split("| on the test set |")[1].split("What it shows")[0]
    rows = [line for line in summary.splitlines()[2:] if line.startswith("|")]
    found = [[cell.split() for cell in row.split("|")[2:5]] for row in rows]
    assert len(found) == 10
    for figures in found:
        means = [figure[0] for figure in figures]
        assert any(all(f"| {mean} " in line for mean in means) for line in table.splitlines()), figures
