"""A chain that is killed or told to end: it goes on to the bits of one that nothing happened to."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
from chain import in_this_process, same_run, start, write_chain
from scenarios import wait_for

from flipguard.checkpoints import load_checkpoint

pytestmark = pytest.mark.slow


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
    done = in_this_process(tmp_path, "train", "chain.yaml", "--out", "run")
    assert done.exit_code == 0, done.stderr
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
