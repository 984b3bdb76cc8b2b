"""Figures and the report from run folders that `flipguard train` has made."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import flipguard
from flipguard import InputError
from flipguard.analysis.epochs import flips_over_epochs
from flipguard.analysis.runs import read_run, read_runs
from flipguard.releases import train
from flipguard.releases.outcome import Outcome
from flipguard.releases.yaml_text import parse_yaml
from flipguard.reports.run import run_report
from flipguard.reports.strips import sparkline
from flipguard.reports.terminal import plain_text
from flipguard.reports.wording import percent
from flipguard.spec.training import parse_training_spec
from one_process import in_turn


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two chains of three versions, one whose data grow, and an update by two seeds for each of two loss weights."""
    home = tmp_path_factory.mktemp("runs")
    versions = [{"name": f"v{i}", "model": {"name": "mlp", "hidden": [units]}} for i, units in enumerate((3, 5, 5))]
    shared = {
        "data": {"name": "digits", "test_size": 0.8, "per_class": 11},
        "train": {"epochs": 3, "batch_size": 55, "device": "cpu"},
    }
    chain = {**shared, "versions": versions, "gate": {"max_nfr": 0.5}, "seed": 7}
    train(parse_training_spec(chain), home / "chain")
    grown = [{**versions[0], "data": {"classes": 0.5}}, *versions[1:]]
    train(parse_training_spec({**chain, "versions": grown}), home / "grown")
    for alpha in (0.2, 0.7):
        method = {"name": "entropy", "alpha": alpha}
        update = {**shared, "versions": versions[:2], "method": method, "seed": [1, 2]}
        train(parse_training_spec(update), home / f"entropy_{alpha}")
    return home


def test_a_run_is_its_versions_in_order(folders: Path) -> None:
    found = read_run(folders / "chain")
    assert found.versions == ("v0", "v1", "v2")
    assert [path.parts[-3] for path in (*found.chain, *found.update)] == ["v0", "v1", "v2"]
    assert found.same_test
    assert found.setting("train.epochs") == 3
    assert [one.path.name for one in read_runs(folders / "entropy_0.2")] == ["seed_1", "seed_2"]
    for wrong, message in (
        (lambda: read_run(folders / "entropy_0.2"), "it holds the runs seed_1, seed_2"),
        (lambda: read_run(folders / "nothing"), "does not exist"),
        (lambda: read_run(folders / "chain" / "versions"), "no spec.yaml"),
        (lambda: found.setting("method.beta"), "has no method.beta"),
        (lambda: found.setting("method.name"), "has 'none' as method.name"),
    ):
        with pytest.raises(InputError, match=message):
            wrong()


def test_epochs_are_those_of_the_metrics(folders: Path) -> None:
    runs = read_runs(folders / "entropy_0.2")
    plot = flips_over_epochs({"chain": read_runs(folders / "chain"), "entropy": runs})
    error = {series.name: series for series in plot.panels[0].series}
    assert set(error) == {"chain v1", "chain v2", "entropy"}
    lines = [json.loads(line) for line in (folders / "chain/versions/v2/metrics.jsonl").read_text().splitlines()]
    assert error["chain v2"].y == pytest.approx([line["error_rate_new"] for line in lines])
    assert error["chain v2"].low is None
    each = [[line["error_rate_new"] for line in one.epochs("v1")] for one in runs]
    assert error["entropy"].y == pytest.approx(np.mean(each, axis=0))
    assert error["entropy"].high == pytest.approx(np.max(each, axis=0))
    rate = plot.panels[2].series[-1].y[-1]
    compared = [flipguard.compare(*one.update).negative_flip_rate for one in runs]
    assert rate == pytest.approx(np.mean([float(figure) for figure in compared if figure is not None]))


