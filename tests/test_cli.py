"""The commands as a user meets them: what they print, write and return."""

import contextlib
import csv
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, get_type_hints
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

import flipguard
from flipguard.cli.app import app
from flipguard.cli.shell import SeveralValues
from flipguard.comparison import GateSettings
from flipguard.predictions import Predictions

ROOT = Path(__file__).parents[1]
CLASSES = ("ant", "bee", "cat", "dog", "eel")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


def write_side(path: Path, right: np.ndarray, *, seed: int = 0, **facts: Any) -> Path:
    """Predictions with logits for samples of 5 classes; where it is not `right` the next class is predicted."""
    n = len(right)
    rng = np.random.default_rng(seed)
    label = np.arange(n) % 5
    logits = rng.normal(size=(n, 5)) + 6 * np.eye(5)[np.where(right, label, (label + 1) % 5)]
    slices = {"country": np.array(["de", "fr", "it"])[np.arange(n) % 3], "customer": np.arange(n) // 4}
    ids = np.array([f"img_{i:03d}" for i in range(n)])
    Predictions.from_arrays(id=ids, label=label, logits=logits, slices=slices, classes=CLASSES, **facts).write(path)
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """old.parquet and new.parquet in a folder of their own: of 307 samples 11 turn wrong and 31 right."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    old = np.ones(307, bool)
    old[:53] = False
    new = old.copy()
    new[:31] = True
    new[100:111] = False
    write_side(tmp_path / "old.parquet", old, seed=1)
    write_side(tmp_path / "new.parquet", new, seed=2)
    return tmp_path


@pytest.fixture
def copy(files: Path) -> str:
    """The old model, retrained."""
    write_side(files / "copy.parquet", np.arange(307) >= 50, seed=3)
    return "copy.parquet"


@pytest.mark.usefixtures("files")
def test_compare_prints_the_verdict_and_exits_0() -> None:
    result = run("compare", "old.parquet", "new.parquet")
    assert result.exit_code == 0
    assert result.stderr == ""
    flat = " ".join(result.stdout.split())
    assert "3.58% of all samples were right and are now wrong (11 of 307); 10.10% went the other way." in flat
    assert "The error fell from 17.26% to 10.75% (significant, p = 0.003)." in flat
    assert "gate:" not in flat
    assert "\x1b" not in result.stdout


@pytest.mark.usefixtures("files")
def test_the_gate_refuses_with_exit_1_and_passes_with_exit_0() -> None:
    refused = run("compare", "old.parquet", "new.parquet", "--max-nfr", "0.04")
    assert refused.exit_code == 1
    assert "gate: REFUSED" in refused.stdout
    passed = run("compare", "old.parquet", "new.parquet", "--max-nfr", "0.04", "--gate-on", "value")
    assert passed.exit_code == 0
    assert "gate: PASSED" in passed.stdout


@pytest.mark.usefixtures("files")
def test_json_on_stdout_is_json_alone_and_follows_the_schema() -> None:
    result = run("compare", "old.parquet", "new.parquet", "--json", "-", "--max-nfr", "0.01")
    assert result.exit_code == 1
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["negative_flips"] == 11
    assert found["negative_flip_rate"]["value"] == 11 / 307
    assert found["gate"]["passed"] is False
    schema = json.loads(run("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(found, schema, jsonschema.Draft202012Validator)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "n": "many"}, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("kind", ["comparison", "matrix"])
def test_the_published_schema_is_the_one_printed(kind: str) -> None:
    printed = run("schema", kind)
    assert printed.exit_code == 0
    published = (ROOT / "docs" / f"{kind}.schema.json").read_text(encoding="utf-8")
    assert json.loads(printed.stdout) == json.loads(published)


def test_several_outputs_at_once(files: Path) -> None:
    result = run(
        *("compare", "old.parquet", "new.parquet", "--json", "c.json", "--junit", "c.xml"),
        *("--markdown", "-", "--flips", "flips.csv", "--max-churn", "0.5"),
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("<!-- flipguard comparison -->\n")
    assert json.loads(Path("c.json").read_text())["n"] == 307
    assert next(ElementTree.parse("c.xml").iter("testcase")).get("name") == "max_churn"
    with Path("flips.csv").open(newline="") as file:
        outcomes = [row["outcome"] for row in csv.DictReader(file)]
    assert (outcomes.count("negative_flip"), outcomes.count("positive_flip")) == (11, 31)
    names = {"old.parquet", "new.parquet", "c.json", "c.xml", "flips.csv", ".git"}
    assert {path.name for path in files.iterdir()} == names


def another(copy: str) -> Path:
    """A second retrained copy beside the first."""
    return write_side(Path(copy).with_name("another.parquet"), np.arange(307) % 11 > 0, seed=5)


def test_every_option_reaches_the_comparison(copy: str) -> None:
    Path("map.json").write_text(json.dumps({"ant": "ant"}))
    result = run(
        *("compare", "old.parquet", "new.parquet", "--by", "country", "--confidence", "0.8", "--cluster", "customer"),
        *("--correction", "bh", "--alpha", "2", "--cost-ratio", "3", "--labels", "old", "--class-map", "map.json"),
        *("--on-missing", "drop", "--memory", "1GB", "--calibrate-on", "old.parquet", "--calibrate-on", "new.parquet"),
        *("--noise", copy, "--noise", another(copy), "--json", "-"),
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert list(found["slices"]) == ["country"]
    assert (found["confidence"], found["cluster"], found["correction"]) == (0.8, "customer", "bh")
    assert (found["surrogate_churn_alpha"], found["cost_ratio"], found["noise"]["copies"]) == (2.0, 3.0, 2)
    assert found["temperature_old"] > 0


@pytest.mark.usefixtures("files")
def test_split_and_on_missing_choose_the_rows() -> None:
    table = pq.read_table("new.parquet")
    pq.write_table(table.slice(7), "short.parquet")
    assert run("compare", "old.parquet", "short.parquet").exit_code == 2
    dropped = run("compare", "old.parquet", "short.parquet", "--on-missing", "drop", "--json", "-")
    assert json.loads(dropped.stdout)["n"] == 300
    split = table.append_column("split", [["train"] * 107 + ["test"] * 200])
    pq.write_table(split, "split.parquet")
    chosen = run("compare", "old.parquet", "split.parquet", "--split", "test", "--json", "-")
    assert json.loads(chosen.stdout)["n"] == 200


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("field", [f for f in GateSettings.model_fields if f.startswith("max_")])
def test_every_threshold_is_an_option(field: str, copy: str) -> None:
    flag = f"--{field.replace('_', '-')}"
    result = run("compare", "old.parquet", "new.parquet", "--noise", copy, another(copy), flag, "0", "--json", "-")
    (rule,) = json.loads(result.stdout)["gate"]["rules"]
    assert (rule["name"], rule["limit"]) == (field, 0.0)
    assert result.exit_code == (0 if rule["passed"] else 1)


@pytest.mark.usefixtures("files")
def test_min_slice_decides_which_slices_gate() -> None:
    limits = ("--by", "country", "--max-slice-nfr", "0.001", "--gate-on", "value", "--json", "-")
    gated = run("compare", "old.parquet", "new.parquet", *limits)
    assert gated.exit_code == 1
    free = run("compare", "old.parquet", "new.parquet", *limits, "--min-slice", "104")
    assert free.exit_code == 0
    assert json.loads(free.stdout)["gate"]["rules"][0]["reason"] == "no group has 104 labelled samples"


def test_settings_come_from_the_nearest_file_and_the_output_says_so(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("flipguard.toml").write_text("[gate]\nmax_nfr = 0.04\n[compare]\nconfidence = 0.5\n")
    inner = files / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    arguments = ("compare", "../old.parquet", "../new.parquet")
    found = run(*arguments)
    assert found.exit_code == 1
    assert "50% interval" in found.stdout
    assert "max_nfr 4.00%" in found.stdout
    assert "note: settings from ../flipguard.toml." in found.stdout
    assert "max_nfr 90.00%" in run(*arguments, "--max-nfr", "0.9").stdout
    ignored = run(*arguments, "--no-config")
    assert "95% interval" in ignored.stdout
    assert "gate:" not in ignored.stdout
    (inner / "strict.toml").write_text("[gate]\nmax_nfr = 0.0001\n")
    assert run(*arguments, "--config", "strict.toml").exit_code == 1


@pytest.mark.usefixtures("files")
def test_one_flag_takes_several_files_once_both_models_are_named() -> None:
    Path("c1.parquet").write_bytes(Path("old.parquet").read_bytes())
    Path("c2.parquet").write_bytes(Path("old.parquet").read_bytes())
    for order in (
        ("old.parquet", "new.parquet", "--noise", "c1.parquet", "c2.parquet", "--plain"),
        ("--noise", "c1.parquet", "old.parquet", "new.parquet", "--noise=c2.parquet"),
        ("old.parquet", "--noise", "c1.parquet", "new.parquet", "--noise", "c2.parquet"),
    ):
        found = json.loads(run("compare", *order, "--json", "-").stdout)
        assert found["noise"]["copies"] == 2
        assert (found["old"]["name"], found["new"]["name"]) == ("old.parquet", "new.parquet")
    extra = run("compare", "old.parquet", "new.parquet", "c1.parquet")
    assert extra.exit_code == 2
    assert "unexpected extra argument" in extra.stderr


def test_a_value_that_looks_like_a_file_is_not_taken_for_a_repetition() -> None:
    import typer.main

    command = typer.main.get_command(app).commands["compare"]  # type: ignore[attr-defined]
    assert isinstance(command, SeveralValues)
    spread = command.repeat_flags(["o", "n", "--by", "a", "b", "--json", "-", "--by=c", "d", "--plain", "--", "e", "f"])
    assert " ".join(spread) == "o n --by a --by b --json - --by=c --by d --plain -- e f"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("RUN --data name=table folder=mine", "RUN --data name=table --data folder=mine"),
        ("--data name=table folder=mine RUN", "--data name=table folder=mine RUN"),
        ("old.csv --data name=table new.csv", "old.csv --data name=table new.csv"),
        ("old.csv --data spec.yaml a=b.csv", "old.csv --data spec.yaml a=b.csv"),
        ("--noise a=1.csv a=2.csv a=3.csv", "--noise a=1.csv a=2.csv --noise a=3.csv"),
    ],
)
def test_a_second_setting_is_not_taken_for_an_argument_that_may_be_left_out(given: str, expected: str) -> None:
    import typer.main

    command = typer.main.get_command(app).commands["report"]  # type: ignore[attr-defined]
    assert isinstance(command, SeveralValues)
    assert " ".join(command.repeat_flags(given.split())) == expected


@pytest.mark.usefixtures("files")
def test_matrix_prints_and_writes() -> None:
    result = run("matrix", "old.parquet", "new.parquet", "old.parquet", "--json", "m.json", "--markdown", "m.md")
    assert result.exit_code == 0
    assert result.stdout.startswith("42 negative flips over 2 updates of 307 samples")
    found = json.loads(Path("m.json").read_text())
    jsonschema.validate(found, json.loads(run("schema", "matrix").stdout), jsonschema.Draft202012Validator)
    assert found["negative_flips"][0][1] == 11
    assert Path("m.md").read_text().startswith("<!-- flipguard matrix -->")
    again = run("matrix", "old.parquet", "new.parquet", "--json", "-", "--confidence", "0.5", "--labels", "new")
    assert json.loads(again.stdout)["confidence"] == 0.5


def test_version_and_help_of_every_command() -> None:
    assert run("--version").stdout == f"flipguard {flipguard.__version__}\n"
    bare, asked = run(), run("--help")
    assert bare.exit_code == asked.exit_code == 0
    assert "Usage: flipguard" in bare.stdout
    assert "--install-completion" in asked.stdout
    for command in ("compare", "matrix", "schema"):
        assert command in bare.stdout
        text = run(command, "--help").stdout
        assert f"flipguard {command} " in text.partition("Example")[2]


def test_every_option_is_documented_in_help(monkeypatch: pytest.MonkeyPatch) -> None:
    import typer.main

    monkeypatch.setenv("COLUMNS", "200")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        text = run(name, "--help").stdout
        options = [p for p in command.params if p.param_type_name == "option"]
        for option in options:
            assert option.help, option.name
            assert option.opts[0] in text
            assert " ".join(option.help.split()[:4]) in text
    flags = {flag for p in typer.main.get_command(app).commands["compare"].params for flag in p.opts}  # type: ignore[attr-defined]
    assert {f"--{field.replace('_', '-')}" for field in GateSettings.model_fields} <= flags


def test_every_command_is_in_the_readme() -> None:
    import typer.main

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"flipguard {name}" in readme


def test_the_github_example_uses_options_that_exist_and_the_marker() -> None:
    from flipguard.reports.markdown import MARKER

    text = (ROOT / "examples" / "github-actions.yml").read_text(encoding="utf-8")
    assert MARKER in text
    command = re.search(r"flipguard compare .*?\n\n", text, re.DOTALL)
    assert command is not None
    flags = set(re.findall(r"--[a-z-]+", command[0]))
    assert flags == {"--junit", "--markdown", "--json", "--flips"}


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "flipguard.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, **options)


@pytest.mark.usefixtures("files")
def test_the_real_command_compares_gates_and_complains() -> None:
    fine = process("compare", "old.parquet", "new.parquet")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "now wrong (11 of 307)" in fine.stdout
    assert process("compare", "old.parquet", "new.parquet", "--max-nfr", "0").returncode == 1
    bad = process("compare", "old.parquet", "none.parquet")
    assert (bad.returncode, bad.stdout, bad.stderr) == (2, "", "flipguard: none.parquet does not exist.\n")
    traced = process("compare", "old.parquet", "none.parquet", "--debug")
    assert traced.returncode == 2
    assert traced.stderr.startswith("Traceback")
    assert traced.stderr.endswith("flipguard: none.parquet does not exist.\n")


@pytest.mark.usefixtures("files")
def test_an_encoding_without_arrows_is_no_reason_to_fail() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = process("compare", "old.parquet", "new.parquet", env=environment)
    assert result.returncode == 0
    assert "now wrong (11 of 307)" in result.stdout


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("limit", "code"), [("0", 1), ("1", 0)])
def test_a_reader_that_has_gone_changes_neither_exit_nor_stderr(limit: str, code: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "flipguard.cli", "compare", "old.parquet", "new.parquet", "--max-nfr", limit]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=300)
    os.close(writer)
    assert (result.returncode, result.stderr) == (code, "")


def on_a_terminal(*arguments: str) -> str:
    """What a command prints when stdout is a terminal of 80 columns."""
    parent, child = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "flipguard.cli", *arguments]
    with subprocess.Popen(command, stdout=child, stderr=child, env=environment):
        os.close(child)
        chunks = []
        # Linux tells the end of a terminal by an error.
        with contextlib.suppress(OSError):
            while chunk := os.read(parent, 65_536):
                chunks.append(chunk)
    os.close(parent)
    return b"".join(chunks).decode()


@pytest.mark.usefixtures("files")
def test_a_terminal_gets_colour_unless_it_is_to_be_plain() -> None:
    coloured = on_a_terminal("compare", "old.parquet", "new.parquet", "--max-nfr", "0")
    assert "\x1b[1;31mREFUSED\x1b[0m" in coloured
    lines = re.sub(r"\x1b\[[0-9;]*m", "", coloured).splitlines()
    assert max(map(len, lines)) <= 80
    plain = on_a_terminal("compare", "old.parquet", "new.parquet", "--max-nfr", "0", "--plain")
    assert "REFUSED" in plain
    assert "\x1b" not in plain


def test_an_interrupt_ends_with_130_one_line_and_nothing_half_written(files: Path) -> None:
    # A pipe that nobody reads holds the command where it writes its report: after --flips, before the end.
    os.mkfifo("pipe")
    command = [sys.executable, "-m", "flipguard.cli", "compare", "old.parquet", "new.parquet"]
    running = subprocess.Popen(
        [*command, "--flips", "flips.csv", "--json", "pipe"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 300
    while not Path("flips.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=300)
    assert running.returncode == 130
    assert (out, err) == ("", "flipguard: interrupted.\n")
    assert not list(files.glob(".*part"))


HEAVY = ("torch", "pandas", "polars", "pyspark", "scipy.stats", "matplotlib")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["compare", "old.parquet", "new.parquet"]])
def test_no_command_imports_what_it_does_not_need(arguments: list[str]) -> None:
    script = (
        "import sys; from flipguard.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if sys.modules.get(name)], file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True, timeout=300
    )
    assert result.stdout
    assert result.stderr == "[]\n"


def test_help_and_version_do_not_load_the_engine() -> None:
    for argument in ("--version", "--help"):
        result = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "flipguard.cli", argument],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
        assert "flipguard.cli.app" in loaded
        assert not loaded & {"numpy", "pyarrow", "duckdb", "scipy", "flipguard.comparison"}


def test_methods_by_name() -> None:
    shown = json.loads(run("methods", "elodi", "fd_kl", "--json", "-").stdout)
    assert [card["name"] for card in shown] == ["fd_kl", "elodi"]
    assert "`method: recommended` takes one" in run("methods", "recommended").stderr
    refused = run("methods", "elody")
    assert refused.exit_code == 2
    assert "there is no method 'elody'; did you mean 'elodi'?" in refused.stderr


def test_a_limit_of_one_is_said_to_be_everything(files: Path) -> None:
    shown = json.loads(run("compare", "old.parquet", "new.parquet", "--max-nfr", "1", "--json", "-").stdout)
    assert "max_nfr 1 is 100%, so this rule never refuses. Write a share as 0.01 or 1%." in shown["notes"]
    other = json.loads(run("compare", "old.parquet", "new.parquet", "--max-nfr", "0.5", "--json", "-").stdout)
    assert not any("never refuses" in note for note in other["notes"])


def test_limits_are_shares_or_percent(files: Path) -> None:
    command = ("compare", "old.parquet", "new.parquet", "--json", "-")
    by_share, in_percent = (
        json.loads(run(*command, "--max-nfr", limit, "--confidence", level).stdout)
        for limit, level in (("0.015", "0.9"), ("1.5%", "90%"))
    )
    assert by_share["gate"]["rules"][0]["limit"] == 0.015
    assert by_share == in_percent


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            ("--max-nfr", "little"),
            "it is 'little', and takes a number such as 0.05, or 5%. See flipguard compare --help.",
        ),
        (("--confidence", "much"), "it is 'much', and takes a number such as 0.05, or 5%. See flipguard compare"),
        (("--max-nfr", "150%"), "--max-nfr must be at most 1, it is 1.5. Write a share as 0.01 or '1%'."),
        (
            ("--max-nfr", "1e999999999999999999%"),
            "it is '1e999999999999999999%', and takes a number such as 0.05, or 5%.",
        ),
        (("--min-slice", "few"), "Invalid value for '--min-slice': it should be a valid integer."),
    ],
)
def test_a_value_that_is_no_number_is_said_in_our_words(files: Path, option: tuple[str, str], expected: str) -> None:
    refused = run("compare", "old.parquet", "new.parquet", *option)
    assert refused.exit_code == 2
    assert expected in refused.stderr


def test_a_run_folder_is_no_prediction_file(files: Path) -> None:
    folder = files / "runs/update/versions/new/predictions"
    folder.mkdir(parents=True)
    (files / "new.parquet").rename(folder / "test.parquet")
    (files / "runs/update/run.json").write_text("{}")
    refused = run("compare", "old.parquet", "runs/update")
    assert refused.exit_code == 2
    assert "is a run folder of flipguard train: name a version's predictions" in refused.stderr


def test_an_option_is_named_where_its_value_has_the_same_name() -> None:
    """typer before 0.29 takes `--seed SEED` for an option --SEED when the name is left to the parameter."""
    unnamed = []
    for command in app.registered_commands:
        assert command.callback is not None
        for name, hint in get_type_hints(command.callback, include_extras=True).items():
            for option in getattr(hint, "__metadata__", ()):
                same = str(getattr(option, "metavar", "")).lower() == name
                # Within Annotated the first name stands where a default would.
                named = str(getattr(option, "default", "")).startswith("--")
                if type(option).__name__ == "OptionInfo" and same and not named:
                    unnamed.append(f"{command.name} --{name}")
    assert unnamed == []
