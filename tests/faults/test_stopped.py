"""A chain that is killed, interrupted, hung up on: it goes on to the bits of one that nothing happened to."""

import json
import os
import pty
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from chain import flipguard, same_run, start, write_chain

from flipguard.checkpoints import load_checkpoint

pytestmark = pytest.mark.slow


def wait_for(process: object, words: str) -> None:
    """Until the process says so."""
    out = process.stdout  # type: ignore[attr-defined]
    while words not in (line := out.readline()):
        assert line, "it ended before"


def test_killed_at_random_moments(whole: Path, tmp_path: Path) -> None:
    write_chain(tmp_path)
    chance, ends = random.Random(29), []
    for words in ("a: epoch", "b: 1 of 2", "c: epoch"):
        process = start(tmp_path, "train", "chain.yaml", "--out", "run")
        # On a machine that did not let this test run for a while, the one before was over before it was killed.
        if 0 not in ends:
            wait_for(process, words)
            time.sleep(chance.uniform(0.0, 0.05))
            process.kill()
        process.communicate()
        ends.append(process.returncode)
    assert ends[0] == -signal.SIGKILL
    done = flipguard(tmp_path, "train", "chain.yaml", "--out", "run")
    assert done.returncode == 0, done.stderr
    assert same_run(whole, tmp_path / "run") is None
    assert not list((tmp_path / "run").rglob(".*.part"))
    assert not list((tmp_path / "run").rglob("state.safetensors"))


def test_a_signal_stops_between_two_steps_and_saves_there(tmp_path: Path) -> None:
    """Epochs of a thousand steps, and no state in between: what is saved there was saved because of the signal."""
    write_chain(tmp_path)
    changes = ["train.checkpoint_every=9999", "train.batch_size=1", "train.epochs=29", "data.per_class=null"]
    steps = []
    for number, said in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "told to end")):
        process = start(tmp_path, "train", "chain.yaml", *changes, "data.test_size=0.3", "--out", "long")
        wait_for(process, "a: epoch")
        time.sleep(0.15)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=300)
        assert process.returncode == 128 + number
        assert complaint == f"flipguard: {said}. The same command goes on from what long holds.\n"
        facts = load_checkpoint(tmp_path / "long/versions/a/state.safetensors")[1]
        steps.append(facts["step"])
        assert json.loads((tmp_path / "long/run.json").read_text())["status"] == "stopped"
    # One of them may have come between two epochs.
    assert max(steps) > 0


def test_members_side_by_side_save_where_they_are_when_their_parent_is_told_to(tmp_path: Path) -> None:
    """The signal goes to the parent alone; the members would train for hours."""
    write_chain(tmp_path)
    ensemble = "versions.b.method.ensemble.train"
    changes = [f"{ensemble}.epochs=100000", f"{ensemble}.batch_size=1", "versions.b.train.processes=2"]
    changes += ["data.per_class=null", "data.test_size=0.3", "train.checkpoint_every=100000"]
    process = start(tmp_path, "train", "chain.yaml", *changes, "--out", "run")
    wait_for(process, "b: 0 of 2")
    members = tmp_path / "run/members"
    while len(list(members.glob("*/state.safetensors"))) < 2:
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=300)
    assert process.returncode == 130
    assert complaint == "flipguard: interrupted. The same command goes on from what run holds.\n"
    after = [load_checkpoint(path)[1] for path in sorted(members.glob("*/state.safetensors"))]
    # One of them may have been between two epochs.
    assert any(now["step"] > 0 for now in after)


def hung_up_on(folder: Path, epochs: int) -> int:
    """How a run ends whose terminal is closed as soon as it shows an epoch."""
    child, leader = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["OMP_NUM_THREADS"] = "1"
        command = ["train", "chain.yaml", f"train.epochs={epochs}", "--out", f"run{epochs}"]
        os.execv(sys.executable, [sys.executable, "-m", "flipguard", *command])
    seen = b""
    with suppress(OSError):  # EIO: it is over already
        while f"/{epochs}".encode() not in seen:
            seen += os.read(leader, 4096)
    os.close(leader)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_closed_terminal(tmp_path: Path) -> None:
    """A real terminal, whose window is closed in the middle of an epoch: the process is hung up on and cannot speak.

    The display is drawn four times a second: where a chain was over before this test got to close its terminal, a
    longer one is taken.
    """
    write_chain(tmp_path)
    lengths = iter((41, 164, 656))
    while (ended := hung_up_on(tmp_path, epochs := next(lengths))) == 0:
        pass
    assert ended == 129
    assert json.loads((tmp_path / f"run{epochs}/run.json").read_text())["status"] == "stopped"
    for name in (f"run{epochs}", "untouched"):
        done = flipguard(tmp_path, "train", "chain.yaml", f"train.epochs={epochs}", "--out", name)
        assert done.returncode == 0, done.stderr
    assert same_run(tmp_path / "untouched", tmp_path / f"run{epochs}") is None


def test_what_the_shell_ignores_stays_ignored(tmp_path: Path) -> None:
    """As under nohup."""
    write_chain(tmp_path)
    process = start(
        tmp_path,
        "train",
        "chain.yaml",
        "--out",
        "run",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    wait_for(process, "a: epoch 2")
    process.send_signal(signal.SIGHUP)
    _, complaint = process.communicate(timeout=300)
    assert (process.returncode, complaint) == (0, "")


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    """The second says who holds it; when the first is killed, nothing is left to be cleared away by hand."""
    write_chain(tmp_path)
    first = start(tmp_path, "train", "chain.yaml", "train.epochs=5000", "--out", "run")
    wait_for(first, "a: epoch")
    second = flipguard(tmp_path, "train", "chain.yaml", "train.epochs=5000", "--out", "run")
    assert second.returncode == 2
    assert f"run is in use by process {first.pid} on " in second.stderr
    assert second.stderr.count("\n") == 1
    first.kill()
    first.communicate()
    third = start(tmp_path, "train", "chain.yaml", "train.epochs=5000", "--out", "run")
    wait_for(third, "a: epoch")
    third.send_signal(signal.SIGINT)
    third.communicate(timeout=300)
    assert third.returncode == 130
