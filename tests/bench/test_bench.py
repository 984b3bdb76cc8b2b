"""A bench from spec to tables: every network once, nothing twice, and every number from the files."""

import shutil
import signal
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from small_bench import SPEC, parsed
from torch.nn.modules.module import register_module_forward_pre_hook

from flipguard.bench.cost import Costs, Counter
from flipguard.bench.evaluate import pairs_of
from flipguard.bench.graph import Graph
from flipguard.bench.node import with_parents
from flipguard.bench.run import Bench, Progress
from flipguard.bench.tables import paired_p, read_rows
from flipguard.bench.written import write_tables
from flipguard.checkpoints import load_checkpoint, save_checkpoint
from flipguard.metrics import negative_flip_rate, tally
from flipguard.releases import material
from flipguard.training.signals import Stopped
from flipguard.types import InputError


def graph(**changes: Any) -> Graph:
    spec = parsed(**changes)
    return Graph(spec, material.load(spec.data))


def networks(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("networks/*/record.json")}


def test_every_network_is_trained_once_and_shared(finished: Path) -> None:
    made = networks(finished)
    by_name = {name: sum(one.startswith(f"{name}.") for one in made) for name in SPEC["networks"]}
    # Two seeds, and both sides where a row asks for both; the heir's and KD's old models are others' networks.
    assert by_name == {"single": 12, "elodi": 4, "heir": 2, "kd": 2, "pair": 4, "cyclic": 4, "mean": 4}
    assert not list(finished.rglob("state.safetensors"))
    assert not list(finished.rglob("epoch_*"))


def test_nothing_is_trained_again(finished: Path) -> None:
    told: list[Progress] = []
    Bench(parsed(), finished).run(processes=1, on_network=told.append)
    assert told == []


def test_a_call_that_is_told_to_stop_leaves_the_pairs_that_were_ready(finished: Path, tmp_path: Path) -> None:
    told: list[str] = []

    def stop_at_the_second_seed(one: Progress) -> None:
        told.append(one.network)
        if one.network == "new kd, seed 8":
            raise Stopped(signal.SIGTERM)

    with pytest.raises(Stopped):
        Bench(parsed(), tmp_path, rows=["none", "kd"]).run(processes=1, on_network=stop_at_the_second_seed)
    there = {path.stem for path in (tmp_path / "pairs").glob("*.json")}
    assert there == {*(f"none.{seed}.{copy}" for seed in (3, 8) for copy in range(3)), "kd.3.0"}
    runs = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    whole = pq.read_table(finished / "runs.parquet").to_pylist()
    free = {"seconds": 0.0}
    assert [{**run, **free} for run in runs] == [
        {**run, **free} for run in whole if f"{run['row']}.{run['seed']}.{run['pair']}" in there
    ]
    Bench(parsed(), tmp_path, rows=["none", "kd"]).run(processes=1, on_network=lambda one: told.append(one.network))
    assert len(told) == len({*told})
    again = pq.read_table(tmp_path / "runs.parquet").to_pylist()
    assert [{**run, **free} for run in again] == [{**run, **free} for run in whole if run["row"] in ("none", "kd")]


def test_the_tables_come_from_the_two_files_alone(finished: Path, tmp_path: Path) -> None:
    for name in ("runs.parquet", "predictions.parquet"):
        shutil.copy(finished / name, tmp_path)
    write_tables(tmp_path)
    for name in ("table.md", "front.svg"):
        assert (tmp_path / name).read_bytes() == (finished / name).read_bytes()


def test_figures_are_those_of_the_predictions(finished: Path) -> None:
    said = pq.read_table(finished / "predictions.parquet").to_pandas()
    for run in pq.read_table(finished / "runs.parquet").to_pylist():
        if run["part"] == "test":
            old, new = (said[f"{run['row']}.{run['seed']}.{run['pair']}.{side}"].to_numpy() for side in ("old", "new"))
            counted = tally(said["label"].to_numpy(), old, new)
            assert run["negative_flip_rate"] == pytest.approx(negative_flip_rate(counted))
            assert run["error_rate_new"] == pytest.approx(np.mean(new != said["label"]))
            assert run["churn"] == pytest.approx(np.mean(old != new))


