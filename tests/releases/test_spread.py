"""A spec on a pool: the run folders that `train` makes, told of as one run, on a disk or at an address."""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.data import DataSet
from flipguard.releases import Listener, TrainSpec, material, train, train_on
from flipguard.releases.folder import RunFolder
from flipguard.releases.plan import DataPlan
from flipguard.training.pool import Hear, Here, Piece
from flipguard.training.storage import Storage
from flipguard.types import InputError

ENSEMBLE = {"name": "elodi", "mix": 0.7, "ensemble": {"members": 3}}


class Heard(Listener):
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.counts: list[tuple[str, int, int]] = []
        self.epochs: list[str] = []
        self.ended: list[tuple[str, bool]] = []
        self.runs: list[tuple[str, list[str]]] = []

    def run_begins(self, folder: str, spec: Mapping[str, Any]) -> None:
        self.runs.append((Path(folder).name, [version["name"] for version in spec["versions"]]))

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        self.begun.append(version)

    def members(self, version: str, done: int, total: int) -> None:
        self.counts.append((version, done, total))

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        self.epochs.append(version)

    def version_ends(self, version: str, *, found: bool) -> None:
        self.ended.append((version, found))


class Counting(Here):
    """A pool that remembers what it was asked for."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def run(self, pieces: Any, hear: Hear) -> None:
        self.pieces += pieces
        super().run(pieces, hear)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def assert_same_run(one: Path, other: Path) -> None:
    assert files(one) == files(other)
    weights = [name for name in files(one) if name.endswith(".safetensors")]
    assert weights
    for name in weights:
        a, b = load_checkpoint(one / name)[0], load_checkpoint(other / name)[0]
        assert all(torch.equal(a[key], b[key]) for key in a), name
    said = [(run / "comparison.json").read_text().replace(str(run), "") for run in (one, other)]
    assert said[0] == said[1]


def test_seeds_and_members_are_pieces_of_one_run(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    spec = small("seed=[0,1]", method={"name": "elodi", "ensemble": {"members": 3}})
    outcome = train(spec, tmp_path / "plain")
    heard, pool = Heard(), Counting()
    spread = train_on(lambda: pool, spec, tmp_path / "spread", listener=heard)
    for seed in ("seed_0", "seed_1"):
        assert_same_run(tmp_path / "plain" / seed, tmp_path / "spread" / seed)
    # Each of two versions has three members, for each of two seeds; a seed's chain waits for its own.
    assert len(pool.pieces) == 2 * 2 * 3 + 2
    chains = [piece for piece in pool.pieces if piece.key.startswith("run ")]
    assert [len(chain.after) for chain in chains] == [6, 6]
    names = [f"{seed}/{version}" for seed in ("seed_0", "seed_1") for version in ("old", "new")]
    assert heard.runs == [("spread", names)]
    assert sorted(heard.begun) == sorted(names)
    for name in names:
        assert [done for version, done, total in heard.counts if version == name] == [0, 1, 2, 3]
        assert heard.epochs.count(name) == 3
    assert sorted(heard.ended) == sorted((name, False) for name in names)
    assert [run.comparisons[-1].negative_flip_rate for run in spread.runs] == [
        run.comparisons[-1].negative_flip_rate for run in outcome.runs
    ]
    assert not spread.found
    # All is there: no pool is even looked for.
    again = train_on(lambda: pytest.fail("a pool was asked for"), spec, tmp_path / "spread")
    assert again.found
    assert train(spec, tmp_path / "spread").found


def test_machines_without_a_common_disk(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    """Work is kept at an address; the run folder has it in the end, and what it had before is taken along."""
    kept = f"file://{tmp_path}/kept"
    first = {"method": {"name": "soup", "ensemble": {"members": 2}}}
    changes = {"old": None, "new": None, "method": None}
    versions = [{"model": {"name": "mlp", "hidden": [5]}}, {"model": {"name": "mlp", "hidden": [5]}, **first}]
    longer = [*versions, {"model": {"name": "mlp", "hidden": [7]}, "method": ENSEMBLE}]
    train(small(**changes, versions=longer), tmp_path / "plain")
    # Two versions without a cluster; the third one on it.
    train(small(**changes, versions=versions), tmp_path / "run")
    spec, pool = small(f"artifacts={kept}", **changes, versions=longer), Counting()
    outcome = train_on(lambda: pool, spec, tmp_path / "run")
    assert len(pool.pieces) == 3 + 1
    assert_same_run(tmp_path / "plain", tmp_path / "run")
    assert not outcome.found
    # Another machine, with nothing of its own, finds it at the address.
    elsewhere = tmp_path / "elsewhere" / "run"
    again = train_on(lambda: pytest.fail("a pool was asked for"), spec, elsewhere)
    assert again.found
    assert files(elsewhere) - {"lock"} == files(tmp_path / "run") - {"lock"} - _members_of(tmp_path / "run", elsewhere)
    assert "comparison.json" in Storage(f"{kept}/run").index()[1]


def _members_of(whole: Path, part: Path) -> set[str]:
    """Members are fetched when somebody needs them."""
    return {name for name in files(whole) - files(part) if name.startswith("members/")}


def test_what_is_damaged_at_the_address_is_named_and_repaired(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    spec = small(f"artifacts=file://{tmp_path}/kept")
    train_on(Here, spec, tmp_path / "run")
    (model,) = (tmp_path / "kept/run/versions/new").glob("model.*.safetensors")
    content = model.read_bytes()
    model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=rf"^file://{model} is damaged: .* with --repair makes it again"):
        train_on(Here, spec, tmp_path / "other/run")
    assert not train_on(Here, spec, tmp_path / "other/run", repair=True).found
    # The same bits, under the same name.
    assert model.read_bytes() == content
    assert (tmp_path / "other/run/versions/new/model.safetensors").read_bytes() == content
    assert train_on(lambda: pytest.fail("a pool was asked for"), spec, tmp_path / "third/run").found


def test_what_a_pool_needs_to_know(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    ensemble = {**ENSEMBLE, "ensemble": {"members": 2, "train": {"resources": {"gpus": 0.5}, "device": "auto"}}}
    spec = small("train.resources={cpus: 2}", "train.epochs=1", method=ensemble)

    class Refusing:
        pieces: tuple[Piece, ...] = ()

        def run(self, pieces: Any, hear: Hear) -> None:
            self.pieces = tuple(pieces)
            raise InputError("no.")

    pool = Refusing()
    with pytest.raises(InputError, match=r"^no\.$"):
        train_on(lambda: pool, spec, tmp_path / "run")
    needs = {(piece.key[:4] == "run ", piece.resources.cpus, piece.resources.gpus) for piece in pool.pieces}
    assert needs == {(True, 2.0, 0.0), (False, 1.0, 0.5)}
    assert {piece.arguments[1].device for piece in pool.pieces if piece.key[:4] != "run "} == {"cuda"}


def test_a_folder_that_another_run_works_in(
    small: Callable[..., TrainSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that is about to go is waited for; one that stays is named."""
    monkeypatch.setattr("flipguard.releases.spread.LINGER_SECONDS", 0.3)
    with (
        RunFolder(tmp_path / "run").held(),
        pytest.raises(InputError, match=r"run is in use by process \d+ on .*: wait for it, or give another --out"),
    ):
        train_on(Here, small(), tmp_path / "run")
    monkeypatch.setattr("flipguard.releases.spread.LINGER_SECONDS", 60.0)
    begun = threading.Event()

    def hold() -> None:
        with RunFolder(tmp_path / "run").held():
            begun.set()
            time.sleep(0.5)

    with ThreadPoolExecutor(1) as other:
        other.submit(hold)
        begun.wait()
        assert len(train_on(Here, small(), tmp_path / "run").comparisons) == 1