DRAWN = {
    ("epochs", "chain"): "epoch",
    ("error-against-flips", "entropy_0.2", "entropy_0.7", "chain"): "error of the new model",
    ("gain-against-flips", "chain"): "new",
    ("chain", "chain"): "version",
    ("against-parameter", "entropy_0.2", "entropy_0.7", "--key", "method.alpha"): "method.alpha",
    ("churn", "entropy_0.2", "entropy_0.7", "--key", "method.alpha"): "alpha of entropy",
    ("ensemble-size", "entropy_0.2", "--sizes", "1", "2"): "members",
    ("entropy", "entropy_0.2"): "predictive entropy",
    ("confidence", "chain", "entropy_0.7"): "confidence γ",
    ("line", "chain"): "t",
}
REFUSED = {
    ("epochs",): "needs run folders",
    ("epochs", "chain/spec.yaml"): "is a file, and a run is a folder",
    ("churn", "chain"): "needs --key",
    ("ensemble-size", "chain", "--old", "a.parquet"): "run folders have both sides",
    ("feature-arrows", "chain"): "has no features",
    ("chain", "entropy_0.2"): "takes the versions of one run, 2 came: give one of them, such as entropy_0.2/seed_1",
    ("chain", "chain", "grown"): "takes the versions of one run, 2 came",
    ("epochs", "chain", "--without-out"): "the figure epochs needs --out FILE: a .svg, .png or .pdf",
    ("nothing", "chain", "--without-out"): "there is no figure 'nothing'; there are error-against-flips, gain-against-",
}


def test_the_command_draws_from_runs_and_says_what_a_run_cannot_give(folders: Path, tmp_path: Path) -> None:
    drawn = [("figure", *words, "--out", tmp_path / f"{words[0]}.json") for words in DRAWN]
    out = {words: () if words[-1] == "--without-out" else ("--out", "f.svg") for words in REFUSED}
    refused = [("figure", *(word for word in words if word != "--without-out"), *out[words]) for words in REFUSED]
    done = in_turn(folders, *drawn, *refused)
    for (words, axis), one in zip(DRAWN.items(), done[: len(DRAWN)], strict=True):
        assert (one.code, one.stderr) == (0, ""), words
        stored = json.loads((tmp_path / f"{words[0]}.json").read_text())
        assert stored["panels"][0]["x"] == axis
        assert all(series["x"] for panel in stored["panels"] for series in panel["series"])
    for (words, message), one in zip(REFUSED.items(), done[len(DRAWN) :], strict=True):
        assert one.code == 2, words
        assert message in one.stderr


def test_the_chain_of_a_run_whose_data_grew_is_what_its_training_said(folders: Path, tmp_path: Path) -> None:
    """Also where nothing can be asked again of what an old model was tested on."""
    bare = tmp_path / "bare"
    shutil.copytree(folders / "grown", bare)
    again = list(bare.glob("versions/*/earlier/v0.parquet"))
    assert again
    for path in again:
        path.unlink()
    told = in_turn(
        folders,
        ("figure", "chain", "grown", "--out", tmp_path / "whole.json"),
        ("figure", "chain", bare, "--out", tmp_path / "shared.json"),
        ("figure", "gain-against-flips", bare, "--out", tmp_path / "zoo.json"),
    )
    assert [(one.code, one.stderr) for one in told] == [(0, "")] * 3
    whole, shared = (
        json.loads((tmp_path / f"{name}.json").read_text())["facts"]["negative flips along the chain"]
        for name in ("whole", "shared")
    )
    trained = json.loads((folders / "grown" / "matrix.json").read_text())
    assert whole == trained["sum_negative_flips"]
    files = [bare / "versions" / f"v{i}" / "predictions" / "test.parquet" for i in range(3)]
    assert shared == flipguard.matrix(files, on_missing="drop").sum_negative_flips
    assert len({flipguard.read_predictions(file).rows for file in files}) == 2