def test_rows_are_means_over_pairs_and_seeds(finished: Path) -> None:
    runs = [run for run in pq.read_table(finished / "runs.parquet").to_pylist() if run["part"] == "test"]
    rows = {row.name: row for row in read_rows(finished)}
    each = [np.mean([r["churn"] for r in runs if (r["row"], r["seed"]) == ("none", seed)]) for seed in (3, 8)]
    assert len([run for run in runs if run["row"] == "none"]) == 6
    assert rows["none"].cells["churn"].mean == pytest.approx(np.mean(each))
    assert rows["none"].cells["churn"].spread == pytest.approx(np.std(each, ddof=1))
    said = pq.read_table(finished / "predictions.parquet")
    between = [
        np.mean(said[f"elodi.{one}.0.new"].to_numpy() != said[f"elodi.{other}.0.new"].to_numpy())
        for one, other in combinations((3, 8), 2)
    ]
    assert rows["elodi"].cells["run_churn"].mean == pytest.approx(np.mean(between))


def test_the_paragon_is_the_mean_of_its_members(finished: Path) -> None:
    said = pq.read_table(finished / "predictions.parquet")
    logits = []
    for path in sorted(finished.glob("networks/single.new.3.*/logits.npz")):
        with np.load(path) as kept:
            logits.append(kept["0.test"])
    assert len(logits) == 3
    assert (np.mean(logits, axis=0).argmax(1) == said["paragon.3.0.new"].to_numpy()).all()


def test_costs_are_in_plain_trainings(finished: Path) -> None:
    rows = {row.name: row for row in read_rows(finished)}
    assert rows["none"].training_cost == pytest.approx(1)
    assert rows["pair"].training_cost == pytest.approx(2)
    assert rows["paragon"].training_cost == pytest.approx(3)
    assert rows["paragon"].inference_cost == pytest.approx(3)
    # Three members, the student, and the members' answers: of an MLP's step, forward is less than a third as the
    # first layer has no gradient of its input.
    assert rows["elodi"].training_cost == pytest.approx(4 + 3 * forward_share(), rel=1e-6)
    # The old ensemble is there already, and is asked once for every sample: the student trains for two epochs.
    old, new = (64 * hidden + hidden * 10 for hidden in (5, 7))
    rows_trained = 2 * 95 / 110
    assert rows["heir"].training_cost == pytest.approx(1 + 2 * forward_share() * old / new / rows_trained, rel=1e-3)


@pytest.mark.parametrize(("augment", "views", "asked"), [(True, 3, 3), (True, 9, 5), (False, 3, 1)])
def test_views_are_paid_for_once(augment: bool, views: int, asked: int) -> None:
    """Of five epochs: a reference is asked of as many views as there are, and no more often than plainly."""
    networks: dict[str, Any] = {
        "single": {},
        "kd": {"method": "kd", "references": {"old": "single"}, "augment": augment},
        "kept": {"method": "kd", "references": {"old": "single"}, "augment": augment, "train": {"views": views}},
    }
    rows = {name: {"old": "single", "new": name} for name in networks}
    train = {"epochs": 5, "batch_size": 55}
    found = graph(
        data={"name": "digits", "per_class": 11, "augment": {"crop_padding": 1}},
        networks=networks,
        rows=rows,
        train=train,
    )
    costs = Costs(found)
    old, plain, kd, kept = (
        pairs_of(found, name, 3)[0].new[0].node if place else pairs_of(found, name, 3)[0].old[0].node
        for place, name in enumerate(("single", "single", "kd", "kept"))
    )
    answers = 110 * costs.answer(old)
    assert costs.training(kd) == pytest.approx(costs.training(plain) + 5 * answers)
    assert costs.training(kept) == pytest.approx(costs.training(plain) + asked * answers)


def test_who_was_held_to_plain_logarithms_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    by_mean = {"combination": "probabilities"}
    ways: dict[str, tuple[dict[str, Any], bool]] = {
        "elodi": ({"method": "elodi", "references": {"ensemble": "single"}}, False),
        "by_mean": ({"method": {"name": "elodi", **by_mean}, "references": {"ensemble": "single"}}, True),
        "lm": ({"method": {"name": "fd_lm", **by_mean}, "references": {"old": "single"}}, True),
        "kl": ({"method": {"name": "fd_kl", **by_mean}, "references": {"old": "single"}}, False),
        "kd": ({"method": {"name": "ensemble_kd", **by_mean}, "references": {"ensemble": "single"}}, False),
        "whole": ({"method": {"name": "batch_ensemble", "members": 2}, "references": {"ensemble": "single"}}, False),
        "by_whole": ({"method": "elodi", "references": {"ensemble": "whole"}}, True),
    }
    networks: dict[str, Any] = {"single": {"copies": 2}, **{name: plan for name, (plan, _) in ways.items()}}

    def keys() -> dict[str, str]:
        found = graph(networks=networks, rows={name: {"old": "single.0", "new": name} for name in ways})
        return {name: pairs_of(found, name, 3)[0].new[0].node.key for name in ways}

    now = keys()
    monkeypatch.setattr("flipguard.bench.graph.matches_probabilities", lambda node: False)
    before = keys()
    assert {name: now[name] != before[name] for name in ways} == {name: other for name, (_, other) in ways.items()}