def test_data_are_loaded_once_and_sent_along(
    small: Callable[..., TrainSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers may have no way to the data: each version's are loaded by the one who asks, for all seeds."""
    loaded: list[str] = []

    def load(plan: DataPlan, place: str = "data") -> DataSet:
        loaded.append(plan.model_dump_json())
        return material_load(plan, place)

    material_load = material.load
    monkeypatch.setattr(material, "load", load)
    grown = {"model": {"name": "mlp", "hidden": [5]}, "data": {"per_class": 9, "augment": None}}
    train_on(Here, small("seed=[0,1]", old=grown, method=ENSEMBLE), tmp_path / "run")
    assert len(loaded) == len(set(loaded)) == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["artifacts=somewhere"], "artifacts must be an address such as"),
        (["artifacts=nosuch://x"], "nosuch://x/run cannot be reached"),
        (["artifacts=nope://"], "^nope:// names no folder: write an address such as"),
        (["artifacts=s3:///"], "^s3:/// names no folder: write an address such as"),
        (["artifacts=file://{folder}/kept", "members=s3://", "method=elodi"], "^s3:// names no folder"),
        (["new.model.hidden=[0]"], "hidden must be at least 1"),
    ],
)
def test_bad_input(changes: list[str], expected: str, small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    asked = [change.replace("{folder}", str(tmp_path)) for change in changes]
    with pytest.raises(InputError, match=expected):
        train_on(lambda: pytest.fail("a pool was asked for"), small(*asked), tmp_path / "run")


def test_artifacts_are_for_a_cluster(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="artifacts is where the machines of a cluster keep their work: give --on"):
        train(small(f"artifacts=file://{tmp_path}"), tmp_path / "run")


def test_resources_of_a_fraction_of_two_gpus(small: Callable[..., TrainSpec]) -> None:
    with pytest.raises(InputError, match="a share of a GPU, or whole ones"):
        small("train.resources={gpus: 1.5}")


def test_an_inherited_ensemble_is_brought_and_not_trained_again(
    small: Callable[..., TrainSpec], tmp_path: Path
) -> None:
    """`new` is added to a run whose `old` is done, on a machine that has nothing of it but the storage."""
    first = {
        "name": "old",
        "model": {"name": "mlp", "hidden": [5]},
        "method": {"name": "elodi", "ensemble": {"members": 2}},
    }
    second = {"name": "new", "model": {"name": "mlp", "hidden": [7]}, "method": "ldi", "references": "ensemble"}
    whole = {"old": None, "new": None, "method": None, "artifacts": f"file://{tmp_path}/art"}
    train_on(Here, small(**whole, versions=[first]), tmp_path / "run")
    members = {path: path.stat().st_mtime_ns for path in (tmp_path / "art").rglob("member.*.safetensors")}
    assert len(members) == 2
    shutil.rmtree(tmp_path / "run")
    pool = Counting()
    train_on(lambda: pool, small(**whole, versions=[first, second]), tmp_path / "run")
    assert len(pool.pieces) == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "art").rglob("member.*.safetensors")} == members
    assert (tmp_path / "run/versions/new/model.json").exists()


