"""What commands print is free of codes that a terminal would obey, whatever classes, ids and files are called."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flipguard.cli.app import app
from flipguard.predictions import Predictions

EVIL = "\x1b[2J\x1b]0;title\x07red\x9b31m\x85\u202e\u2066\r[bold]"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three prediction files in which every text is evil, their names included."""
    monkeypatch.chdir(tmp_path)
    names = []
    for number, said in enumerate(([0, 1, 2, 1, 0], [0, 2, 1, 1, 0], [1, 2, 1, 1, 0])):
        name = f"{EVIL}{number}.parquet"
        Predictions.from_arrays(
            id=[f"{EVIL}{i}" for i in range(5)],
            label=[0, 1, 2, 1, 0],
            prediction=said,
            classes=[f"{EVIL}{c}" for c in "abc"],
            slices={f"{EVIL}slice": [EVIL, "x", EVIL, "x", None]},
            model=f"{EVIL}model",
            version=f"{EVIL}{number}",
        ).write(name)
        names.append(name)
    return names


def assert_clean(text: str) -> None:
    assert CONTROLS.search(text) is None, repr(CONTROLS.search(text))


@pytest.mark.parametrize("command", ["compare", "matrix"])
@pytest.mark.parametrize("options", [[], ["--json", "-"], ["--markdown", "-"]])
def test_tables_json_and_markdown(command: str, options: list[str], files: list[str]) -> None:
    result = run(command, *files[: 2 if command == "compare" else 3], *options)
    assert result.exit_code == 0, result.stderr
    assert "red" in result.stdout
    assert_clean(result.stdout + result.stderr)
    if "--json" in options:
        # Escaped, not lost: a program that reads it gets the names as they are.
        texts = json.dumps(json.loads(result.stdout), ensure_ascii=True)
        assert json.dumps(EVIL)[1:-1] in texts


def test_errors_and_tracebacks(files: list[str]) -> None:
    for options in ([], ["--debug"]):
        result = run("compare", files[0], f"{EVIL}nowhere.parquet", *options)
        assert result.exit_code == 2
        assert "nowhere" in result.stderr
        assert_clean(result.stderr)


def test_what_report_and_rewrite_say(files: list[str]) -> None:
    for result in (
        run("report", files[0], files[1], "--out", f"{EVIL}.html"),
        run("rewrite", files[0], files[1], "--out", f"{EVIL}out.parquet", "--same-rows"),
    ):
        assert result.exit_code == 0, result.stderr
        assert_clean(result.stdout)


def test_a_dry_run_of_an_evil_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = {"data": {"name": "digits", "per_class": 13}, "new": {"model": EVIL}}
    Path("s.yaml").write_text(json.dumps(spec))
    result = run("train", "s.yaml", "--dry-run")
    assert result.exit_code == 2
    assert_clean(result.stdout + result.stderr)
