"""The run folder: whose it is, who may write, and that no epoch is told twice."""

import fcntl
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from flipguard.releases import TrainSpec, resolve
from flipguard.releases.folder import Metrics, RunFolder
from flipguard.releases.resolved import as_dict
from flipguard.types import InputError

Make = Callable[..., TrainSpec]


def resolved(spec: TrainSpec) -> dict[str, Any]:
    return as_dict(resolve(spec))


def adopt(folder: Path, spec: TrainSpec) -> None:
    run = RunFolder(folder)
    with run.held():
        run.adopt(resolved(spec))


@pytest.mark.parametrize(
    ("change", "key", "before", "now"),
    [
        ("new.train.epochs=5", "versions.new.train.epochs", "3", "5"),
        ("new.model.hidden=[11]", "versions.new.model.hidden", "[7]", "[11]"),
        ("data.per_class=11", "data.per_class", "13", "11"),
        ("seed=2", "versions.old.seeds.initialisation", "0", "2000000"),
        ("method.name=dropout", "versions.old.method.name", '"none"', '"dropout"'),
        ("old.method.label_smoothing=0.1", "versions.old.method.label_smoothing", "0.0", "0.1"),
        ("train.clip_norm=1.0", "versions.old.train.clip_norm", "nothing", "1.0"),
    ],
)
def test_a_spec_that_would_give_other_networks_is_refused(
    change: str, key: str, before: str, now: str, tmp_path: Path, small: Make
) -> None:
    adopt(tmp_path, small())
    written = (tmp_path / "spec.yaml").read_text()
    with pytest.raises(InputError) as caught:
        adopt(tmp_path, small(change))
    assert f"begun with {key} {before}, and this spec has {now}: use the same, or another --out." in str(caught.value)
    assert (tmp_path / "spec.yaml").read_text() == written


@pytest.mark.parametrize(
    "change", ["train.device=auto", "train.engine=plain", "train.checkpoint_every=7", "train.processes=2", "members=x"]
)
def test_what_decides_no_weights_may_change(change: str, tmp_path: Path, small: Make) -> None:
    adopt(tmp_path, small())
    adopt(tmp_path, small(change))


def chain(*widths: int, names: Sequence[str] = "abcde") -> dict[str, Any]:
    listed = [{"name": n, "model": {"name": "mlp", "hidden": [w]}} for n, w in zip(names, widths, strict=False)]
    return {"old": None, "new": None, "versions": listed}


def test_versions_are_added_at_the_end_only(tmp_path: Path, small: Make) -> None:
    adopt(tmp_path, small(**chain(3, 5)))
    adopt(tmp_path, small(**chain(3, 5, 7)))
    with pytest.raises(InputError, match="versions are added at the end"):
        adopt(tmp_path, small(**chain(3, 11, 5, 7, names="axbc")))
    with pytest.raises(InputError, match=r"begun with versions\.c"):
        adopt(tmp_path, small(**chain(3, 5)))


@pytest.mark.parametrize("names", [("v1.0", "v1.1", "v1.2"), ("v1", "v1.0", "v1.0.1")])
def test_a_name_with_a_dot_is_a_version_like_others(names: Sequence[str], tmp_path: Path, small: Make) -> None:
    adopt(tmp_path, small(**chain(3, 5, names=names)))
    with pytest.raises(InputError, match=rf"begun with versions\.{names[1]}\.train\.epochs 3, and this spec has 2"):
        adopt(tmp_path, small("versions.1.train.epochs=2", **chain(3, 5, names=names)))
    adopt(tmp_path, small(**chain(3, 5, 7, names=names)))


@pytest.mark.parametrize(
    "text", ["foo: 1", "versions: [3]", "versions: {name: 1}", "versions: [name]", "versions: [{model: mlp}]", b"\xff"]
)
def test_a_spec_of_which_nothing_can_be_told_is_named(text: str | bytes, tmp_path: Path, small: Make) -> None:
    (tmp_path / "spec.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"spec\.yaml is not what a run was begun with: it lists no versions\."):
        adopt(tmp_path, small())
    assert RunFolder(tmp_path).stored() is None


def test_a_folder_of_other_things_is_left_alone(tmp_path: Path, small: Make) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match=r"holds other things and no spec\.yaml"):
        adopt(tmp_path, small())
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def hold(folder: Path, ready: Any, leave: Any) -> None:
    with RunFolder(folder).held():
        ready.set()
        leave.wait(30)


def test_a_folder_has_one_writer_and_its_lock_goes_with_it(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, leave = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(tmp_path, ready, leave))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(InputError, match=f"is in use by process {holder.pid} on "), RunFolder(tmp_path).held():
        pass
    holder.kill()
    holder.join()
    with RunFolder(tmp_path).held():
        assert f"process {os.getpid()} on" in (tmp_path / "lock").read_text()


@pytest.mark.parametrize("there", ["", "runs", "runs/deep/a"])
def test_what_is_refused_leaves_no_folder_that_was_not_there(there: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs/deep/a"
    (tmp_path / there).mkdir(parents=True, exist_ok=True)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="no"), RunFolder(folder).held():
        raise InputError("no")
    assert set(tmp_path.rglob("*")) == before


def test_what_is_refused_takes_nothing_from_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/spec.yaml").touch()
    with pytest.raises(InputError, match="no"), RunFolder(tmp_path / "a").held():
        raise InputError("no")
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"lock", "spec.yaml"}


def test_a_lock_that_its_holder_removes_in_between_is_not_taken_for_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def after_removal(lock: Any, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / "a/lock").unlink()
            (tmp_path / "a").rmdir()
        flock(lock, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", after_removal)
    with RunFolder(tmp_path / "a").held():
        assert len(calls) == 2
        assert f"process {os.getpid()} on" in (tmp_path / "a/lock").read_text()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    left = [tmp_path / place for place in (".run.json.7.part", "versions/a/.metrics.jsonl.7.part")]
    kept = [tmp_path / place for place in ("versions/a/metrics.jsonl", "members/b/.state.safetensors.part")]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with RunFolder(tmp_path).held():
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in kept)


def test_the_state_of_a_version_that_is_done_is_removed(tmp_path: Path) -> None:
    """A process that is stopped between a version's card and the removal of its state leaves both."""
    for place in ("versions/a/model.json", "versions/a/state.safetensors", "versions/b/state.safetensors"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    with RunFolder(tmp_path).held():
        left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("versions/*/*"))
        assert left == ["versions/a/model.json", "versions/b/state.safetensors"]


def test_an_epoch_that_is_told_again_takes_the_place_of_what_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    told = Metrics(path)
    for epoch in range(4):
        told.add({"epoch": epoch, "error": 0.5})
    again = Metrics(path)
    again.add({"epoch": 2, "error": 0.25})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]
    assert lines[2]["error"] == 0.25
