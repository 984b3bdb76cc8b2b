"""Folders on a storage: whole at every moment, found by another machine, damage named, one writer at a time."""

import json
import os
import re
import time
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from flipguard.checkpoints import load_facts, save_checkpoint
from flipguard.data import DataSet
from flipguard.methods import NoTreatment
from flipguard.training import ModelSpec, Recipe, Seeds, fit_members
from flipguard.training.kept import kept_at, put_folder
from flipguard.training.members import MEMBER, MemberPlan, member_piece
from flipguard.training.pool import Here
from flipguard.training.storage import Storage, _object_name, _packed, facts_of, sha256_of
from flipguard.types import DamagedFile, InputError, MissingExtra


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Real backends of fsspec: this machine's disk, its memory, and where it is installed an S3 server."""
    if request.param == "s3":
        return f"{request.getfixturevalue('object_store').url}/run"
    return f"file://{tmp_path}/kept/run" if request.param == "file" else f"memory://{uuid.uuid4().hex}/run"


def write(path: Path, text: str) -> None:
    """As everything here is written: beside, and renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_text(text)
    beside.replace(path)


def read(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_what_is_written_is_found_elsewhere(url: str) -> None:
    with kept_at(url) as home:
        write(home / "spec.yaml", "a: 1")
        write(home / "versions/new/state.json", "first")
        write(home / "lock", "process 7")
        write(home / "members/one/member", "m")
    with kept_at(url, without={"members/two"}) as home:
        assert read(home) == {"spec.yaml": "a: 1", "versions/new/state.json": "first", "members/one/member": "m"}
        write(home / "versions/new/state.json", "second")
        (home / "spec.yaml").unlink()
        write(home / "members/two/member", "not kept")
    assert not home.exists()
    with kept_at(url) as home:
        assert read(home) == {"versions/new/state.json": "second", "members/one/member": "m"}
    number, files = Storage(url).index()
    assert number == 2
    # Nothing is left of what was replaced.
    storage = Storage(url)
    left = storage._fs.find(storage._root)
    assert len(left) == len(files) + 1


def test_work_is_kept_while_it_goes_on(url: str) -> None:
    with kept_at(url) as home:
        write(home / "state", "half")
        deadline = time.monotonic() + 300
        while not Storage(url).index()[1]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert Storage(url).index()[0] == 1


def test_an_index_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/kept"
    with kept_at(url) as home:
        write(home / "state", "whole")
    (tmp_path / "kept/index.000002.json").write_text('{"files": {"state"')
    Storage(url).fetch(tmp_path / "here")
    assert read(tmp_path / "here") == {"state": "whole"}
    # The next one goes on after it, and clears it away.
    with kept_at(url) as home:
        assert read(home) == {"state": "whole"}
        write(home / "state", "further")
    assert sorted(path.name[:12] for path in (tmp_path / "kept").iterdir())[0] == "index.000003"
    assert len(list((tmp_path / "kept").iterdir())) == 2
    Storage(url).fetch(tmp_path / "here")
    assert read(tmp_path / "here") == {"state": "further"}


def test_a_storage_that_is_away_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is a file when the work ends, and a folder when it is tried again; at last it is an error."""
    url = f"file://{tmp_path}/kept/run"
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            (tmp_path / "kept").unlink()

    monkeypatch.setattr("flipguard.training.kept.MIRROR_SECONDS", 1000.0)
    with kept_at(url) as home:
        write(home / "state", "x")
        (tmp_path / "kept").write_text("in the way")
        monkeypatch.setattr("flipguard.training.kept.time.sleep", sleep)
    assert waited == [1.0, 2.0]
    Storage(url).fetch(tmp_path / "here")
    assert read(tmp_path / "here") == {"state": "x"}


