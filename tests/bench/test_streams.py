"""Randomness that networks have in common, and averages of weights, which need a common start."""

import fcntl
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from small_bench import parsed

from flipguard.bench.evaluate import pairs_of
from flipguard.bench.graph import Graph
from flipguard.bench.node import Node
from flipguard.bench.plan import PartPlan
from flipguard.bench.run import Bench
from flipguard.bench.shop import Shop
from flipguard.bench.tables import read_rows
from flipguard.bench.work import on_one_device, train_all
from flipguard.checkpoints import load_checkpoint
from flipguard.models.classifier import Classifier
from flipguard.releases import material
from flipguard.training.network import new_student
from flipguard.training.turns import Turns
from flipguard.types import InputError

STREAMS = ["initialisation", "order", "augment"]
NETWORKS: dict[str, Any] = {
    "free": {},
    "start": {"held": ["initialisation"]},
    "all": {"held": STREAMS},
    "bare": {"held": STREAMS, "augment": False},
    "tuned": {"copies": 3, "shared": ["initialisation"]},
    "soup": {"method": "soup", "references": {"ensemble": "tuned"}},
    "between": {
        "method": {"name": "weight_interpolation", "alpha": 0.25},
        "references": {"old": "tuned.0", "new": "tuned.1"},
    },
    "chosen": {
        "method": {"name": "weight_interpolation", "alpha": "validation"},
        "references": {"old": "tuned.0", "new": "tuned.1"},
    },
    "held_to_soup": {"method": "elodi", "references": {"ensemble": "soup"}},
}
ROWS: dict[str, Any] = {
    **{name: name for name in ("free", "start", "all", "bare", "soup", "held_to_soup")},
    "between": {"old": "tuned.0", "new": "between"},
    "chosen": {"old": "tuned.0", "new": "chosen"},
}
SAME: dict[str, Any] = {
    "networks": NETWORKS,
    "rows": ROWS,
    "old": {"name": "mlp", "hidden": [7]},
    "data": {
        "name": "digits",
        "test_size": 0.5,
        "validation": 53,
        "per_class": 11,
        "augment": {"crop_padding": 1, "flip": False},
    },
}


@pytest.fixture(scope="module")
def retrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    Bench(parsed(**SAME), folder).run(processes=1)
    return folder


def node(name: str, side: str = "new", seed: int = 3, copy: int = 0) -> Node:
    spec = parsed(**SAME)
    found = Graph(spec, material.load(spec.data))
    place = {"old": 0, "new": 1}[side]
    pair = pairs_of(found, "soup" if name == "tuned" else name, seed)[0]
    if name == "tuned":
        return (pair.old, pair.new)[place][0].node.references["ensemble"][copy].node
    return (pair.old, pair.new)[place][0].node


def weights(folder: Path, one: Node) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / "networks" / one.folder / "0.safetensors")[0]


def started(one: Node) -> torch.Tensor:
    student: Any = new_student(one.model, 10, one.method, one.recipe, one.seeds)
    return torch.cat([p.flatten() for p in student.release().parameters()])


def test_a_stream_that_is_held_is_the_same_for_every_seed() -> None:
    free, start, everything = ([node(name, seed=seed) for seed in (3, 8)] for name in ("free", "start", "all"))
    assert not torch.equal(started(free[0]), started(free[1]))
    assert torch.equal(started(start[0]), started(start[1]))
    assert start[0].seeds.order != start[1].seeds.order
    assert everything[0].seeds == everything[1].seeds
    assert node("all", side="old").seeds == everything[0].seeds


def test_a_stream_that_is_shared_is_another_for_another_seed() -> None:
    copies = [node("tuned", copy=copy) for copy in range(3)]
    assert len({one.seeds.initialisation for one in (*copies, node("tuned", side="old"))}) == 1
    assert len({one.seeds.order for one in copies}) == 3
    assert node("tuned", seed=8).seeds.initialisation != copies[0].seeds.initialisation


def test_with_everything_held_two_runs_are_one(retrained: Path) -> None:
    rows = {row.name: row.cells["run_churn"].mean for row in read_rows(retrained)}
    assert rows["all"] == rows["bare"] == 0
    assert min(rows["free"], rows["start"]) > 0
    said = pq.read_table(retrained / "predictions.parquet")
    # Without augmentation it is another training.
    assert (said["all.3.0.new"].to_numpy() != said["bare.3.0.new"].to_numpy()).any()


def test_averages_are_of_the_weights(retrained: Path) -> None:
    members = [weights(retrained, node("tuned", copy=copy)) for copy in range(3)]
    before = weights(retrained, node("tuned", side="old"))
    soup, between = (weights(retrained, node(name)) for name in ("soup", "between"))
    for name, tensor in soup.items():
        torch.testing.assert_close(tensor, torch.stack([one[name] for one in members]).mean(0))
        torch.testing.assert_close(between[name], 0.25 * before[name] + 0.75 * members[1][name])
    chosen = weights(retrained, node("chosen"))
    shares = [(chosen[n] - members[1][n]).norm() / (before[n] - members[1][n]).norm() for n in chosen]
    # One of the ten shares that are tried, and the same for every tensor.
    assert all(float(share) == pytest.approx(round(float(shares[0]), 1), abs=1e-3) for share in shares)


