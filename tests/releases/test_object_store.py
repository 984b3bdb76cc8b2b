"""A run whose artifacts are kept on a real S3 server: killed, cut off, damaged, and what comes of it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.predictions import read_predictions
from flipguard.releases import Listener, train, train_on
from flipguard.spec import parse_training_spec
from flipguard.training.members import MEMBER, STATE
from flipguard.training.pool import Here
from flipguard.training.storage import Storage
from flipguard.types import DamagedFile, InputError
from object_store import ObjectStore

S3FileSystem = pytest.importorskip("s3fs", reason="`make storage` has an environment with s3fs").S3FileSystem
pytestmark = pytest.mark.slow
SPEC: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.5},
    "versions": [
        {"model": {"name": "mlp", "hidden": [5]}, "train": {"epochs": 2}},
        {
            "model": {"name": "mlp", "hidden": [7], "dropout": 0.1},
            "method": {"name": "elodi", "mix": 0.7, "ensemble": {"members": 2, "train": {"epochs": 60}}},
        },
    ],
    "train": {"epochs": 5, "batch_size": 16, "learning_rate": 0.02, "device": "cpu", "checkpoint_every": 7},
}
COMMAND = """
import json, sys
import torch
from flipguard.releases import train_on
from flipguard.spec import parse_training_spec
from flipguard.training import kept
from flipguard.training.pool import Here
from flipguard.types import FlipguardError

kept.LAST_TRIES = (0.1,)
torch.set_num_threads(1)
try:
    train_on(Here, parse_training_spec(json.loads(sys.argv[1])), sys.argv[2])
except FlipguardError as error:
    sys.exit(f"flipguard: {error}")