def test_a_damaged_file_is_named_and_not_fetched(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/kept"
    with kept_at(url) as home:
        write(home / "model.json", "weights")
    (there,) = (tmp_path / "kept").glob("model.*.json")
    there.write_text("wdights")
    with pytest.raises(DamagedFile, match=r"kept/model\.[0-9a-f]{12}\.json is damaged: .* with --repair makes it"):
        Storage(url).fetch(tmp_path / "here")
    assert read(tmp_path / "here") == {}
    there.unlink()
    with pytest.raises(
        DamagedFile, match=r"model\.[0-9a-f]{12}\.json is gone, though its index names it\. .* --repair"
    ):
        Storage(url).fetch(tmp_path / "here")


def test_one_that_was_replaced_cannot_undo_the_other(url: str) -> None:
    """A worker that was given up for lost wakes after another has taken its work over."""

    def both() -> None:
        with kept_at(url) as late:
            with kept_at(url) as home:
                write(home / "state", "newer")
            write(late / "state", "older")

    with pytest.raises(InputError, match="was taken over by another process"):
        both()
    with kept_at(url) as home:
        assert read(home) == {"state": "newer"}


@pytest.mark.parametrize("call", ["pipe_file", "rm_file"])
def test_an_answer_that_was_lost_is_no_other_process(
    call: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index was written, or the first of the files of before removed, and the storage's answer got lost."""
    first, second = tmp_path / "first", tmp_path / "second"
    write(first / "state", "a")
    write(second / "state", "b")
    storage = Storage(url)
    before = storage.commit({"state": facts_of(first / "state")}, {"state": first / "state"}, (0, {}))
    real, lost = getattr(storage._fs, call), []

    def cut_off(*arguments: object) -> None:
        real(*arguments)
        if not lost:
            lost.append(call)
            raise TimeoutError("no answer")

    monkeypatch.setattr(storage._fs, call, cut_off)
    then = {"state": facts_of(second / "state")}
    if call == "pipe_file":
        with pytest.raises(InputError, match="cannot be written: no answer"):
            storage.commit(then, {"state": second / "state"}, before)
    done = storage.commit(then, {"state": second / "state"}, before)
    assert lost == [call]
    assert storage.index() == (done[0], then)
    last = storage.commit({"state": facts_of(first / "state")}, {"state": first / "state"}, done)
    storage.fetch(tmp_path / "here")
    assert read(tmp_path / "here") == {"state": "a"}
    # Nothing is left of what was replaced.
    assert len(storage._fs.find(storage._root)) == 2
    assert last[0] == done[0] + 1


def test_what_a_storage_does_not_take_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage stays away to the end: the work stays here, and goes on from here when the storage is back."""
    url = f"file://{tmp_path}/kept/run"
    with kept_at(url) as home:
        write(home / "state", "early")
    monkeypatch.setattr("flipguard.training.kept.MIRROR_SECONDS", 1000.0)
    monkeypatch.setattr("flipguard.training.kept.LAST_TRIES", (0.0,))
    monkeypatch.setattr("flipguard.training.kept.tempfile.tempdir", str(tmp_path))

    def work(text: str) -> None:
        with kept_at(url) as home:
            write(home / "state", text)
            (tmp_path / "kept").rename(tmp_path / "away")
            (tmp_path / "kept").write_text("in the way")

    def cut_off(text: str) -> Path:
        with pytest.raises(InputError, match=r"cannot be written: .* What it lacks lies in .*/flipguard-left-") as told:
            work(text)
        (tmp_path / "kept").unlink()
        (tmp_path / "away").rename(tmp_path / "kept")
        return Path(re.findall(r"lies in (\S+),", str(told.value))[0])

    left = cut_off("late")
    assert read(left / "home") == {"state": "late"}
    assert Storage(url).index()[0] == 1
    with kept_at(url) as home:
        assert read(home) == {"state": "late"}
    assert Storage(url).index()[0] == 2
    assert not left.exists()
    # Where another machine has gone on meanwhile, its work counts.
    assert cut_off("later") == left
    monkeypatch.setattr("flipguard.training.kept.tempfile.tempdir", None)
    with kept_at(url) as home:
        assert read(home) == {"state": "late"}
        write(home / "state", "elsewhere")
    monkeypatch.setattr("flipguard.training.kept.tempfile.tempdir", str(tmp_path))
    with kept_at(url) as home:
        assert read(home) == {"state": "elsewhere"}
    assert not left.exists()


@pytest.mark.parametrize("marked", [True, False])
def test_damage_is_repaired_and_the_rest_stays(marked: bool, url: str, tmp_path: Path) -> None:
    with kept_at(url) as home:
        for name in ("spec.yaml", "note.md", "model.json", "state.json"):
            write(home / name, f"{name} as it was")
    storage = Storage(url)
    _, files = storage.index()
    at = {name: storage._at(_object_name(name, facts["sha256"])) for name, facts in files.items()}
    assert storage.repair({}, marked=marked) == []
    for name in ("spec.yaml", "note.md"):
        storage._fs.pipe_file(at[name], b"something else")
    storage._fs.rm_file(at["model.json"])
    lost = storage.repair({"spec.yaml": "a: 1"}, marked=marked)
    assert lost == [f"{url}/{at[name].rsplit('/', 1)[-1]}" for name in ("model.json", "note.md", "spec.yaml")]
    storage.fetch(tmp_path / "here")
    expected = {"spec.yaml": "a: 1", "state.json": "state.json as it was"}
    assert read(tmp_path / "here") == (expected | {"model.json": "damaged"} if marked else expected)
    assert len(storage._fs.find(storage._root)) == len(read(tmp_path / "here")) + 1


def test_an_index_with_a_flipped_bit_follows_from_the_files(url: str, tmp_path: Path) -> None:
    kept = {"spec.yaml": "a: 1", "versions/new/model.json": "{}", "no_suffix": "x"}
    with kept_at(url) as home:
        for name, text in kept.items():
            write(home / name, text)
    storage = Storage(url)
    number, files = storage.index()
    there = storage._at(f"index.{number:06d}.json")
    content = bytearray(storage._fs.cat_file(there))
    content[len(content) // 2] ^= 1
    storage._fs.pipe_file(there, bytes(content))
    assert Storage(url).index() == (number, files)
    with kept_at(url) as home:
        assert read(home) == kept
        write(home / "spec.yaml", "a: 2")
    assert Storage(url).index()[0] == number + 1


def test_of_two_states_the_furthest_is_found_whatever_the_clock_said(tmp_path: Path) -> None:
    """No index is whole. Of each file lies there what the last two commits put, with times from a clock set back."""
    url, kept, here = f"file://{tmp_path}/kept", tmp_path / "kept", tmp_path / "here"
    states = [(2, 9), (10, 3), (10, 0)]
    for second, (epoch, step) in enumerate(states):
        save_checkpoint(
            here / "state.safetensors", {"w": torch.full((5,), float(second))}, {"epoch": epoch, "step": step}
        )
        write(here / "metrics.jsonl", '{"epoch": 0}\n' * epoch + " " * step)
        for name in ("state.safetensors", "metrics.jsonl"):
            there = kept / _object_name(name, sha256_of(here / name))
            there.parent.mkdir(exist_ok=True)
            there.write_bytes((here / name).read_bytes())
            os.utime(there, (10**9 - second, 10**9 - second))
    (kept / "index.000004.json").write_text("{")
    Storage(url).fetch(tmp_path / "fetched")
    facts = load_facts(tmp_path / "fetched/state.safetensors")
    assert (facts["epoch"], facts["step"]) == max(states)
    # Both have ten epochs: between these the time decides.
    assert (tmp_path / "fetched/metrics.jsonl").read_text() == '{"epoch": 0}\n' * 10 + " " * 3


def test_an_index_cannot_write_elsewhere(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/kept"
    with kept_at(url) as home:
        write(home / "state", "x")
    storage = Storage(url)
    _, files = storage.index()
    (tmp_path / "kept/index.000009.json").write_bytes(_packed({"../outside": files["state"]}))
    with pytest.raises(InputError, match=r"names a file outside of its folder: \.\./outside"):
        storage.fetch(tmp_path / "here")


def test_errors_speak_of_the_storage(url: str) -> None:
    with pytest.raises(InputError, match=f"^{url}/spec.yaml is odd.$"), kept_at(url) as home:
        raise InputError(f"{home}/spec.yaml is odd.")


def test_storages_that_cannot_be_reached(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nosuch://x cannot be reached"):
        Storage("nosuch://x")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/run cannot be read: .*Not a directory"):
        Storage(f"file://{tmp_path}/file/run").index()


def test_a_path_is_left_alone(tmp_path: Path) -> None:
    with kept_at(str(tmp_path)) as home:
        assert home == tmp_path
        write(home / "state", "x")
    assert read(tmp_path) == {"state": "x"}


def test_a_folder_is_put_once(url: str, tmp_path: Path) -> None:
    write(tmp_path / "run/versions/a/model.json", json.dumps(1))
    write(tmp_path / "run/members/b/member", "m")
    write(tmp_path / "run/lock", "me")
    put_folder(Storage(url), tmp_path / "run", without="members")
    with kept_at(url) as home:
        assert read(home) == {"versions/a/model.json": "1"}


def test_a_member_at_an_address_is_the_member_of_a_folder(data: DataSet, url: str, tmp_path: Path) -> None:
    model, recipe = ModelSpec("mlp", {"input_size": 11, "hidden": (13,)}), Recipe(epochs=2, batch_size=16)
    fit_members(model, data, recipe, [3], folder=tmp_path / "folder", processes=1)
    (member,) = (tmp_path / "folder").rglob(MEMBER)
    plan = MemberPlan(model, recipe, NoTreatment(), None, "cpu", 200)
    Here().run([member_piece(plan, data, Seeds.of(3), url)], lambda event: None)
    Storage(url).fetch(tmp_path / "fetched")
    assert [path.name for path in (tmp_path / "fetched").iterdir()] == [MEMBER]
    assert (tmp_path / "fetched" / MEMBER).read_bytes() == member.read_bytes()


def test_a_backend_that_is_not_installed_is_named() -> None:
    if find_spec("s3fs") is not None:
        pytest.skip("s3fs is installed here")
    with pytest.raises(MissingExtra, match="s3://bucket/x cannot be reached: Install s3fs"):
        Storage("s3://bucket/x")
