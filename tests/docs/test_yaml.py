"""The YAML that pages show is what the commands read: parsed as the spec that it is, each name in it looked up."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import PAGES, blocks_of
from scratch import SPEC

from flipguard.bench.plan import BenchSpec
from flipguard.bench.run import Bench
from flipguard.spec import parse_training_spec
from flipguard.spec.training import parse_as
from flipguard.types import InputError

SHOWN = [page for page in PAGES if any(block.language == "yaml" for block in blocks_of(page))]
BENCH = "docs/bench.md"


def shown(page: str) -> list[dict[str, Any]]:
    return [yaml.safe_load(block.text) for block in blocks_of(page) if block.language == "yaml"]


@pytest.mark.parametrize("page", [page for page in SHOWN if page != BENCH])
def test_training_specs_are_read(page: str) -> None:
    """A part of a spec is laid over a whole one."""
    for spec in shown(page):
        parse_training_spec(spec if "data" in spec else {**SPEC, **spec})


def pairs(spec: dict[str, Any], folder: Path) -> list[str]:
    return [pair.column for pair in Bench(parse_as(BenchSpec, spec, "bench.yaml"), folder, seeds=[0]).pairs()]


def test_benches_are_read_and_their_networks_found(tmp_path: Path) -> None:
    whole, grown = shown(BENCH)
    assert len(pairs(whole, tmp_path)) == 12, "eight of none, and four rows"
    assert len(pairs({**whole, **grown}, tmp_path)) == 5, "four of none, and one row"
    wrong = {**whole, "networks": {**whole["networks"], "kd": {"method": "kd", "references": {"old": "sngle.0"}}}}
    with pytest.raises(InputError, match="sngle"):
        pairs(wrong, tmp_path)


def test_every_bench_stands_in_the_list_of_tables() -> None:
    root = Path(__file__).parents[2]
    listed = set(re.findall(r"`(\w+)`", (root / BENCH).read_text().split("## The papers' tables")[1]))
    assert listed == {path.stem for path in (root / "recipes" / "bench").glob("*.yaml")}
