"""`flipguard train` and `flipguard predict` as real processes: killed, interrupted, refused, watched."""

import json
import os
import pty
import random
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from typer.testing import CliRunner, Result

import flipguard
from flipguard.checkpoints import load_checkpoint
from flipguard.cli.app import app
from flipguard.releases.yaml_text import as_yaml, parse_yaml
from flipguard.reports.wording import with_interval

ROOT = Path(__file__).parents[1]
SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "old": {"model": {"name": "mlp", "hidden": [5]}},
    "new": {"model": {"name": "mlp", "hidden": [7]}},
    "method": {"name": "elodi", "ensemble": {"members": 2}},
    "train": {"epochs": 3, "batch_size": 31, "learning_rate": 0.05, "device": "cpu", "processes": 1},
}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


def start(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """A real process in the current folder, in a group of its own, with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flipguard", *map(str, arguments)]
    return subprocess.Popen(
        command,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        **options,
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("update.yaml").write_text(as_yaml(SPEC))
    return tmp_path


def without_seconds(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def test_a_run_that_is_killed_goes_on_to_the_same_bits(folder: Path) -> None:
    """SIGKILL at two random moments, then a call that gets through: weights and metrics of an unbroken run."""
    changes = ["method.name=kd", "method.ensemble=null", "train.epochs=60", "train.checkpoint_every=1"]
    whole = run("train", "update.yaml", *changes, "--out", "whole")
    assert whole.exit_code == 0, whole.stderr
    chance, ends = random.Random(17), []
    while len(ends) < 2 and 0 not in ends:
        process = start("train", "update.yaml", *changes, "--out", "broken")
        assert process.stdout is not None
        # Only once an epoch is told: earlier there is little to lose.
        while "epoch" not in process.stdout.readline():
            assert process.poll() is None
        time.sleep(chance.uniform(0.0, 0.4))
        process.kill()
        process.communicate()
        ends.append(process.returncode)
    assert ends[0] == -signal.SIGKILL
    assert {*ends} <= {0, -signal.SIGKILL}
    last = run("train", "update.yaml", *changes, "--out", "broken")
    assert last.exit_code == 0, last.stderr
    for version in ("old", "new"):
        one, other = (Path(name) / "versions" / version for name in ("whole", "broken"))
        expected, found = (load_checkpoint(home / "model.safetensors")[0] for home in (one, other))
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        assert [line["epoch"] for line in without_seconds(other / "metrics.jsonl")] == list(range(60))
        assert without_seconds(one / "metrics.jsonl") == without_seconds(other / "metrics.jsonl")
        assert not (other / "state.safetensors").exists()


def test_an_interrupted_run_says_how_to_go_on(folder: Path) -> None:
    changes = ["method=none", "train.epochs=5000"]
    process = start("train", "update.yaml", *changes, "--out", "a")
    assert process.stdout is not None
    while "epoch" not in process.stdout.readline():
        assert process.poll() is None
    second = run("train", "update.yaml", *changes, "--out", "a")
    assert second.exit_code == 2
    assert f"a is in use by process {process.pid} on" in second.stderr
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 130
    assert complaint == "flipguard: interrupted. The same command goes on from what a holds.\n"
    assert json.loads(Path("a/run.json").read_text())["status"] == "stopped"


def test_a_full_disk_is_one_line_and_nothing_is_lost(folder: Path) -> None:
    """Files of at most 20,000 bytes: weights fit, predictions do not. With room again, the run goes on."""

    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    process = start("train", "update.yaml", "method=none", preexec_fn=little_room)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 2
    assert complaint.startswith("flipguard: runs/update/versions/old/predictions/test.parquet cannot be written: ")
    assert complaint.count("\n") == 1
    kept = json.loads(Path("runs/update/versions/old/metrics.jsonl").read_text().splitlines()[-1])
    result = run("train", "update.yaml", "method=none")
    assert result.exit_code == 0
    assert "old: epoch" not in result.stdout
    assert json.loads(Path("runs/update/versions/old/metrics.jsonl").read_text().splitlines()[-1]) == kept


def test_the_table_again_when_it_is_finished(folder: Path) -> None:
    first, second = (run("train", "update.yaml") for _ in range(2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "done: runs/update" in first.stdout
    assert "finished: runs/update" in second.stdout
    assert first.stdout.split("done: runs/update")[1] == second.stdout.split("finished: runs/update")[1]
    assert "old: 2 of 2 members" in first.stdout
    assert re.search(r"new: epoch 3 of 3 .*cross_entropy .*error .*NFR ", first.stdout)
    assert Path("runs/update/comparison.md").read_text().count("negative flip") > 0


CHAIN: dict[str, Any] = {
    **{name: SPEC[name] for name in ("data", "train")},
    "versions": [{"model": {"name": "mlp", "hidden": [width]}} for width in (3, 5, 7)],
}


def test_a_chain_ends_with_its_matrix_and_a_picture(folder: Path) -> None:
    """First two versions, then one more: the display tells only of that one."""
    Path("chain.yaml").write_text(as_yaml({**CHAIN, "versions": CHAIN["versions"][:2]}))
    assert run("train", "chain.yaml").exit_code == 0
    assert not Path("runs/chain/chain.svg").exists()
    Path("chain.yaml").write_text(as_yaml(CHAIN))
    result = run("train", "chain.yaml")
    assert result.exit_code == 0, result.stderr
    told = result.stdout.split("done: runs/chain")[0]
    assert [name for name in ("v0", "v1", "v2") if f"{name}: epoch" in told] == ["v2"]
    total = json.loads(Path("runs/chain/matrix.json").read_text())["sum_negative_flips"]
    assert f"{total:,} negative flips over 2 updates of 1,078 samples" in result.stdout
    picture = Path("runs/chain/chain.svg").read_text()
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert picture.count("against ") >= 2


def test_without_matplotlib_a_chain_says_that_it_is_not_drawn(folder: Path) -> None:
    """A real process in which the library cannot be imported."""
    Path("chain.yaml").write_text(as_yaml(CHAIN))
    script = "import sys; sys.modules['matplotlib'] = None; from flipguard.cli import main; main()"
    command = [sys.executable, "-c", script, "train", "chain.yaml"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("runs/chain/chain.svg is not drawn: a picture needs matplotlib")
    assert done.stderr.count("\n") == 1
    assert "negative flips over 2 updates" in done.stdout


def test_every_release_has_a_card(folder: Path) -> None:
    Path("chain.yaml").write_text(as_yaml(CHAIN))
    assert run("train", "chain.yaml", "train.epochs=1").exit_code == 0
    first, last = (Path(f"runs/chain/versions/{name}/card.md").read_text() for name in ("v0", "v2"))
    assert "This is the first version" in first
    rows = {line.split("|")[1].strip(): line for line in last.splitlines() if line.startswith("| <code>v")}
    files = {name: f"runs/chain/versions/{name}/predictions/test.parquet" for name in ("v0", "v1", "v2")}
    for name in ("v0", "v1"):
        figures = flipguard.compare(files[name], files["v2"])
        assert with_interval(figures.negative_flip_rate) in rows.pop(f"<code>{name}</code>")
    assert not rows
    assert f"Error rate {with_interval(figures.error_rate_new)} on 1,078 labelled samples." in last
    for fact in ("mlp; options (hidden 7)", "digits; kind image", "initialisation 2000"):
        assert f"<code>{fact}" in last


def test_only_json_on_stdout(folder: Path) -> None:
    result = run("train", "update.yaml", "--json", "-")
    found = json.loads(result.stdout)
    assert found["versions"] == ["old", "new"]
    assert found["comparisons"] == json.loads(Path("runs/update/comparison.json").read_text())
    assert "new: epoch 3 of 3" in result.stderr


def test_seeds_end_in_mean_and_deviation(folder: Path) -> None:
    result = run("train", "update.yaml", "method=none", "seed=[1, 2]", "train.epochs=1", "--json", "out.json")
    assert result.exit_code == 0
    assert re.search(r"NFR +\d+\.\d\d% +\d+\.\d\d% +\d+\.\d\d ± \d+\.\d\d%", result.stdout)
    assert [Path(one["folder"]).name for one in json.loads(Path("out.json").read_text())["runs"]] == [
        "seed_1",
        "seed_2",
    ]


def test_a_gate_in_the_spec_decides_the_exit_status(folder: Path) -> None:
    assert run("train", "update.yaml", "method=none", "gate.max_nfr=1.0").exit_code == 0
    refused = run("train", "update.yaml", "method=none", "gate.max_nfr=0.0001")
    assert refused.exit_code == 1
    assert "max-nfr" in refused.stdout or "NFR" in refused.stdout


def test_what_a_gate_says_of_several_seeds(folder: Path) -> None:
    """Which of them it refuses, by which rule, and why: as it does of one."""
    words = ["update.yaml", "method=none", "seed=[3, 5]"]
    compared = run("train", *words, "--json", "-")
    assert compared.exit_code == 0, compared.stderr
    assert "gate" not in run("train", *words).stdout
    rates = [one["comparisons"][-1]["negative_flip_rate"]["value"] for one in json.loads(compared.stdout)["runs"]]
    worse = 3 if rates[0] > rates[1] else 5
    for limit, refused in ((0.0001, [3, 5]), (sum(rates) / 2, [worse])):
        gate = (f"gate.max_nfr={limit}", "gate.max_churn=1.0", "gate.gate_on=value")
        result = run("train", *words, *gate)
        assert result.exit_code == 1
        told = result.stdout[result.stdout.index("gate: ") :].splitlines()
        assert told[0] == f"gate: REFUSED by {len(refused)} of 2 seeds   judged on the value"
        assert [line.split()[:2] for line in told[1:]] == [[f"seed_{seed}", "max_nfr"] for seed in refused]
        for line, seed in zip(told[1:], refused, strict=True):
            alone = run("train", "update.yaml", "method=none", f"seed={seed}", *gate, "--out", f"alone_{seed}")
            said = next(each for each in alone.stdout.splitlines() if each.startswith("NO "))
            assert line.split()[1:] == said.split()[1:]
    assert "gate: PASSED by all 2 seeds   judged on the interval\n" in run("train", *words, "gate.max_nfr=1.0").stdout


def test_what_is_recommended_is_said_in_a_spec_that_is_one(folder: Path) -> None:
    wanted = "method={name: recommended, ensemble: {members: 2}}"
    shown = run("train", "update.yaml", wanted, "--dry-run")
    assert shown.exit_code == 0, shown.stderr
    said = [line for line in shown.stdout.splitlines() if line.startswith("# ")]
    assert [line.split(",")[0] for line in said] == ["# 'old' is made by elodi", "# 'new' is made by scion"]
    (folder / "chosen.yaml").write_text(shown.stdout, encoding="utf-8")
    assert [version["method"]["name"] for version in parse_yaml(shown.stdout, "chosen")["versions"]] == [
        "elodi",
        "scion",
    ]
    trained = run("train", "update.yaml", wanted, "--out", "run")
    assert trained.exit_code == 0, trained.stderr
    assert f"note: {said[1].removeprefix('# ')}" in trained.stdout
    again = run("train", "chosen.yaml", "--out", "run")
    assert again.exit_code == 0, again.stderr
    assert "note: 'new'" not in again.stdout


def test_a_dry_run_prints_a_spec_that_is_one_and_writes_nothing(folder: Path) -> None:
    result = run("train", "update.yaml", "method.alpha=0.5", "--dry-run")
    assert result.exit_code == 0
    assert [path.name for path in folder.iterdir()] == ["update.yaml"]
    Path("again.yaml").write_text(result.stdout)
    again = run("train", "again.yaml", "--dry-run")
    assert again.stdout == result.stdout
    assert "alpha: 0.5" in result.stdout


def test_on_a_terminal_there_is_one_live_table(folder: Path) -> None:
    """A real terminal of 120 columns."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "xterm"}
    command = [sys.executable, "-m", "flipguard", "train", "update.yaml", "method.ensemble.members=1"]
    process = subprocess.Popen(command, env=environment, stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while process.poll() is None or select.select([leader], [], [], 0.2)[0]:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                seen += os.read(leader, 65536)
            except OSError:
                break
    os.close(leader)
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert re.search(r"version +method +members +epoch +loss", text)
    assert re.search(r"new +elodi +1/1", text)
    assert "epoch 3 of 3" not in text


def test_predictions_of_a_release_are_those_of_its_run(folder: Path) -> None:
    assert run("train", "update.yaml", "method=none").exit_code == 0
    result = run("predict", "runs/update", "--data", "update.yaml", "--part", "validation", "--out", "v.parquet")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "71 predictions of mlp new: v.parquet\n"
    kept = flipguard.read_predictions("runs/update/versions/new/predictions/validation.parquet")
    assert flipguard.read_predictions("v.parquet").table().equals(kept.table())
    old = run(
        "predict", "runs/update", "--version", "old", "--data", "name=digits", "test_size=0.6", "--out", "old.parquet"
    )
    assert old.exit_code == 0, old.stderr
    assert run("compare", "old.parquet", "runs/update/versions/new/predictions/test.parquet").exit_code == 0


def test_without_data_a_release_is_asked_of_its_run_s_own(folder: Path) -> None:
    """The file can be compared with what the run keeps of its other version."""
    assert run("train", "update.yaml", "method=none", "old.data.classes=0.5").exit_code == 0
    for version in ("old", "new"):
        kept = Path(f"runs/update/versions/{version}/predictions/test.parquet")
        for words in ((Path("runs/update"), "--version", version), (kept.parents[1],)):
            said = run("predict", *words, "--out", "said.parquet")
            assert (said.exit_code, said.stderr) == (0, "")
            assert flipguard.read_predictions("said.parquet").table().equals(flipguard.read_predictions(kept).table())
    shutil.copytree("runs/update/versions/new", "bare")
    assert_refused(run("predict", "bare", "--out", "x.parquet"), "lies in no run folder", "name them with --data")
    assert run("predict", "bare", "--data", "digits", "--part", "train", "--out", "x.parquet").stderr == ""


def test_rows_that_a_run_was_trained_on_are_told_of(folder: Path) -> None:
    """13 of each of the 10 digits, of the 1,258 that are training rows where the test part is a smaller one."""
    assert run("train", "update.yaml", "method=none", "train.epochs=1").exit_code == 0
    for words, rows in (([], "130 of 130"), (["--data", "digits"], "130 of 1,258")):
        said = run("predict", "runs/update", "--part", "train", *words, "--out", "x.parquet")
        assert said.exit_code == 0, said.stderr
        expected = f"{rows} rows are among those that this run was trained on: its figures there say little.\n"
        assert said.stderr == expected
        assert "trained on" not in said.stdout
    for part in ("validation", "test"):
        assert run("predict", "runs/update", "--part", part, "--out", "x.parquet").stderr == ""


def test_what_a_run_was_trained_on_may_be_gone_and_that_is_said(folder: Path) -> None:
    for name, rows in (("a", 11), ("b", 7)):
        Path(f"{name}.csv").write_text("".join(["u,v,label\n", *(f"{i},{i % 3},{i % 2}\n" for i in range(rows))]))
    data = {"name": "table", "folder": ".", "train": "a.csv", "test": "b.csv", "features": ["u", "v"]}
    model = {"model": {"name": "mlp", "hidden": [3], "input_size": 2}}
    train = {**SPEC["train"], "epochs": 1, "batch_size": 5}
    Path("t.yaml").write_text(as_yaml({"data": data, "old": model, "new": model, "train": train}))
    done = run("train", "t.yaml", "--out", "t")
    assert done.exit_code == 0, done.stderr
    Path("a.csv").rename("c.csv")
    other = ("--data", "name=table", "folder=.", "train=c.csv", "test=b.csv", "features=[u,v]")
    said = run("predict", "t", *other, "--out", "x.parquet")
    expected = "what this run was trained on is not to be had: whether any of these rows are among it is not known.\n"
    assert (said.exit_code, said.stderr) == (0, expected)
    own = run("predict", "t", "--out", "y.parquet")
    assert_refused(own, "of the run's own data:", "a.csv", "Others are named by --data.")


def test_the_schema_of_a_spec_takes_every_recipe(folder: Path) -> None:
    schema = json.loads(run("schema", "train").stdout)
    from flipguard.spec import read_training_spec

    recipes = sorted((ROOT / "recipes").glob("*.yaml"))
    assert recipes
    for path in recipes:
        read_training_spec(path)
        jsonschema.validate(parse_yaml(path.read_text(), path.name), schema)
        header = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert any(line.startswith(f"# flipguard train recipes/{path.name}") for line in header), path.name


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert "--debug" not in lines[0], lines[0]
    for part in parts:
        assert part in lines[0]


REFUSED: dict[str, tuple[list[str], str]] = {
    "no file": (["nowhere.yaml"], "nowhere.yaml cannot be read: No such file or directory."),
    "a folder": (["."], ". cannot be read: Is a directory."),
    "a typo": (["update.yaml", "trian.epochs=3"], "a spec has no key 'trian'; did you mean 'train'?"),
    "a key of a section": (["update.yaml", "epochs=3"], "has no key 'epochs'; did you mean 'train.epochs'?"),
    "a key of a version's section": (
        ["update.yaml", "new.epochs=3"],
        "new has no key 'epochs'; did you mean 'new.train.",
    ),
    "a key of two sections": (["update.yaml", "model=mlp"], "did you mean 'old.model' or 'new.model'?"),
    "a width for a list": (
        ["update.yaml", "new.model.hidden=300"],
        "new.model: hidden must be a list of widths, such as",
    ),
    "no key=value": (["update.yaml", "epochs"], "'epochs' is no key=value"),
    "an unknown method": (["update.yaml", "method.name=eldoi"], "did you mean 'elodi'?"),
    "an unknown model": (["update.yaml", "new.model.name=mpl"], "did you mean 'mlp'?"),
    "an unknown data set": (["update.yaml", "data.name=digit"], "did you mean 'digits'?"),
    "an unknown tracker": (["update.yaml", "--track", "tensorbord"], "did you mean 'tensorboard'?"),
    "no such device": (["update.yaml", "--device", "tpu"], "the device 'tpu' is not there"),
    "no such device for a version with its own": (
        ["update.yaml", "new.train.device=cpu", "--dry-run", "--device", "tpu"],
        "the device 'tpu' is not there",
    ),
    "the spec as output": (["update.yaml", "--json", "update.yaml"], "--json update.yaml would overwrite update.yaml"),
    "a file as folder": (["update.yaml", "--out", "update.yaml"], "the run folder update.yaml cannot be written"),
    "no permission": (["update.yaml", "--out", "/proc/flipguard"], "the run folder /proc/flipguard cannot be written"),
    "a dry run of nonsense": (["update.yaml", "--dry-run", "new.model.hidden=[0]"], "hidden must be at least 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_bad_input_is_one_line(kind: str, folder: Path) -> None:
    arguments, expected = REFUSED[kind]
    assert_refused(run("train", *arguments), expected)


def test_without_ray_a_cluster_names_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes a module that stands as None for one that is not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "flipguard.integrations.ray", raising=False)
    expected = "--on ray needs ray; install it with: pip install 'flipguard[ray]'"
    assert_refused(run("train", "update.yaml", "--on", "ray"), expected)
    assert not (folder / "runs").exists()
    assert_refused(run("train", "update.yaml", f"artifacts=file://{folder}/kept"), "give --on, or leave it out.")


def test_a_kind_of_schema_that_is_none(folder: Path) -> None:
    assert_refused(
        run("schema", "trian"),
        "for 'kind': 'trian' is not one of 'comparison', 'matrix', 'train'; did you mean 'train'?",
    )


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_several_seeds_do_not_go_into_a_run_by_one(options: list[str], folder: Path) -> None:
    assert run("train", "update.yaml", "method=none", "train.epochs=1").exit_code == 0
    there = sorted(path.name for path in Path("runs/update").iterdir())
    refused = run("train", "update.yaml", "method=none", "train.epochs=1", "seed=[0, 1]", *options)
    assert_refused(refused, "runs/update is a run by one seed", "give another --out.")
    assert sorted(path.name for path in Path("runs/update").iterdir()) == there


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_spec_that_contradicts_the_folder(options: list[str], folder: Path) -> None:
    assert run("train", "update.yaml", "method=none").exit_code == 0
    assert_refused(
        run("train", "update.yaml", "method=none", "train.learning_rate=0.07", *options),
        "runs/update was begun with versions.old.train.learning_rate 0.05, and this spec has 0.07",
        "another --out",
    )


PREDICT: dict[str, tuple[list[str], str]] = {
    "no run": (["nowhere", "--data", "name=digits"], "the run folder nowhere does not exist."),
    "no run folder": ([".", "--data", "name=digits"], ". is no run folder: it has no spec.yaml."),
    "no data": (["runs/update", "--data", "validation=3"], "--data: 'name' is missing."),
    "unknown data": (["runs/update", "--data", "name=digit"], "did you mean 'digits'?"),
    "no such version": (["runs/update", "--data", "name=digits", "--version", "x"], "no version 'x' that is finished"),
    "no such part": (["runs/update", "--data", "name=digits", "--part", "dev"], "digits has no part 'dev'"),
    "a table for a spec": (
        ["runs/update", "--data", "t.csv"],
        "t.csv is no training spec. --data takes one (.yaml)",
    ),
    "a list for a spec": (
        ["runs/update", "--data", "l.yaml"],
        "l.yaml is no training spec: its data is a list.",
    ),
    "no such file": (["runs/update", "--data", "u.csv"], "u.csv cannot be read: No such file or directory."),
    "a long name": (
        ["runs/update", "--data", f"name={'digit' * 99}"],
        f"there is no data set '{('digit' * 99)[:59]}…'; there are: ag-news,",
    ),
    "other inputs": (["runs/update", "--data", "name=table", "folder=.", "train=t.csv", "test=t.csv"], "has none of"),
}


def test_predictions_that_cannot_be_made(folder: Path) -> None:
    assert run("train", "update.yaml", "method=none").exit_code == 0
    Path("t.csv").write_text("x,y,label\n1,2,a\n3,4,b\n")
    Path("l.yaml").write_text("- digits\n")
    for arguments, expected in PREDICT.values():
        assert_refused(run("predict", *arguments, "--out", "x.parquet"), expected)
    assert_refused(run("predict", "runs/update", "--data", "name=digits", "--out", "x.csv"), "written as .parquet")
    assert not Path("x.parquet").exists()
