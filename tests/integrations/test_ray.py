"""Training on a real Ray cluster of two nodes, one of which dies: the same weights come out, bit for bit.

The nodes are processes of this machine under two addresses, each with a raylet and workers of its own.
"""

import copy
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flipguard.checkpoints import load_checkpoint
from flipguard.releases import train
from flipguard.releases.yaml_text import as_yaml
from flipguard.spec import parse_training_spec
from flipguard.training.members import MEMBER, STATE
from flipguard.training.storage import Storage
from flipguard.types import DamagedFile

pytest.importorskip("ray", reason="ray is not installed here: `make ray` has an environment with it")
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
    "train": {"epochs": 40, "batch_size": 16, "learning_rate": 0.02, "device": "cpu", "checkpoint_every": 7},
}
RAY = [sys.executable, "-m", "ray.scripts.scripts"]
SETTINGS = {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


class Cluster:
    """A head at this machine's address and a further node at 127.0.0.2, with one core each."""

    def __init__(self, port: int) -> None:
        # Ray's sockets lie in there, and their names may have only 107 characters.
        self.folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
        self.address, self.client = f"127.0.0.1:{port}", f"ray://127.0.0.1:{port + 1}"
        self.nodes: list[psutil.Popen] = []
        try:
            self._begin(port)
        except BaseException:
            self.stop()
            raise

    def _begin(self, port: int) -> None:
        head = [f"--port={port}", f"--ray-client-server-port={port + 1}", f"--temp-dir={self.folder}"]
        self.start("--head", "--include-dashboard=false", *head)
        self.start(f"--address={self.address}", "--node-ip-address=127.0.0.2")

    def start(self, *options: str) -> None:
        few = ["--num-cpus=1", "--object-store-memory=100000000"]
        command = [*RAY, "start", "--block", *few, *options]
        with Path(self.folder, f"node{len(self.nodes)}.log").open("w") as log:
            environment = {**os.environ, **SETTINGS}
            self.nodes.append(psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        for _ in until("a node is up", seconds=90):
            if any("raylet" in process.name() for process in self.processes(-1)):
                break

    def processes(self, node: int) -> list[psutil.Process]:
        try:
            return [self.nodes[node], *self.nodes[node].children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def kill(self, node: int) -> None:
        """The raylet, its workers, everything: as when the power fails."""
        processes = self.processes(node)
        for act in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    act(process if process is not self.nodes[node] else psutil.Process(process.pid))
        psutil.wait_procs(processes, timeout=20)
        self.nodes[node].wait()

    def stop(self) -> None:
        for node in range(len(self.nodes)):
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)


def until(what: str, seconds: float = 120) -> Iterator[None]:
    deadline = time.monotonic() + seconds
    while True:
        yield
        assert time.monotonic() < deadline, f"waited too long until {what}"
        time.sleep(0.05)


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(port=21_000 + os.getpid() % 10_000)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_alone(SPEC, tmp_path_factory.mktemp("alone") / "run")


def trained_alone(spec: dict[str, Any], folder: Path) -> Path:
    """The run without a cluster, with one thread, as each task of the cluster has it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train(parse_training_spec(spec), folder)
    torch.set_num_threads(threads)
    return folder


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """`flipguard train` on the spec, begun."""
    (tmp_path / "spec.yaml").write_text(as_yaml(SPEC))
    begun: list[subprocess.Popen[str]] = []

    def begin(*more: str) -> "subprocess.Popen[str]":
        start = [sys.executable, "-m", "flipguard", "train", "spec.yaml", *more]
        pipe = subprocess.PIPE
        environment = {**os.environ, **SETTINGS}
        # A shell's background job ignores Ctrl-C, and so would whatever it starts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            begun.append(subprocess.Popen(start, cwd=tmp_path, env=environment, text=True, stdout=pipe, stderr=pipe))
        finally:
            signal.signal(signal.SIGINT, before)
        return begun[-1]

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(path)[0]


def assert_same_networks(one: Path, other: Path) -> None:
    """Every member and every version, to the bit."""
    names = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert len(names) == 4
    assert sorted(path.relative_to(other) for path in other.rglob("*.safetensors")) == names
    for name in names:
        a, b = weights(one / name), weights(other / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a), name


def steps(folder: Path) -> dict[str, tuple[int, int]]:
    """How far each member that is not done has come."""
    found = {}
    for state in folder.glob(f"members/*/{STATE}"):
        try:
            facts = load_checkpoint(state)[1]
        except (FileNotFoundError, DamagedFile, ValueError):
            continue
        found[state.parent.name] = (facts["epoch"], facts["step"])
    return found


def test_a_node_that_is_killed_in_the_middle_of_a_member(
    cluster: Cluster, command: Callable[..., "subprocess.Popen[str]"], alone: Path, tmp_path: Path
) -> None:
    run = command("--on", cluster.address, "--out", "run")
    before: dict[str, tuple[int, int]] = {}
    for _ in until("both members are well begun"):
        before = steps(tmp_path / "run")
        assert run.poll() is None, run.communicate()
        if len(before) == 2 and min(before.values()) >= (2, 0):
            break
    assert not list(tmp_path.rglob(MEMBER))
    cluster.kill(1)
    chain = 0
    while run.poll() is None:
        for name, place in steps(tmp_path / "run").items():
            assert place >= before[name], "a member began anew"
            before[name] = place
        if not chain and (tmp_path / "run/versions/v1" / STATE).exists():
            chain = kill_worker(cluster, "run ")
        time.sleep(0.1)
    out, errors = run.communicate()
    assert run.returncode == 0, (out, errors)
    assert len(re.findall(r"note: member [0-9a-f]{12}: its (worker|machine) .* it goes on elsewhere", out)) == 1
    # And the worker that trained the version itself was killed too.
    assert chain == 1
    assert len(re.findall(r"note: the run .*: its worker died; it goes on elsewhere", out)) == 1
    assert "v1: 2 of 2 members" in out
    assert "v1: epoch 40 of 40" in out
    # Nothing of Ray's own in between.
    assert "raylet" not in out + errors
    assert_same_networks(alone, tmp_path / "run")


def kill_worker(cluster: Cluster, task: str, node: int = 0) -> int:
    """The workers of a node that are at a task; Ray calls a process by what it does."""
    found = [process for process, line in living(cluster, node) if line.startswith(f"ray::{task}")]
    for process in found:
        process.kill()
    return len(found)


@pytest.fixture(params=["file", "s3"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """Where artifacts are kept, and the folder in which they lie: on this disk, or behind a real S3 server."""
    if request.param == "file":
        return f"file://{tmp_path}/kept", tmp_path / "kept"
    store = request.getfixturevalue("object_store")
    return store.url, store.folder


def test_a_driver_that_dies_and_machines_that_share_no_disk(
    kept: tuple[str, Path],
    cluster: Cluster,
    command: Callable[..., "subprocess.Popen[str]"],
    alone: Path,
    tmp_path: Path,
) -> None:
    storage, folder = kept
    arguments = (f"artifacts={storage}", "seed=[0]", "--on", cluster.address, "--out", "run")
    run = command(*arguments)
    for _ in until("both members are kept in the middle"):
        assert run.poll() is None, run.communicate()
        homes = [f"{storage}/members/{home.name}" for home in (folder / "members").glob("*")]
        states = [home for home in homes if STATE in Storage(home).index()[1]]
        if len(states) == 2:
            break
    run.kill()
    run.communicate()
    for _ in until("the workers have followed their driver"):
        if not any("_do" in line for node in (0, 1) for _, line in living(cluster, node)):
            break
    assert not list((tmp_path / "run").rglob("*.safetensors"))
    again = command(*arguments)
    out, errors = again.communicate(timeout=300)
    assert again.returncode == 0, (out, errors)
    assert_same_networks(alone, tmp_path / "run" / "seed_0")
    # What is finished is found, and needs no cluster.
    cluster.stop()
    found = command(*arguments)
    out, errors = found.communicate(timeout=300)
    assert found.returncode == 0, (out, errors)
    assert out.startswith("finished: run")


def test_a_client_from_outside_of_the_cluster(
    cluster: Cluster, command: Callable[..., "subprocess.Popen[str]"], alone: Path, tmp_path: Path
) -> None:
    """`--on ray://…`: the command is no part of the cluster, and a worker that dies is replaced all the same."""
    run = command("--on", cluster.client, "--out", "run")
    for _ in until("both members are begun"):
        assert run.poll() is None, run.communicate()
        if len(steps(tmp_path / "run")) == 2:
            break
    # The command itself holds no port of the cluster but the client's.
    ports = {one.raddr.port for one in psutil.Process(run.pid).net_connections() if one.raddr}
    assert ports == {int(cluster.client.rpartition(":")[2])}
    killed = sum(kill_worker(cluster, f"{tmp_path}/run/members", node) for node in (0, 1))
    out, errors = run.communicate(timeout=300)
    assert run.returncode == 0, (out, errors)
    assert len(re.findall(r"note: member [0-9a-f]{12}: its worker died; it goes on elsewhere", out)) == killed == 2
    assert "v1: 2 of 2 members" in out
    assert "v1: epoch 40 of 40" in out
    assert_same_networks(alone, tmp_path / "run")
    # A client that leaves is not missed: the same command finds the run.
    found = command("--on", cluster.client, "--out", "run")
    out, errors = found.communicate(timeout=120)
    assert found.returncode == 0, (out, errors)
    assert out.startswith("finished: run")


def living(cluster: Cluster, node: int) -> list[tuple[psutil.Process, str]]:
    """Each with its command line, which is asked for once: a moment later it may be gone."""
    found = []
    for process in cluster.processes(node):
        try:
            if process.is_running() and (line := process.cmdline()):
                found.append((process, " ".join(line)))
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def test_ctrl_c_saves_where_every_member_is(
    cluster: Cluster, command: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    """States are saved after each epoch, and here at no step within one: such a state comes from the signal.

    Members are long, so that none is done by the time that a busy machine brings them the signal.
    """
    long = copy.deepcopy(SPEC)
    long["versions"][1]["method"]["ensemble"]["train"]["epochs"] = 2000
    (tmp_path / "spec.yaml").write_text(as_yaml(long))
    arguments = ("train.checkpoint_every=1000000", "--on", cluster.address, "--out", "run")
    run = command(*arguments)
    for _ in until("both members are begun"):
        assert run.poll() is None, run.communicate()
        if len(steps(tmp_path / "run")) == 2:
            break
    run.send_signal(signal.SIGINT)
    out, errors = run.communicate(timeout=300)
    assert run.returncode == 130, (out, errors)
    assert "interrupted. The same command goes on from what run holds." in errors
    at = steps(tmp_path / "run")
    assert len(at) == 2
    assert any(step for _, step in at.values()), at
    again = command(*arguments)
    out, errors = again.communicate(timeout=300)
    assert again.returncode == 0, (out, errors)
    assert_same_networks(trained_alone(long, tmp_path / "alone"), tmp_path / "run")


BENCH: dict[str, Any] = {
    "title": "A small bench",
    "data": {"name": "digits", "test_size": 0.5, "per_class": 11},
    "old": {"name": "mlp", "hidden": [5]},
    "new": {"name": "mlp", "hidden": [7]},
    # More of a machine than there is at first, and one thread all the same.
    "train": {"epochs": 400, "batch_size": 19, "checkpoint_every": 7, "resources": {"cpus": 1.5}},
    "seeds": [3],
    "networks": {"single": {}, "kd": {"method": "kd", "references": {"old": "single.0"}}},
    "rows": {"kd": {"old": "single", "new": "kd"}},
}


def test_a_bench_waits_for_a_machine_and_outlives_a_worker(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "bench.yaml").write_text(as_yaml(BENCH))
    start = [sys.executable, "-m", "flipguard", "bench", "bench.yaml", "--on", cluster.address, "--out", "run"]
    environment, said = {**os.environ, **SETTINGS}, tmp_path / "said"
    with said.open("w") as log:
        run = subprocess.Popen(start, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        waits = "waits for a machine with 1.5 CPUs and 0 GPUs, which the cluster has not now.\n"
        for _ in until("it says for what it waits"):
            assert run.poll() is None, said.read_text()
            if f"note: old single, seed 3: {waits}" in said.read_text():
                break
        cluster.start(f"--address={cluster.address}", "--node-ip-address=127.0.0.3", "--num-cpus=2")
        for _ in until("a network is begun"):
            assert run.poll() is None, said.read_text()
            if list((tmp_path / "run/networks").glob(f"*/{STATE}")):
                break
        home = next((tmp_path / "run/networks").glob(f"*/{STATE}")).parent.name
        killed = kill_worker(cluster, home.rpartition("-")[2], node=2)
        run.wait(timeout=300)
    finally:
        run.kill()
        run.wait()
    out = said.read_text()
    assert run.returncode == 0, out
    assert killed == 1
    assert "note: old single, seed 3: its worker died; it goes on elsewhere from its last state.\n" in out
    assert "2 of 2  new kd, seed 3" in out
    here = [*start[:5], "--device", "cpu", "--processes", "1", "--out", "alone"]
    subprocess.run(here, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=300)
    names = sorted(path.relative_to(tmp_path / "alone") for path in tmp_path.glob("alone/networks/*/*.safetensors"))
    assert len(names) == 2
    for name in names:
        one, other = weights(tmp_path / "alone" / name), weights(tmp_path / "run" / name)
        assert all(torch.equal(one[key], other[key]) for key in one), name


def test_a_bench_of_machines_that_share_no_disk(cluster: Cluster, tmp_path: Path) -> None:
    """Each network is kept at an address; the second fetches from there what it learns from."""
    train = {**BENCH["train"], "epochs": 20, "resources": {"cpus": 1.0}}
    (tmp_path / "bench.yaml").write_text(as_yaml({**BENCH, "train": train}))
    start = [sys.executable, "-m", "flipguard", "bench", "bench.yaml"]
    kept = f"file://{tmp_path / 'kept'}"
    for options in (
        ["--on", cluster.address, "--networks", kept, "--out", "run"],
        ["--device", "cpu", "--processes", "1", "--out", "alone"],
    ):
        environment = {**os.environ, **SETTINGS}
        command = [*start, *options]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr.decode()
    assert {path.name.partition(".")[0] for path in (tmp_path / "kept").iterdir()} == {"single", "kd"}
    names = sorted(path.relative_to(tmp_path / "alone") for path in tmp_path.glob("alone/networks/*/*.safetensors"))
    assert len(names) == 2
    for name in names:
        one, other = weights(tmp_path / "alone" / name), weights(tmp_path / "run" / name)
        assert all(torch.equal(one[key], other[key]) for key in one), name


POOL = """
import os, signal, sys
from pathlib import Path
from flipguard.integrations import ray as room
from flipguard.training.pool import Piece, Resources
from flipguard.types import FlipguardError, InputError

room.LIVES = 3

def refuse(shared, *, say):
    raise InputError(f"{shared['what']} is no good.")

def crash(shared, *, say):
    raise ZeroDivisionError("seven")

def die(shared, *, say):
    os.kill(os.getpid(), signal.SIGKILL)

def die_once(shared, path, *, say):
    say("begun")
    if not Path(path).exists():
        Path(path).touch()
        die(shared, say=say)
    return shared["what"]

if __name__ == "__main__":
    from ray import cloudpickle
    cloudpickle.register_pickle_by_value(sys.modules["__main__"])
    pool, shared = room.connected("ray"), {"what": "it"}
    def hear(event):
        print(event.kind, event.key, event.value, flush=True)
    pool.run([Piece("once", die_once, (sys.argv[1],), shared), Piece("then", die_once, (sys.argv[1],), shared,
        after=frozenset({"once"}))], hear)
    for call in (refuse, crash, die):
        try:
            pool.run([Piece(call.__name__, call, (), shared, Resources(0.5))], hear)
        except FlipguardError as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    try:
        room.RayPool().run([Piece("huge", refuse, (), shared, Resources(1000, 7))], lambda event: sys.exit(hear(event)))
    except SystemExit:
        pass
    for address in ("127.0.0.1:1", "somewhere"):
        try:
            room.connected(address)
        except InputError as error:
            print(error)
"""


def test_what_happens_to_pieces(tmp_path: Path) -> None:
    """On a cluster that is started here: errors come back as themselves, deaths are counted, needs are told."""
    (tmp_path / "pieces.py").write_text(POOL)
    command = [sys.executable, "pieces.py", str(tmp_path / "died")]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **SETTINGS}, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    goes_on = "its worker died; it goes on elsewhere from its last state."
    assert f"lost once {goes_on}" in lines
    assert lines[lines.index(f"lost once {goes_on}") + 1 :][:4] == [
        "said once begun",
        "done once it",
        "said then begun",
        "done then it",
    ]
    assert "InputError: it is no good." in lines
    assert "TrainingError: a worker failed: ZeroDivisionError: seven." in lines
    assert lines.count(f"lost die {goes_on}") == 2
    assert any(line.startswith("TrainingError: 3 workers died over die: its worker died.") for line in lines)
    assert "waits huge waits for a machine with 1000 CPUs and 7 GPUs, which the cluster has not now." in lines
    assert lines[-2] == "--on 127.0.0.1:1: the cluster cannot be reached: Connection refused."
    assert lines[-1] == "--on somewhere: give ray, or the address of a cluster as HOST:PORT or ray://HOST:PORT."