def test_what_a_run_began_with_is_kept_with_its_artifacts(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    """Another machine, or an empty folder, goes on with the methods that were recommended when it began."""
    two = {"name": "recommended", "ensemble": {"members": 2}}
    first, kept = tmp_path / "first", (tmp_path / "kept").as_uri()
    train(small(method=two), first)
    spec = small(old={"run": str(first)}, method="recommended", artifacts=kept)
    train_on(Here, spec, tmp_path / "run")
    shutil.rmtree(first / "members")
    shutil.rmtree(tmp_path / "run")
    assert train_on(Here, spec, tmp_path / "run").found
    shutil.rmtree(first)
    shutil.rmtree(tmp_path / "run")
    assert train_on(Here, spec, tmp_path / "run").found


def test_members_that_were_kept_elsewhere_are_inherited(small: Callable[..., TrainSpec], tmp_path: Path) -> None:
    two, kept = {"name": "recommended", "ensemble": {"members": 2}}, (tmp_path / "kept").as_uri()
    train_on(Here, small(method=two, members=f"{kept}/members", artifacts=f"{kept}/runs"), tmp_path / "run")
    later = small(old={"run": str(tmp_path / "run/versions/old")}, method="recommended")
    assert not train(later, tmp_path / "later").found
    assert "name: scion" in (tmp_path / "later/spec.yaml").read_text()
