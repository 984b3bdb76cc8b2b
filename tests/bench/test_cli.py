"""`flipguard bench` as a user types it, and the benches of recipes/bench/."""

import json
import re
from pathlib import Path

import pytest
from small_bench import SPEC
from typer.testing import CliRunner, Result

from flipguard.bench.read import read_bench
from flipguard.bench.run import Bench
from flipguard.cli.app import app
from flipguard.releases.yaml_text import as_yaml
from flipguard.types import InputError

BENCHES = sorted((Path(__file__).parents[2] / "recipes" / "bench").glob("*.yaml"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_name_to_its_tables(here: Path) -> None:
    (here / "recipes/bench").mkdir(parents=True)
    (here / "recipes/bench/small.yaml").write_text(as_yaml(SPEC))
    assert run("bench").stdout == "small\n"
    counted = run("bench", "small", "--row", "kd", "--count")
    assert counted.stdout.startswith("4 networks to train for 2 pairs of models:")
    done = run("bench", "small", "--row", "kd", "--device", "cpu", "--processes", 1)
    assert done.exit_code == 0, done.output
    assert "4 of 4  new kd, seed 8" in done.stdout
    assert "A small bench" in done.stdout
    assert "kd" in (here / "runs/bench/small/table.md").read_text()
    assert (here / "runs/bench/small/front.svg").read_text().startswith("<?xml")
    before = (here / "runs/bench/small/table.md").read_bytes()
    (here / "runs/bench/small/table.md").unlink()
    again = run("bench", "small", "--tables", "--json", "-")
    assert (here / "runs/bench/small/table.md").read_bytes() == before
    assert [row["name"] for row in json.loads(again.stdout)] == ["kd"]
    files = {path: path.read_bytes() for path in (here / "runs/bench/small").glob("*.*")}
    other = run("bench", "small", "--row", "kd", "train.epochs=7", "--device", "cpu")
    assert other.exit_code == 2
    epochs = SPEC["train"]["epochs"]
    assert f"small was begun with train.epochs {epochs}, and this bench has 7: use the same, or" in other.stderr
    assert {path: path.read_bytes() for path in files} == files
    assert run("bench", "small", "--row", "kd", "train.checkpoint_every=3", "--device", "cpu").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["smal"], "there is no bench 'smal' in recipes/bench; did you mean 'small'?"),
        (["small", "train.epoch=3"], "train has no key 'epoch'; did you mean 'epochs'?"),
        (["small", "old.name=zoo:tiny"], "old names code that would be run, zoo:tiny"),
        (["small", "--row", "kdd"], "there is no row 'kdd'; did you mean 'kd'?"),
        (
            ["small", "--on", "ray", "--device", "cuda"],
            "--device cuda: on a cluster a network takes what train.resources says; set gpus there.",
        ),
        (
            ["small", "--device", "cpu", "--turns", "file"],
            "turns are for benches that share a GPU, and this one has none",
        ),
        (
            ["small", "--on", "ray", "--turns", "file"],
            "--turns is for commands that share a GPU of this machine, not for",
        ),
        (["missing.yaml"], "missing.yaml cannot be read"),
        (["small", "--tables", "--out", "empty"], "empty holds no results of a bench"),
        (["small", "train.epochs=3", "--tables"], "--tables shows what runs/bench/small holds, which train.epochs=3"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], said: str, here: Path) -> None:
    (here / "recipes/bench").mkdir(parents=True)
    (here / "recipes/bench/small.yaml").write_text(as_yaml(SPEC))
    refused = run("bench", *arguments)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_bench_like_another(here: Path) -> None:
    (here / "base.yaml").write_text(as_yaml(SPEC))
    (here / "own.yaml").write_text("like: base.yaml\ntitle: Its own\nseeds: [4]\ntrain: {warmup: 0.1}\n")
    spec = read_bench(here / "own.yaml", ["train.epochs=3"])
    assert (spec.title, spec.seeds, spec.train.epochs, spec.train.warmup) == ("Its own", [4], 3, 0.1)
    assert spec.train.batch_size == SPEC["train"]["batch_size"]
    assert list(spec.rows) == list(SPEC["rows"])
    (here / "third.yaml").write_text("like: own.yaml\ntrain: {epochs: 5}\n")
    spec = read_bench(here / "third.yaml")
    assert (spec.title, spec.train.epochs, spec.train.warmup) == ("Its own", 5, 0.1)
    (here / "base.yaml").write_text("like: third.yaml\n")
    with pytest.raises(InputError, match=r"base.yaml: like leads back to third.yaml"):
        read_bench(here / "third.yaml")
    (here / "own.yaml").write_text("like: ../base.yaml\n")
    with pytest.raises(InputError, match="like must be the name of a file in the same folder"):
        read_bench(here / "own.yaml")


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_every_bench_can_take_its_steps(path: Path, here: Path) -> None:
    """Each network of each row, on small data and small networks: counting a bench runs one step of every kind."""
    small = ["data={name: digits, validation: 71, per_class: 20}", "train.batch_size=50", "train.precision=float32"]
    real = read_bench(path)
    other = [f"networks.{name}.model" for name, plan in real.networks.items() if plan.model is not None]
    models = {"old": 7 if real.old == real.new else 5, "new": 7, **dict.fromkeys(other, 6)}
    # Images that grow need a network that takes any size.
    grows = any(plan.train is not None and plan.train.scales for plan in real.networks.values())
    kind = "{{name: cnn, width: {}}}" if grows else "{{name: mlp, hidden: [{}]}}"
    changes = [f"{place}={kind.format(hidden)}" for place, hidden in models.items()]
    # Half of the digits are five classes.
    ranked = [name for name, plan in real.networks.items() if plan.method.options.get("difference", {}).get("k")]
    changes += [f"networks.{name}.method.difference.k=3" for name in ranked]
    # Digits are too small to be corrupted.
    spec = read_bench(path, [*small, *changes, "corruptions=null"])
    found = Bench(spec, here / "out", seeds=spec.seeds[:1]).count()
    assert found.networks >= len(spec.networks)
    assert found.rows >= len(spec.every_row)


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_every_bench_says_what_a_seed_costs(path: Path, here: Path) -> None:
    said = re.search(
        r"^# Counted: ([\d.]+) plain trainings of the new model for each seed \((\d+) networks\)",
        path.read_text(),
        re.M,
    )
    assert said is not None
    if path.stem.startswith("digits"):
        spec = read_bench(path)
        found = Bench(spec, here / "out", seeds=spec.seeds[:1]).count()
        assert (f"{found.trainings:.1f}", str(found.networks)) == said.groups()


@pytest.mark.parametrize("path", BENCHES, ids=lambda path: path.stem)
def test_every_bench_names_its_command(path: Path) -> None:
    """Its own name, and a seed that it has."""
    said = re.search(r"^# flipguard bench (\w+)(.*)$", path.read_text(), re.M)
    assert said is not None
    assert said[1] == path.stem
    seeds = re.findall(r"--seed (\d+)", said[2])
    assert {int(seed) for seed in seeds} <= set(read_bench(path).seeds)
