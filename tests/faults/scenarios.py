"""What happens to people, each as a function that brings it about and asserts that nothing was lost.

The tests run each once, `benchmarks/faults.py` several times. `whole` is the run folder of the same chain that nothing
happened to; `chance` says when it happens, where that is left to chance.
"""

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from chain import CHAIN, flip_bit, flipguard, in_this_process, same_run, start, write_chain

from flipguard.checkpoints import load_checkpoint
from flipguard.releases.yaml_text import as_yaml

TRAIN = ("train", "chain.yaml", "--out", "run")


class NotAllowed(Exception):
    """This machine does not let us bring the fault about."""


def wait_for(process: "subprocess.Popen[str]", words: str) -> None:
    """Until the process says so."""
    assert process.stdout is not None
    while words not in (line := process.stdout.readline()):
        assert line, "it ended before"


def goes_on(folder: Path, whole: Path, run: str = "run") -> None:
    """The same command again ends with what the unbroken run has."""
    done = in_this_process(folder, "train", "chain.yaml", "--out", run)
    assert done.exit_code == 0, done.stderr
    differs = same_run(whole, folder / run)
    assert differs is None, differs
    assert not list((folder / run).rglob(".*.part"))


def in_a_namespace(folder: Path, script: str) -> list[str]:
    """What a shell says that may mount what it likes, for itself alone.

    So root, whom no file mode keeps out, is refused too, and nothing is left to unmount.
    """
    alone = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        raise NotAllowed("a mount namespace of one's own is not allowed here")
    done = subprocess.run([*alone, "sh", "-c", script], capture_output=True, text=True, cwd=folder, check=False)
    return done.stdout.splitlines()


_ON_DISK = f"OMP_NUM_THREADS=1 {sys.executable} -m flipguard train chain.yaml --out disk/run"


def full_disk(folder: Path, whole: Path, chance: random.Random) -> None:
    """A small tmpfs fills in the middle of the chain; with room again, the same command goes on."""
    write_chain(folder)
    (folder / "disk").mkdir()
    said = in_a_namespace(
        folder,
        f"""mount -t tmpfs -o size=260k tmpfs disk
            {_ON_DISK} 2>&1 >/dev/null; echo $?
            find disk -name '.*.part' | wc -l
            ls disk/run/versions/a/model.json
            mount -o remount,size=9m disk
            {_ON_DISK} >/dev/null 2>&1; echo $?
            cp -r disk/run kept""",
    )
    assert len(said) == 5, said
    assert said[0].startswith("flipguard: ")
    assert said[0].endswith("cannot be written: No space left on device.")
    assert said[1:] == ["2", "0", "disk/run/versions/a/model.json", "0"]
    assert same_run(whole, folder / "kept") is None


def read_only_folder(folder: Path, whole: Path, chance: random.Random) -> None:
    """A run that had not ended, on a mount that cannot be written; once it can, the same command goes on."""
    write_chain(folder)
    shutil.copytree(whole, folder / "disk" / "run")
    (folder / "disk/run/versions/c/model.json").unlink()
    said = in_a_namespace(
        folder,
        f"""mount --bind disk disk && mount -o remount,ro,bind disk
            {_ON_DISK} 2>&1 >/dev/null; echo $?""",
    )
    assert said == ["flipguard: the run folder disk/run cannot be written: Read-only file system.", "2"]
    goes_on(folder, whole, "disk/run")


def two_processes(folder: Path, whole: Path, chance: random.Random) -> None:
    """The second says who holds the folder; when the first is killed, nothing is left to be cleared away by hand."""
    write_chain(folder)
    # Stopped, so that it holds the folder for as long as the second needs to find out.
    first = start(folder, *TRAIN)
    wait_for(first, "a: epoch")
    first.send_signal(signal.SIGSTOP)
    try:
        second = flipguard(folder, *TRAIN)
        assert second.returncode == 2
        assert f"run is in use by process {first.pid} on " in second.stderr
        assert second.stderr.count("\n") == 1
    finally:
        first.kill()
        first.communicate()
    goes_on(folder, whole)


def closed_terminal(folder: Path, whole: Path, chance: random.Random) -> None:
    """A real terminal, whose window is closed in the middle of an epoch: the process is hung up on and cannot speak.

    The display is drawn four times a second: where a chain was over before its terminal could be closed, a longer one
    is taken. So it has an unbroken run of its own.
    """
    write_chain(folder)
    lengths = iter((41, 164, 656))
    while (ended := _hung_up_on(folder, epochs := next(lengths))) == 0:
        pass
    assert ended == 129
    assert _status(folder / f"run{epochs}") == "stopped"
    for name in (f"run{epochs}", "untouched"):
        done = in_this_process(folder, "train", "chain.yaml", f"train.epochs={epochs}", "--out", name)
        assert done.exit_code == 0, done.stderr
    assert same_run(folder / "untouched", folder / f"run{epochs}") is None


def _hung_up_on(folder: Path, epochs: int) -> int:
    """How a run ends whose terminal is closed as soon as it shows an epoch."""
    child, leader = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["OMP_NUM_THREADS"] = "1"
        # Under nohup it would be ignored, which is inherited and respected.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        command = ["train", "chain.yaml", f"train.epochs={epochs}", "--out", f"run{epochs}"]
        os.execv(sys.executable, [sys.executable, "-m", "flipguard", *command])
    seen = b""
    with suppress(OSError):  # EIO: it is over already
        while f"/{epochs}".encode() not in seen:
            seen += os.read(leader, 4096)
    os.close(leader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def interrupted(folder: Path, whole: Path, chance: random.Random) -> None:
    """Ctrl-C at some moment: exit 130, one line, checkpoints that are whole, and the same command goes on."""
    write_chain(folder)
    ended = 0
    while ended == 0:  # it was over before the signal came
        shutil.rmtree(folder / "run", ignore_errors=True)
        process = start(folder, *TRAIN)
        wait_for(process, chance.choice(("a: epoch", "b: 1 of 2", "b: epoch", "c: epoch")))
        time.sleep(chance.uniform(0.0, 0.1))
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=300)
        ended = process.returncode
    assert ended == 130
    assert complaint == "flipguard: interrupted. The same command goes on from what run holds.\n"
    assert _status(folder / "run") == "stopped"
    for path in (folder / "run").rglob("*.safetensors"):
        load_checkpoint(path)
    goes_on(folder, whole)


