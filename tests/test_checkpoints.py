"""Checkpoints: whole or not there, readable by anyone, one clear line when they are not what was expected."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

from flipguard.checkpoints import load_checkpoint, load_start, load_weights, save_checkpoint
from flipguard.files import EMPTY_SEAL
from flipguard.models import split
from flipguard.types import DamagedFile, InputError

torch.set_num_threads(1)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    return text


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.safetensors"
    tensors = {
        "half": torch.randn(3, 5).to(torch.bfloat16),
        "double": torch.randn(7, dtype=torch.float64),
        "bytes": torch.get_rng_state(),
        "turned": torch.randn(3, 5).T,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
    }
    save_checkpoint(path, tensors, {"epoch": 3, "name": "größer", "nested": {"k": [1, None]}})
    found, facts = load_checkpoint(path)
    assert facts == {"format": 1, "epoch": 3, "name": "größer", "nested": {"k": [1, None]}}
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert [entry.name for entry in path.parent.iterdir()] == ["run.safetensors"]


def test_shared_weights(tmp_path: Path) -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    both = nn.Sequential(first, second)
    save_checkpoint(tmp_path / "tied.safetensors", both.state_dict(), {})
    found, _ = load_checkpoint(tmp_path / "tied.safetensors")
    assert torch.equal(found["0.weight"], found["1.weight"])
    load_weights(both, found, "tied")


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        load_checkpoint(tmp_path / "nowhere.safetensors")
    assert one_line(error.value) == f"the checkpoint {tmp_path / 'nowhere.safetensors'} does not exist."


@pytest.mark.parametrize("damage", ["truncated", "header", "empty", "text", "pickle"])
def test_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "run.safetensors"
    save_checkpoint(path, {"weight": torch.randn(101)}, {})
    whole = path.read_bytes()
    if damage == "pickle":
        torch.save({"weight": torch.randn(101)}, path)
    else:
        changed = {
            "truncated": whole[:-7],
            "header": b"\xff" * 8 + whole[8:],
            "empty": b"",
            "text": b"epoch,loss\n" * 9,
        }
        path.write_bytes(changed[damage])
    with pytest.raises(InputError, match=r"no readable safetensors file|is damaged: its content does not fit") as error:
        load_checkpoint(path)
    assert str(path) in one_line(error.value)


def test_every_flipped_bit_is_found_and_the_file_named(tmp_path: Path) -> None:
    """A bit of every byte; only in the text of the seal itself may one be overlooked, and then nothing is lost."""
    path = tmp_path / "run.safetensors"
    weight = torch.randn(7)
    save_checkpoint(path, {"weight": weight}, {"epoch": 3})
    whole = path.read_bytes()
    text = range((start := whole.index(b"sha256:")), start + len(EMPTY_SEAL))
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        if place in text:
            with suppress(DamagedFile):
                tensors, facts = load_checkpoint(path)
                assert torch.equal(tensors["weight"], weight)
                assert facts["epoch"] == 3
            continue
        with pytest.raises(DamagedFile) as caught:
            load_checkpoint(path)
        assert caught.value.path == path
        assert str(path) in one_line(caught.value)


def test_the_same_tensors_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_checkpoint(tmp_path / name, {"weight": torch.ones(7), "bias": torch.zeros(3)}, {"epoch": 3})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Linear(3, 7), r"weight is of shape \(7, 3\) there and of shape \(5, 3\) here"),
        (nn.Linear(3, 5, bias=False), r"bias is missing there and of shape \(5,\) here"),
        (nn.Bilinear(3, 3, 5), "weight is of shape"),
        (nn.Sequential(nn.Linear(3, 5)), "weight is missing there"),
    ],
)
def test_another_network(other: nn.Module, message: str) -> None:
    network = nn.Linear(3, 5)
    before = network.weight.clone()
    with pytest.raises(InputError, match=f"run.safetensors holds another network: {message}") as error:
        load_weights(network, other.state_dict(), "run.safetensors")
    one_line(error.value)
    assert torch.equal(network.weight, before)


SAVER = """
import sys, torch
from flipguard.checkpoints import save_checkpoint
number = int(sys.argv[2])
print("ready", flush=True)
while True:
    number += 1
    save_checkpoint(sys.argv[1], {str(i): torch.full((250_000,), float(number)) for i in range(8)}, {"number": number})
"""


def whole(path: Path, last: int) -> int:
    """The number of the save that is there now, no earlier than the last that was seen."""
    tensors, facts = load_checkpoint(path)
    assert len(tensors) == 8
    assert all(bool((tensor == facts["number"]).all()) for tensor in tensors.values())
    assert facts["number"] >= last
    return int(facts["number"])


def test_killed_while_saving(tmp_path: Path) -> None:
    """Eight megabytes are written over and over: a reader sees whole files all the while, and after a kill."""
    path, chance, last = tmp_path / "run.safetensors", random.Random(3), 0
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(path), str(last)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        while not path.exists():
            time.sleep(0.01)
        until, first = time.monotonic() + chance.uniform(0.2, 0.5), whole(path, last)
        try:
            # However slow the machine, at least one save has taken another's place.
            while time.monotonic() < until or last <= first:
                last = whole(path, last)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        last = whole(path, last)
    assert last > 3
    # What a killed save leaves behind is overwritten by the next one.
    save_checkpoint(path, {"weight": torch.zeros(3)}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]


LIMITED = """
import resource, sys, torch
from flipguard.checkpoints import load_checkpoint, save_checkpoint
from flipguard.types import DamagedFile, InputError
path = sys.argv[1]
save_checkpoint(path, {"weight": torch.ones(1000)}, {})
if len(sys.argv) == 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    save_checkpoint(path, {"weight": torch.zeros(1_000_000)}, {})
except InputError as error:
    print(error)
else:
    print("written")
assert load_checkpoint(path)[0]["weight"].sum() == 1000
"""


def run_limited(path: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_file_size_limit(tmp_path: Path) -> None:
    said = run_limited(tmp_path / "run.safetensors")
    assert said.startswith(f"the checkpoint {tmp_path / 'run.safetensors'} cannot be written: ")
    assert said.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]


def test_full_disk(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a small disk")
    try:
        said = run_limited(tmp_path / "run.safetensors", "no limit")
        assert "cannot be written" in said
        assert "No space left on device" in said
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("head", ["fc", "head"])
def test_somebody_elses_checkpoint_by_their_own_names(head: str, tmp_path: Path) -> None:
    """Their code saved it, with a head in the middle of the names; ours has body and head apart."""

    def theirs(classes: int = 7) -> nn.Module:
        return nn.Sequential(OrderedDict([("stem", nn.Linear(11, 13)), (head, nn.Linear(13, classes))]))

    original = theirs()
    save_checkpoint(tmp_path / "theirs.safetensors", original.state_dict(), {})
    network = split(theirs(), classes=7, head=head)
    load_weights(network, load_checkpoint(tmp_path / "theirs.safetensors")[0], "theirs.safetensors")
    x = torch.randn(5, 11)
    assert torch.equal(network(x), original(x))
    save_checkpoint(tmp_path / "ours.safetensors", network.state_dict(), {})
    again = split(theirs(), classes=7, head=head)
    load_weights(again, load_checkpoint(tmp_path / "ours.safetensors")[0], "ours.safetensors")
    assert torch.equal(again(x), original(x))
    fewer = split(theirs(3), classes=3, head=head)
    load_start(fewer, load_checkpoint(tmp_path / "theirs.safetensors")[0], "theirs.safetensors")
    assert torch.equal(fewer.features(x), original.stem(x))