def test_an_average_costs_what_it_is_made_of(retrained: Path) -> None:
    costs = {row.name: row.training_cost for row in read_rows(retrained)}
    assert costs["soup"] == pytest.approx(3)
    assert costs["between"] == pytest.approx(1)
    assert costs["held_to_soup"] > 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"new": {"name": "mlp", "hidden": [9]}}, "only networks of one architecture can be averaged"),
        (
            {"networks": {**NETWORKS, "soup": {**NETWORKS["soup"], "copies": 2}}},
            "networks.soup.copies has no meaning: soup averages weights",
        ),
        (
            {"data": {"name": "digits", "per_class": 11}},
            "networks.chosen: weight_interpolation chooses alpha on the validation part, and the data has none",
        ),
        ({"networks": {**NETWORKS, "free": {"held": ["weights"]}}}, "networks.free.held"),
    ],
)
def test_what_cannot_work_is_said(changes: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Bench(parsed(**{**SAME, **changes}), tmp_path).run(processes=1)
    assert said in str(error.value)


def test_students_of_one_ensemble_that_share_their_draws_have_it_asked_once(tmp_path: Path) -> None:
    """On one device, as on a GPU: the networks are those that processes train, each asking by itself."""
    student = {"method": "elodi", "references": {"ensemble": "single"}, "train": {"views": 2}}
    alike = {**student, "shared": ["augment"]}
    networks = {
        "single": {"copies": 3},
        "one": alike,
        "other": {**alike, "method": {"name": "ensemble_kd", "alpha": 0.5}},
        "two": {**alike, "references": {"ensemble": "single.1-2"}},
        "own": student,
    }
    rows = {name: {"old": "single.0", "new": name} for name in ("one", "other", "two", "own")}
    spec = parsed(**{**SAME, "networks": networks, "rows": rows, "seeds": [3]})
    graph = Graph(spec, material.load(spec.data))
    nodes = {name: graph.row(name, "new", 3)[0].node for name in rows}
    shops = [Shop(graph.sets, graph.augmentation(), tmp_path / name, "cpu") for name in ("beside", "alone")]
    asked = {name: shops[0].asked(node)["ensemble"] for name, node in nodes.items()}
    assert asked["one"] == asked["other"]
    assert asked["two"] == asked["one"][1:]
    assert not {*asked["own"]} & {*asked["one"]}
    # Other weights, samples, views or rounding are other answers.
    assert len({*asked["one"]}) == 3
    for changes in ({"views": 1}, {"views": 2, "precision": "bf16"}):
        other = parsed(
            **{**SAME, "networks": {**networks, "one": {**alike, "train": changes}}, "rows": rows, "seeds": [3]}
        )
        node = Graph(other, graph.data).row("one", "new", 3)[0].node
        assert not {*shops[0].asked(node)["ensemble"]} & {*asked["one"]}
    piece = replace(nodes["one"].references["ensemble"][0], place=1)
    moved = replace(nodes["one"], references={"ensemble": (piece,)})
    assert not {*shops[0].asked(moved)["ensemble"]} & {*asked["one"]}
    fewer = replace(nodes["one"], plan=nodes["one"].plan.model_copy(update={"data": PartPlan(per_class=0.5)}))
    parts = replace(shops[0], sets={**graph.sets, fewer.part: graph.data})
    assert not {*parts.asked(fewer)["ensemble"]} & {*asked["one"]}
    passes: list[int] = []

    def by_processes(shop: Shop, wanted: list[Node]) -> None:
        train_all(shop, wanted, processes=1, on_network=lambda *_: None, on_trouble=lambda *_: None)

    def counted(train: Callable[[Shop, list[Node]], None], shop: Shop) -> int:
        by_processes(shop, nodes["one"].parents())
        passes.clear()
        train(shop, [nodes[name] for name in ("one", "other", "two")])
        return len(passes)

    def count(module: torch.nn.Module, _: Any) -> None:
        if isinstance(module, Classifier):
            passes.append(1)

    with torch.nn.modules.module.register_module_forward_pre_hook(count):
        together = counted(lambda shop, wanted: on_one_device(shop, wanted, lambda *_: None), shops[0])
        apart = counted(by_processes, shops[1])
    # Three networks are asked, where each of the three students asks its own: three, three and two.
    views, steps = 2, -(-len(graph.data.train) // spec.train.batch_size)
    assert apart - together == (3 + 3 + 2 - 3) * views * steps
    for name in ("one", "other", "two"):
        mine, theirs = (load_checkpoint(shop.home(nodes[name]) / "0.safetensors")[0] for shop in shops)
        assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize("engine", ["auto", "stacked"])
def test_networks_on_a_device_wait_for_their_turn(engine: str, tmp_path: Path) -> None:
    """Each by itself, or in one step: while another command has the turn, nothing is done."""
    spec = parsed(
        **{
            **SAME,
            "networks": {"single": {"copies": 2, "train": {"engine": engine}}},
            "rows": {"none": {"old": "single.0", "new": "single.1"}},
            "seeds": [3],
        }
    )
    graph = Graph(spec, material.load(spec.data))
    nodes = [piece.node for piece in graph.pieces("single", "new", 3, "here", ())]
    turns = Turns(tmp_path / "turns")
    shop = Shop(graph.sets, graph.augmentation(), tmp_path / "networks", "cpu", turns=turns)
    with (tmp_path / "turns").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        done: list[bool] = []

        def let_go() -> None:
            done.extend(map(shop.is_done, nodes))
            fcntl.flock(other, fcntl.LOCK_UN)

        threading.Timer(2.0, let_go).start()
        on_one_device(shop, nodes, lambda *_: None)
    assert turns.waited > 0
    assert done == [False, False]
    assert all(map(shop.is_done, nodes))
