"""Chains of versions: every two of them are compared, and the flips of one update after the other add up."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_bench import parsed

from flipguard.bench.evaluate import pairs_of
from flipguard.bench.graph import Graph
from flipguard.bench.run import Bench
from flipguard.bench.tables import read_rows
from flipguard.metrics import tally
from flipguard.releases import material
from flipguard.types import InputError

THIRD = {"name": "mlp", "hidden": [11]}
NETWORKS: dict[str, Any] = {
    "single": {},
    "third": {"model": THIRD},
    "kd": {"method": "kd", "references": {"old": "single"}},
    "kd_chain": {"model": THIRD, "method": "kd", "references": {"old": "new.kd"}},
    "kd_radial": {"model": THIRD, "method": "kd", "references": {"old": "single"}},
    "kd_full": {"model": THIRD, "method": "kd", "references": {"old": "single + new.kd"}},
}
CHAINS = {
    "none": ["single", "single", "third"],
    **{name: ["single", "kd", name] for name in ("kd_chain", "kd_radial", "kd_full")},
}


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chains")
    Bench(parsed(networks=NETWORKS, rows={}, chains=CHAINS), folder).run(processes=1)
    return folder


def test_every_two_versions_are_compared(chained: Path) -> None:
    runs = [run for run in pq.read_table(chained / "runs.parquet").to_pylist() if run["part"] == "test"]
    assert {(run["chain"], run["older"], run["newer"]) for run in runs} == {
        (chain, *pair) for chain in CHAINS for pair in ((0, 1), (0, 2), (1, 2))
    }
    said = pq.read_table(chained / "predictions.parquet")
    # The middle version is the same model as a new and as an old one.
    assert (said["kd_full_v0_v1.3.0.new"].to_numpy() == said["kd_full_v1_v2.3.0.old"].to_numpy()).all()
    assert (said["none_v0_v1.3.0.old"].to_numpy() == said["none_v0_v2.3.0.old"].to_numpy()).all()


def test_flips_add_up_over_the_updates(chained: Path) -> None:
    said = pq.read_table(chained / "predictions.parquet")
    label = said["label"].to_numpy()
    lines = [line for line in (chained / "table.md").read_text().split("### Chains")[1].splitlines() if "|" in line]
    assert lines[0].split("|")[1:-1] == [" chain ", " v0 → v1 ", " v0 → v2 ", " v1 → v2 ", " ΣNF ", " ΣNF / (N·T) "]
    for chain in CHAINS:
        sums = []
        for seed in (3, 8):
            steps = [
                tally(label, *(said[f"{chain}_{step}.{seed}.0.{side}"].to_numpy() for side in ("old", "new")))
                for step in ("v0_v1", "v1_v2")
            ]
            sums.append(sum(int(step.count[1]) for step in steps))
        shown = next(line for line in lines if line.startswith(f"| {chain} |")).split("|")
        assert float(shown[5].split("±")[0]) == pytest.approx(np.mean(sums), abs=0.05)
        assert float(shown[6].split("±")[0]) == pytest.approx(100 * np.mean(sums) / (2 * len(label)), abs=0.005)


def test_references_are_the_versions_that_are_named() -> None:
    spec = parsed(networks=NETWORKS, rows={}, chains=CHAINS)
    found = Graph(spec, material.load(spec.data))

    def held_to(chain: str) -> list[str]:
        newest = pairs_of(found, f"{chain}_v0_v2", 3)[0].new[0].node
        return [piece.node.label for piece in newest.references["old"]]

    assert held_to("kd_chain") == ["new kd, seed 3"]
    assert held_to("kd_radial") == ["old single, seed 3"]
    assert held_to("kd_full") == ["old single, seed 3", "new kd, seed 3"]


def test_an_earlier_version_is_there_already(chained: Path) -> None:
    costs = {row.name: row.training_cost for row in read_rows(chained)}
    # One training of the third network and the answers of those before it, but not their training.
    assert costs["none_v1_v2"] < costs["kd_chain_v1_v2"] < costs["none_v1_v2"] + 1
    assert costs["kd_chain_v1_v2"] < costs["kd_full_v1_v2"] < costs["none_v1_v2"] + 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": {}}, "a bench has at least one of `rows` or `chains`"),
        ({"chains": {"a": ["single"]}}, "chains.a"),
        ({"chains": {"a b": ["single", "single"]}}, "'a b' cannot name"),
        ({"chains": {"a": ["single", "single"]}, "rows": {"a_v0_v1": "single"}}, "two rows are called 'a_v0_v1'"),
    ],
)
def test_a_spec_with_a_mistake(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        parsed(**changes)
    assert said in str(error.value)