def test_operations_are_counted_by_one_thread() -> None:
    """Benches that begin together would take each other's cores."""
    found, seen, before = graph(), set(), torch.get_num_threads()
    node = pairs_of(found, "kd", 3)[0].new[0].node
    hook = register_module_forward_pre_hook(lambda *_: seen.add(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        costs = Costs(found)
        assert costs.training(node) > costs.answer(node) > 0
        assert torch.get_num_threads() == 2
    finally:
        hook.remove()
        torch.set_num_threads(before)
    assert seen == {1}


def test_networks_that_are_dealt_out_cost_what_one_does() -> None:
    networks: dict[str, Any] = {
        "single": {"copies": 3},
        "plain": {},
        "held": {"method": "elodi", "references": {"ensemble": "old.single"}},
        "dealt": {"method": "elodi", "references": {"ensemble": "old.single"}, "train": {"dealt": True}},
    }
    rows = {name: {"old": "single", "new": name} for name in networks}
    found = graph(networks=networks, rows=rows)
    costs = Costs(found)
    plain, held, dealt = (
        costs.training(pairs_of(found, name, 3)[0].new[0].node) for name in ("plain", "held", "dealt")
    )
    assert held - plain == pytest.approx(3 * (dealt - plain))
    assert dealt > plain


def test_small_images_cost_less_and_whole_answers_as_much() -> None:
    """Of five epochs: three on a quarter of the pixels, two on all; the reference is asked of all of them in each."""
    held = {"method": "kd", "references": {"old": "old.single"}}
    networks = {
        "single": {},
        "plain": {"train": {"epochs": 5}},
        "half": {"train": {"epochs": 5, "scales": [0.5, 1.0]}},
        "held": {**held, "train": {"epochs": 5}},
        "half_held": {**held, "train": {"epochs": 5, "scales": [0.5, 1.0]}},
    }
    model = {"name": "cnn", "width": 4}
    found = graph(networks=networks, rows={name: name for name in networks}, old=model, new=model)
    costs = Costs(found)
    plain, half, asked, half_asked = (
        costs.training(pairs_of(found, name, 3)[0].new[0].node) for name in ("plain", "half", "held", "half_held")
    )
    assert 2 / 5 < half / plain < 3 / 5
    assert asked > plain
    assert half_asked - half == pytest.approx(asked - plain)


def test_a_network_that_cannot_take_its_step_is_named() -> None:
    """`SPEC`'s networks read all pixels at once."""
    networks = {"single": {}, "half": {"train": {"epochs": 2, "scales": [0.5, 1.0]}}}
    found = graph(networks=networks, rows={"half": "half"})
    with pytest.raises(InputError, match=r"^networks\.half cannot take a step: mat1 and mat2 shapes"):
        Costs(found).training(pairs_of(found, "half", 3)[0].new[0].node)


def test_dealt_and_offline_do_not_go_together() -> None:
    networks = {
        "single": {"copies": 2},
        "kd": {"method": "elodi", "references": {"ensemble": "single"}, "offline": True, "train": {"dealt": True}},
    }
    with pytest.raises(InputError, match=r"networks\.kd: offline keeps what all networks say, train\.dealt asks one"):
        pairs_of(graph(networks=networks, rows={"kd": {"old": "single", "new": "kd"}}), "kd", 3)


def test_an_average_asks_nobody_whatever_the_views() -> None:
    networks = {
        "start": {"copies": 2, "shared": ["initialisation"]},
        "soup": {"method": "soup", "references": {"ensemble": "start"}},
    }
    nodes = [
        pairs_of(graph(networks=networks, rows={"soup": "soup"}, train={**SPEC["train"], "views": views}), "soup", 3)
        for views in (0, 2)
    ]
    first, second = (found[0].new[0].node for found in nodes)
    assert first.key == second.key
    found = graph(networks=networks, rows={"soup": "soup"}, train={**SPEC["train"], "views": 2})
    assert Costs(found).training(pairs_of(found, "soup", 3)[0].new[0].node) == 0


def test_views_and_offline_do_not_go_together() -> None:
    networks = {
        "single": {},
        "kd": {"method": "kd", "references": {"old": "single"}, "offline": True, "train": {"views": 2}},
    }
    with pytest.raises(InputError, match=r"networks\.kd: offline asks the references of plain samples"):
        pairs_of(graph(networks=networks, rows={"kd": {"old": "single", "new": "kd"}}), "kd", 3)


def forward_share() -> float:
    """An MLP of 64, 7 and 10 units: forward and weights' gradients of both layers, input's gradient of the second."""
    first, second = 64 * 7, 7 * 10
    return (first + second) / (2 * first + 3 * second)


def test_convolutions_are_counted_as_the_formula_says() -> None:
    found = graph(
        data={"name": "digits", "per_class": 11},
        old={"name": "cnn"},
        networks={"single": {}},
        rows={"none": "single"},
        train={"epochs": 1, "batch_size": 50},
    )
    node = pairs_of(found, "none", 3)[0].old[0].node
    costs = Costs(found)
    assert costs.answer(node) > 1e4
    # Training is three forward passes, less the gradient of the first layer's input.
    assert 2 < costs.training(node) / (100 * costs.answer(node)) < 3


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_gradients_of_a_convolution_cost_twice_its_answer(groups: int) -> None:
    layer, x = torch.nn.Conv2d(6, 12, 3, groups=groups, bias=False), torch.randn(5, 6, 9, 9, requires_grad=True)
    with Counter() as forward:
        y = layer(x)
    assert forward.total == 2 * 5 * 12 * 7 * 7 * 9 * 6 / groups
    with Counter() as backward:
        y.sum().backward()
    assert backward.total == 2 * forward.total


def test_a_bench_that_is_cut_off_goes_on(finished: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.done == 11:
            raise Enough

    with pytest.raises(Enough):
        Bench(parsed(), tmp_path, seeds=[3]).run(processes=1, on_network=stop)
    before = len(networks(tmp_path))
    assert before == 11
    told: list[Progress] = []
    Bench(parsed(), tmp_path, seeds=[3]).run(processes=1, on_network=told.append)
    all_of_one_seed = {name for name in networks(finished) if ".3." in name}
    assert len(told) == told[-1].total == len(all_of_one_seed) - before
    for name in all_of_one_seed:
        for path in (finished / "networks" / name).glob("*.safetensors"):
            ours, theirs = load_checkpoint(path)[0], load_checkpoint(tmp_path / "networks" / name / path.name)[0]
            assert all((ours[key] == theirs[key]).all() for key in ours)
    assert _tables(tmp_path) == [run for run in _tables(finished) if run["seed"] == 3]


def _tables(folder: Path) -> list[dict[str, Any]]:
    """Every record but how long it took."""
    return [{**run, "seconds": None} for run in pq.read_table(folder / "runs.parquet").to_pylist()]


def test_processes_train_the_same_networks(finished: Path, tmp_path: Path) -> None:
    rows = {name: SPEC["rows"][name] for name in ("none", "elodi")}
    Bench(parsed(rows=rows), tmp_path).run(processes=2)
    assert networks(tmp_path) <= networks(finished)
    wanted = [run for run in _tables(finished) if run["row"] in rows]
    assert _tables(tmp_path) == wanted


def test_another_setting_trains_only_what_rests_on_it(finished: Path) -> None:
    changed = {**SPEC["networks"], "elodi": {**SPEC["networks"]["elodi"], "method": {"name": "elodi", "alpha": 0.7}}}
    count = Bench(parsed(networks=changed), finished).count()
    # Old and new for two seeds; the heir's row has the treated old model.
    assert (count.networks, count.rows) == (4, 4)
    longer = {**SPEC["networks"], "single": {"copies": 3, "train": {"epochs": 4}}}
    assert Bench(parsed(networks=longer), finished).count().networks == 12 + 4 + 2 + 2
    assert Bench(parsed(), finished).count().networks == 0


def test_benches_share_networks(finished: Path, tmp_path: Path) -> None:
    told: list[Progress] = []
    rows = {"none": "single.1", "held": "held"}
    more = {**SPEC["networks"], "held": {"method": "elodi", "references": {"ensemble": "pair"}}}
    bench = Bench(parsed(rows=rows, networks=more), tmp_path, networks=tmp_path / "shared")
    shutil.copytree(finished / "networks", tmp_path / "shared")
    bench.run(processes=1, on_network=told.append)
    assert {one.network for one in told} == {f"{side} held, seed {seed}" for side in ("old", "new") for seed in (3, 8)}


@pytest.mark.parametrize("average", [0, 2])
def test_branches_are_kept_as_networks(average: int, tmp_path: Path) -> None:
    """What the old release's branches say can hold the new one: each is a network, and no two are alike."""
    networks = {
        "boughs": {
            "method": {"name": "graft", "members": 3, "strength": 0.0},
            "keeps": "members",
            "train": {"average": average},
        },
        "again": {"method": {"name": "graft", "members": 2}, "references": {"old": "boughs"}},
    }
    rows = {"boughs": "boughs", "again": {"old": "boughs.0", "new": "again"}}
    bench = Bench(parsed(networks=networks, rows=rows, seeds=[3]), tmp_path)
    found = {row.name: row for row in bench.run(processes=1)}
    assert found["boughs"].inference_cost == pytest.approx(3)
    assert found["again"].inference_cost == pytest.approx(1)
    home = next((tmp_path / "networks").glob("boughs.old.3.0-*"))
    with np.load(home / "logits.npz", allow_pickle=False) as said:
        answers = [said[f"{place}.test"] for place in range(3)]
    assert all(np.abs(one - other).max() > 1e-3 for one, other in combinations(answers, 2))


def test_a_row_and_a_seed_can_be_had_alone(tmp_path: Path) -> None:
    rows = Bench(parsed(), tmp_path, rows=["kd"], seeds=[8]).run(processes=1)
    assert [row.name for row in rows] == ["kd"]
    assert {name.split("-")[0] for name in networks(tmp_path)} == {"single.old.8.0", "kd.new.8.0"}


def test_selectors_are_joined() -> None:
    found = graph().pieces("single.1 + old.pair", "new", 3, "rows.a.new", ())
    assert [(piece.node.side, piece.node.name, piece.node.copy, piece.place) for piece in found] == [
        ("new", "single", 1, 0),
        ("old", "pair", 0, 0),
        ("old", "pair", 0, 1),
    ]


def test_seeds_do_not_depend_on_the_place_in_the_file() -> None:
    alone = graph(
        networks={"kd": SPEC["networks"]["kd"], "single": SPEC["networks"]["single"]}, rows={"none": "single"}
    )
    among = graph()
    for one, other in zip(alone.row("none", "new", 3), among.row("none", "new", 3), strict=True):
        assert one.node.key == other.node.key
    seeds = {node.seeds for row in SPEC["rows"] for seed in (3, 8) for node in _nodes(among, row, seed)}
    assert len(seeds) == len({node for row in SPEC["rows"] for seed in (3, 8) for node in _nodes(among, row, seed)})


def _nodes(found: Graph, row: str, seed: int) -> list[Any]:
    return with_parents(node for pair in pairs_of(found, row, seed) for node in pair.nodes())


def test_snapshots_are_those_of_the_cycles(finished: Path) -> None:
    home = next(finished.glob("networks/cyclic.new.3.*"))
    first, last = (load_checkpoint(home / f"{place}.safetensors")[0] for place in (0, 1))
    assert any((first[name] != last[name]).any() for name in first)


def test_the_p_value_is_students() -> None:
    from scipy import stats

    one, other = {0: 0.30, 1: 0.35, 2: 0.31, 4: 9.0}, {0: 0.25, 1: 0.31, 2: 0.29, 5: 9.0}
    wanted = stats.ttest_rel([0.30, 0.35, 0.31], [0.25, 0.31, 0.29]).pvalue
    assert paired_p(one, other) == pytest.approx(wanted)
    assert paired_p({0: 1.0}, {0: 2.0}) is None
    assert paired_p({0: 1.0, 1: 2.0}, {0: 0.0, 1: 1.0}) is None


WRONG = {
    "no such network": ({"rows": {"none": "singel"}}, "rows.none.old: there is no network 'singel'; did you mean"),
    "no such place": ({"rows": {"none": "single.3"}}, "asks for place 3, and 'single' has 3 networks"),
    "backwards": ({"rows": {"none": "single.2-1"}}, "the last place lies before the first"),
    "no selector": ({"rows": {"none": "single[0]"}}, "selects no networks: write name"),
    "a circle": (
        {
            "networks": {
                "a": {"method": "elodi", "references": {"ensemble": "b"}},
                "b": {"method": "elodi", "references": {"ensemble": "a"}},
            },
            "rows": {"none": "a"},
        },
        "old.a → old.b → old.a: a network cannot be held to itself",
    ),
    "a missing reference": ({"networks": {"a": {"method": "kd"}}, "rows": {"none": "a"}}, "kd needs old, and is given"),
    "a reference too many": (
        {"networks": {"a": {"references": {"old": "a"}}}, "rows": {"none": "a"}},
        "none needs none, and is given old",
    ),
    "no objective": ({"networks": {"a": {"method": "paragon"}}, "rows": {"none": "a"}}, "trains no network of its own"),
    "an ensemble": (
        {"networks": {"a": {"method": {"name": "none", "ensemble": {"members": 2}}}}, "rows": {"none": "a"}},
        "references name the networks",
    ),
    "members of one": ({"networks": {"a": {"keeps": "members"}}, "rows": {"none": "a"}}, "trains one network"),
    "too many epochs": (
        {"networks": {"a": {"train": {"average": 3}}}, "rows": {"none": "a"}},
        "average must be between 0 and the 2 epochs, got 3",
    ),
    "members that are one network": (
        {
            "networks": {
                "single": {"copies": 2},
                "a": {"method": "latent_be", "references": {"ensemble": "single"}, "keeps": "members"},
            },
            "rows": {"none": "a.0"},
        },
        "latent_be's members share their weights: they are one network",
    ),
    "a mean of snapshots": (
        {"networks": {"a": {"keeps": "snapshots", "train": {"average": 1}}}, "rows": {"none": "a"}},
        "train.average is a mean over epochs, and keeps is snapshots",
    ),
    "uneven cycles": (
        {"networks": {"a": {"train": {"cycles": 3}}}, "rows": {"none": "a"}},
        "epochs 2 do not divide into 3 equal cycles",
    ),
    "a large batch": ({"train": {"batch_size": 512}}, "a batch of 512 is above the 110 training samples"),
}


@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=list(WRONG))
def test_what_cannot_work_is_said_at_once(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        Bench(parsed(**changes), tmp_path).run(processes=1)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert networks(tmp_path) == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": [1, 1]}, "`seeds` are different numbers"),
        ({"seeds": []}, "seeds"),
        ({"networks": {"a": {"methd": "kd"}}}, "networks.a has no key 'methd'; did you mean 'method'?"),
        ({"networks": {"a b": {}}}, "'a b' cannot name a network"),
        ({"rows": {"none": {"old": "a"}}}, "'rows.none.new' is missing"),
    ],
)
def test_a_spec_with_a_mistake(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as error:
        parsed(**changes)
    assert said in str(error.value)


def test_names_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no row 'eldi'; did you mean 'elodi'"):
        Bench(parsed(), tmp_path, rows=["eldi"])
    with pytest.raises(InputError, match="there is no seed 4; the bench has 3, 8"):
        Bench(parsed(), tmp_path, seeds=[4])
    with pytest.raises(InputError, match="holds no results of a bench"):
        write_tables(tmp_path)


def test_only_networks_that_differ_by_seed_are_trained_in_one_step(tmp_path: Path) -> None:
    """Where the spec names such an engine: copies of one kind, and nothing that is held to something or kept apart."""
    from flipguard.bench.work import STATE, _kinds

    joint = {"train": {**SPEC["train"], "engine": "paired"}}
    bench = Bench(parsed(**joint), tmp_path)
    shop = bench._shop()
    nodes = list(dict.fromkeys(node for pair in bench.pairs() for node in pair.nodes()))
    kinds = _kinds(shop, nodes)
    assert [sorted({(node.side, node.name) for node in kind}) for kind in kinds] == [
        [("old", "single")],
        [("new", "single")],
        [("old", "mean")],
        [("new", "mean")],
    ]
    # Three copies of each of two seeds; two seeds of what has one copy.
    assert [len(kind) for kind in kinds] == [6, 6, 2, 2]
    assert _kinds(shop, [node for pair in Bench(parsed(), tmp_path).pairs() for node in pair.nodes()]) == []
    # One that is left of a pair goes on by the engine that it was begun with; one that was not begun, by itself.
    left = kinds[0][0]
    assert _kinds(shop, [left]) == []
    shop.home(left).mkdir(parents=True)
    save_checkpoint(shop.home(left) / STATE, {"x": torch.zeros(1)}, {"engine": "paired"})
    assert _kinds(shop, [left]) == [[left]]
