"""`flipguard rewrite` as a user meets it."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import flipguard
from flipguard.cli.app import app
from flipguard.predictions import Predictions

C, N = 5, 301


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    label = np.arange(N) % C
    for number, right in enumerate((0.7, 0.75, 0.8)):
        said = np.where(rng.random(N) < right, label, (label + rng.integers(1, C, N)) % C)
        split = np.where(np.arange(N) < 101, "validation", "test")
        Predictions.from_arrays(label=label, prediction=said, split=split, model=f"v{number}").write(
            f"v{number}.parquet"
        )
    return ["v0.parquet", "v1.parquet", "v2.parquet"]


def test_it_writes_what_the_library_gives_and_prints_its_figures(files: list[str]) -> None:
    done = run("rewrite", *files, "--split", "validation", "--out", "stored.parquet", "--cost-ratio", "2")
    assert done.exit_code == 0, done.stderr
    found = flipguard.rewrite(files, split="validation", cost_ratio=2)
    assert flipguard.read_predictions("stored.parquet").table() == found.predictions.table()
    assert found.before is not None
    assert found.after is not None
    assert "v0 → v1 → v2" in done.stdout
    told = "note: stored.parquet holds the 200 rewritten rows alone: to compare it with a version's whole file, pass "
    assert f"{told}--on-missing drop." in " ".join(done.stdout.split())
    assert "--on-missing drop" in run("compare", "v2.parquet", "stored.parquet").stderr
    assert run("compare", "v2.parquet", "stored.parquet", "--on-missing", "drop").exit_code == 0
    assert "rule cr, cost ratio 2; reliability estimated on 101 rows of the split 'validation'" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("ΣNF"))
    assert line.split()[-2:] == [str(found.before.negative_flips), str(found.after.negative_flips)]


def test_json_posteriors_and_the_other_rules(files: list[str]) -> None:
    done = run("rewrite", *files, "--same-rows", "--rule", "mbme", "--posteriors", "--out", "s.parquet", "--json", "-")
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["rule"] == "mbme"
    assert figures["cost_ratio"] is None
    assert figures["estimated_on"] == "the rewritten rows themselves"
    assert "logits" in flipguard.read_predictions("s.parquet").columns


def test_several_files_to_calibrate_on(files: list[str]) -> None:
    rng = np.random.default_rng(1)
    label = np.arange(N) % C
    names = []
    for number in range(3):
        said = np.where(rng.random(N) < 0.7, label, (label + 1) % C)
        names.append(f"val{number}.parquet")
        ids = [f"other_{i}" for i in range(N)]
        Predictions.from_arrays(id=ids, label=label, prediction=said).write(names[-1])
    done = run("rewrite", *files, "--out", "s.parquet", "--calibrate-on", *names)
    assert done.exit_code == 0, done.stderr
    assert "other data: val0.parquet, val1.parquet, val2.parquet" in " ".join(done.stdout.split())
    assert "--on-missing" not in done.stdout, "every row was rewritten"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "s.parquet"], "choose one of --calibrate-on FILE…, --split NAME, or --same-rows"),
        (["--out", "s.csv", "--same-rows"], "predictions are written as Parquet"),
        (["--out", "v1.parquet", "--same-rows"], "would overwrite v1.parquet"),
        (["--out", "s.parquet", "--same-rows", "--rule", "map"], "the rule must be one of mb, mbme, cr"),
        (["--out", "s.parquet", "--same-rows", "--cost-ratio", "0.5"], "the cost ratio must be at least 1"),
        (["--same-rows"], "Missing option '--out'"),
    ],
)
def test_bad_input_is_one_line(files: list[str], arguments: list[str], message: str) -> None:
    done = run("rewrite", *files, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("s.parquet").exists()