def test_the_matrix_of_a_run_is_that_of_its_training(folders: Path, tmp_path: Path) -> None:
    wrong = {
        ("chain", "grown"): "the run folder chain stands for all its versions: give it alone",
        ("entropy_0.2",): "it holds the runs seed_1, seed_2: name one of them",
        ("chain/versions",): "chain/versions is no run folder: it has no spec.yaml",
    }
    runs = ("chain", "grown")
    done = in_turn(
        folders,
        *(("matrix", run, "--json", tmp_path / f"{run}.json") for run in runs),
        *(("matrix", *words) for words in wrong),
    )
    for run, one in zip(runs, done, strict=False):
        assert (one.code, one.stderr) == (0, "")
        said, trained = (
            json.loads(path.read_text()) for path in (tmp_path / f"{run}.json", folders / run / "matrix.json")
        )
        assert said == trained
    for message, one in zip(wrong.values(), done[len(runs) :], strict=True):
        assert one.code == 2
        assert message in one.stderr


def test_the_terminal_shows_how_each_version_was_trained(folders: Path) -> None:
    found = read_run(folders / "chain")
    text = plain_text(run_report(Outcome(found.path, found.versions)))
    errors = {version: [line["error_rate_new"] for line in found.epochs(version)] for version in found.versions}
    for version, values in errors.items():
        row = f"{version} error {sparkline(values)} {percent(values[0])} {percent(values[-1])}"
        assert row in " ".join(text.split())
    assert " ".join(text.split()).count(" NFR ") == 2, "the first version has no predecessor"


def test_figures_over_epochs_name_the_part_that_they_are_of(folders: Path, tmp_path: Path) -> None:
    """The chain has no validation part, the other run has one; a metrics file without parts tells none."""
    spec = parse_yaml((folders / "chain/spec.yaml").read_text(), "chain")
    for version in spec["versions"]:
        version.pop("data", None)
    train(parse_training_spec({**spec, "data": {**spec["data"], "validation": 29}}), tmp_path / "held")
    chain, held = read_run(folders / "chain"), read_run(tmp_path / "held")
    for runs, where in (([chain], "test"), ([held], "validation"), ([chain, held], "test or validation")):
        plot = flips_over_epochs({run.path.name: [run] for run in runs})
        assert plot.title == f"Errors and flips over training, on the {where} part"
        assert all(fact.endswith(f", on the {where} part") for fact in plot.facts)
    heads = [plain_text(run_report(Outcome(run.path, run.versions))).splitlines()[2] for run in (chain, held)]
    assert [" ".join(head.split()) for head in heads] == [
        "over epochs on the test part first last",
        "over epochs on the validation part first last",
    ]
    metrics = tmp_path / "held/versions/v1/metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"part": "validation", ', ""))
    assert flips_over_epochs({"": [held]}).title == "Errors and flips over training"
    assert "over epochs  " in plain_text(run_report(Outcome(held.path, held.versions)))


def test_the_report_of_a_run_is_that_of_its_last_update(folders: Path, tmp_path: Path) -> None:
    wrong = {
        ("chain", "x.parquet"): "stands for both sides",
        ("chain/versions/v0/predictions/test.parquet",): "is no run folder: give OLD and NEW",
        ("entropy_0.2",): "it holds the runs seed_1, seed_2",
    }
    done, judged, *refused = in_turn(
        folders,
        ("report", "chain", "--out", tmp_path / "r.html"),
        ("report", "chain", "--max-nfr", "0", "--out", tmp_path / "s.html"),
        *(("report", *words, "--out", tmp_path / "t.html") for words in wrong),
    )
    assert (done.code, done.stderr) == (0, "")
    flips = flipguard.compare(*read_run(folders / "chain").update).negative_flips
    assert f"{flips} negative flips" in done.stdout
    text = (tmp_path / "r.html").read_text()
    assert "The chain of versions" in text
    assert "gate from the run&#39;s spec" in text
    assert "mlp v1" in text
    assert "Errors and flips over training, on the test part: negative flip rate" in text
    last = read_run(folders / "chain").epochs("v2")[-1]["negative_flip_rate"]
    assert f"<td>{last:.4g}</td>" in text
    assert judged.code == 0
    assert "gate from the run" not in (tmp_path / "s.html").read_text()
    for (words, message), one in zip(wrong.items(), refused, strict=True):
        assert one.code == 2, words
        assert message in one.stderr