"""


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in a folder of this machine."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    torch.set_num_threads(1)
    train(parse_training_spec(SPEC), folder)
    return folder


def spec(store: ObjectStore) -> dict[str, Any]:
    return {**SPEC, "artifacts": store.url}


def here(store: ObjectStore, folder: Path, **options: Any) -> list[str]:
    """The run in this process, as on a machine that has nothing but the folder; what it notes."""
    notes = Notes()
    train_on(Here, parse_training_spec(spec(store)), folder, listener=notes, **options)
    return notes.texts


@pytest.fixture
def command(object_store: ObjectStore, tmp_path: Path) -> Iterator[Callable[[Path], "subprocess.Popen[str]"]]:
    """The same in a process of its own, begun."""
    begun: list[subprocess.Popen[str]] = []

    def begin(folder: Path) -> "subprocess.Popen[str]":
        line = [sys.executable, "-c", COMMAND, json.dumps(spec(object_store)), str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
        begun.append(subprocess.Popen(line, env=environment, text=True, stderr=subprocess.PIPE))
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def until_a_member_is_kept_in_the_middle(store: ObjectStore, process: "subprocess.Popen[str]") -> str:
    deadline = time.monotonic() + 120
    while True:
        assert process.poll() is None, process.communicate()
        for home in (store.folder / "members").glob("*"):
            if STATE in Storage(f"{store.url}/members/{home.name}").index()[1]:
                return home.name
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_same_networks(one: Path, other: Path, *, number: int = 4) -> None:
    """Every member and every version, to the bit; of a run that was found finished, its 2 versions."""
    names = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))[-number:]
    assert sorted(path.relative_to(other) for path in other.rglob("*.safetensors")) == names
    for name in names:
        a, b = load_checkpoint(one / name)[0], load_checkpoint(other / name)[0]
        assert all(torch.equal(a[key], b[key]) for key in a), name


def test_a_process_that_is_killed_goes_on_elsewhere(
    object_store: ObjectStore, command: Callable[[Path], "subprocess.Popen[str]"], alone: Path, tmp_path: Path
) -> None:
    run = command(tmp_path / "here/run")
    begun = until_a_member_is_kept_in_the_middle(object_store, run)
    run.kill()
    run.wait()
    place = Storage(f"{object_store.url}/members/{begun}")
    assert list(place.index()[1]) == [STATE]
    place.fetch(tmp_path / "state")
    facts = load_checkpoint(tmp_path / "state" / STATE)[1]
    assert (facts["epoch"], facts["step"]) > (0, 0)
    here(object_store, tmp_path / "there/run")
    assert_same_networks(alone, tmp_path / "there/run")
    assert list(place.index()[1]) == [MEMBER]


def test_a_server_that_is_away_for_a_while(
    object_store: ObjectStore, command: Callable[[Path], "subprocess.Popen[str]"], alone: Path, tmp_path: Path
) -> None:
    run = command(tmp_path / "run")
    until_a_member_is_kept_in_the_middle(object_store, run)
    object_store.stop()
    time.sleep(2)
    object_store.start()
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 0, errors
    assert_same_networks(alone, tmp_path / "run")


def test_a_server_that_stays_away(
    object_store: ObjectStore, command: Callable[[Path], "subprocess.Popen[str]"], alone: Path, tmp_path: Path
) -> None:
    """One warning and one line; what was done since lies on this machine, and the same command goes on with it."""
    run = command(tmp_path / "run")
    begun = until_a_member_is_kept_in_the_middle(object_store, run)
    object_store.stop()
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 1
    place = f"{object_store.url}/members/{begun}"
    warning, line = errors.splitlines()
    away = f'{place} cannot be written: Could not connect to the endpoint URL: "http://127.0.0.1:{object_store.port}/'
    assert warning.startswith(away)
    assert warning.endswith("The work goes on, and is put there when that is possible.")
    assert line.startswith(f"flipguard: {away}")
    assert line.endswith(", where the same command finds it.")
    (left,) = tmp_path.glob("flipguard-left-*")
    # Another start finds no server, and says so.
    again = command(tmp_path / "run")
    _, errors = again.communicate(timeout=240)
    assert again.returncode == 1
    assert len(errors.splitlines()) == 1
    assert "cannot be read: Could not connect to the endpoint URL" in errors
    # The member was finished: nothing of it is done again.
    assert [path.name for path in (left / "home").iterdir()] == [MEMBER]
    finished = (left / "home" / MEMBER).read_bytes()
    object_store.start()
    last = command(tmp_path / "run")
    _, errors = last.communicate(timeout=240)
    assert (last.returncode, errors) == (0, "")
    assert not left.exists()
    assert (tmp_path / "run/members" / begun / MEMBER).read_bytes() == finished
    assert_same_networks(alone, tmp_path / "run")


def test_wrong_keys_are_one_line(object_store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(InputError, match=r"^s3://bucket/kept/run cannot be read: .+\.$") as told:
        here(object_store, tmp_path / "run")
    assert "\n" not in str(told.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, alone: Path) -> Path:
    """What lies in the bucket after a run, put there by a server."""
    home = tmp_path_factory.mktemp("finished")
    store = ObjectStore(home / "store")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        store.start()
        S3FileSystem.clear_instance_cache()
        here(store, home / "run")
        store.stop()
    return store.home


@pytest.fixture
def kept(finished: Path, object_store: ObjectStore) -> ObjectStore:
    """A server with a finished run, which lies there for it alone."""
    object_store.stop()
    shutil.copytree(finished, object_store.home, dirs_exist_ok=True)
    object_store.start()
    return object_store


WEIGHTS = "run/versions/v1/model.*.safetensors"


@pytest.mark.parametrize(
    "pattern",
    [WEIGHTS, "run/versions/v0/predictions/test.*.parquet", "run/spec.*.yaml"],
    ids=["weights", "predictions", "spec"],
)
def test_a_flipped_bit_is_named_and_repaired(pattern: str, kept: ObjectStore, alone: Path, tmp_path: Path) -> None:
    damaged = kept.flip(f"kept/{pattern}")
    address = f"{kept.url}/{damaged.relative_to(kept.folder)}"
    with pytest.raises(DamagedFile, match=r"is damaged: its content does not fit its checksum\. .* --repair") as told:
        here(kept, tmp_path / "second/run")
    assert str(told.value).startswith(f"{address} ")
    others = {path: path.stat().st_mtime_ns for path in kept.folder.rglob("members/*/*.safetensors")}
    assert len(others) == 2
    notes = here(kept, tmp_path / "second/run", repair=True)
    assert notes[0] == f"{address} is gone, or does not fit its checksum: it is made again."
    assert_same_networks(alone, tmp_path / "second/run")
    for version in ("v0", "v1"):
        said = f"versions/{version}/predictions/test.parquet"
        one, two = (read_predictions(folder / said).table() for folder in (alone, tmp_path / "second/run"))
        assert one.equals(two)
    # And nothing else was made again.
    assert {path: path.stat().st_mtime_ns for path in others} == others
    assert here(kept, tmp_path / "third/run") == []
    assert_same_networks(alone, tmp_path / "third/run", number=2)


def test_an_index_with_a_flipped_bit_loses_nothing(kept: ObjectStore, alone: Path, tmp_path: Path) -> None:
    kept.flip("kept/run/index.*.json")
    assert here(kept, tmp_path / "second/run") == []
    assert_same_networks(alone, tmp_path / "second/run", number=2)


def test_a_damaged_member_is_trained_again(kept: ObjectStore, alone: Path, tmp_path: Path) -> None:
    one, two = sorted(home.name for home in (kept.folder / "members").iterdir())
    damaged = kept.flip(f"kept/members/{one}/member.*.safetensors")
    (whole,) = (kept.folder / "members" / two).glob("member.*.safetensors")
    before = whole.stat().st_mtime_ns
    notes = here(kept, tmp_path / "second/run", repair=True)
    address = f"{kept.url}/{damaged.relative_to(kept.folder)}"
    assert notes == [f"{address} is gone, or does not fit its checksum: it is made again."]
    assert_same_networks(alone, tmp_path / "second/run")
    assert whole.stat().st_mtime_ns == before
    # The same bits, under the same name.
    assert damaged.exists()
    assert damaged.read_bytes() == (alone / "members" / one / MEMBER).read_bytes()