HUNGRY = """
import torch
from torch import nn


class Hungry(nn.Module):
    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        self.layer, self.seed = nn.Linear(64, classes), seed

    def forward(self, x):
        if self.training and torch.is_grad_enabled() and self.seed == {seed}:
            torch.empty(2**50)
        return self.layer(x.flatten(1))


def build(classes: int) -> nn.Module:
    return Hungry(classes, torch.initial_seed())
"""


def out_of_memory(folder: Path, whole: Path, chance: random.Random, *, processes: int = 1) -> None:
    """In the third member the allocator itself refuses. The message names the knobs; members that were done stay."""
    ensemble = {"name": "elodi", "ensemble": {"members": 3}}
    versions = [{"name": "a", "model": {"name": "hungry:build"}, "method": ensemble, "seed": 40}]
    (folder / "chain.yaml").write_text(as_yaml({**CHAIN, "versions": versions}))
    (folder / "hungry.py").write_text(HUNGRY.format(seed=43))
    train = (*TRAIN, "--trust", f"train.processes={processes}")
    refused = flipguard(folder, *train)
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "flipguard: out of memory at epoch 0, step 0 with batches of 31: set accumulate above"
    )
    assert refused.stderr.count("\n") == 1
    kept = {path: path.stat().st_mtime_ns for path in (folder / "run/members").glob("*/member.safetensors")}
    assert len(kept) == 2 if processes == 1 else len(kept) >= 1
    assert _status(folder / "run") == "stopped"
    (folder / "hungry.py").write_text(HUNGRY.format(seed=-1))
    done = flipguard(folder, *train)
    assert done.returncode == 0, done.stderr
    assert f"a: {len(kept)} of 3 members" in done.stdout
    assert all(path.stat().st_mtime_ns == then for path, then in kept.items())
    with_room = flipguard(folder, "train", "chain.yaml", "--out", "untouched", *train[4:])
    assert with_room.returncode == 0, with_room.stderr
    assert same_run(folder / "untouched", folder / "run") is None


TEN_YEARS = 10 * 365 * 86_400
SHIFTED = """
    import os, time

    shift = int(os.environ["CLOCK_SHIFT"])
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + shift
    time.time_ns = lambda: nanoseconds() + shift * 10**9
"""


def clock_set_back(folder: Path, whole: Path, chance: random.Random) -> None:
    """A run is killed twice, and each time goes on in a process whose clock is ten years behind the one before.

    Simulated: what `time.time` says in the first two processes and their children, as the machine's own clock is not
    ours to set, and the times of the files, many of which lie in the future of the process that goes on.
    """
    write_chain(folder)
    (folder / "clock").mkdir()
    (folder / "clock" / "sitecustomize.py").write_text(textwrap.dedent(SHIFTED))
    for shift, words in ((2 * TEN_YEARS, "a: epoch"), (TEN_YEARS, "b: epoch")):
        process = start(folder, *TRAIN, env=_clock(folder, shift))
        wait_for(process, words)
        time.sleep(chance.uniform(0.0, 0.05))
        process.kill()
        process.communicate()
        for path in (folder / "run").rglob("*"):
            # Within ten years in no order: nothing is decided by when a file was written.
            then = time.time() + shift + chance.randrange(-TEN_YEARS, TEN_YEARS)
            os.utime(path, (then, then))
    goes_on(folder, whole)
    assert json.loads((folder / "run/run.json").read_text())["seconds"] >= 0


def _clock(folder: Path, shift: int) -> dict[str, str]:
    """The environment of a process whose clock is shifted."""
    paths = os.pathsep.join(filter(None, (str(folder / "clock"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths, "CLOCK_SHIFT": str(shift)}


def flipped_bit(folder: Path, whole: Path, chance: random.Random, *, pattern: str) -> None:
    """Anywhere in a file of this kind: it is named by its checksum, and `--repair` brings the same bits back."""
    write_chain(folder)
    run = Path(shutil.copytree(whole, folder / "run"))
    path = chance.choice(sorted(run.glob(pattern)))
    flip_bit(path, chance.randrange(path.stat().st_size))
    mended = flipguard(folder, *TRAIN, "--repair")
    assert mended.returncode == 0, mended.stderr
    assert f"{path.name} was damaged, and is made again" in " ".join(f"{mended.stdout}{mended.stderr}".split())
    differs = same_run(whole, run)
    assert differs is None, differs


def _status(run: Path) -> object:
    return json.loads((run / "run.json").read_text())["status"]


SCENARIOS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "full disk": full_disk,
    "read-only folder": read_only_folder,
    "two processes in one folder": two_processes,
    "closed terminal (SIGHUP)": closed_terminal,
    "Ctrl-C": interrupted,
    "out of memory in the third member": out_of_memory,
    "clock set back": clock_set_back,
    "flipped bit in weights": partial(flipped_bit, pattern="versions/*/model.safetensors"),
    "flipped bit in predictions": partial(flipped_bit, pattern="versions/*/predictions/*.parquet"),
    "flipped bit in a member": partial(flipped_bit, pattern="members/*/member.safetensors"),
}
