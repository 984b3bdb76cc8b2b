"""An ensemble spread over two real processes says what one process that holds all members says."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from flipguard.ensembles import SpreadReference
from flipguard.types import InputError

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import distributed
torch.set_num_threads(1)
from flipguard.ensembles import NetworkReference, SpreadReference
from flipguard.models import build_model
from flipguard.training.distributed import place
from flipguard.types import Batch

rank, world = place()
distributed.init_process_group("gloo")

def network(seed):
    torch.manual_seed(seed)
    return build_model("cnn", classes=7)

def batch(x):
    rows = torch.arange(len(x))
    return Batch(x, rows % 7, rows, torch.zeros(()), torch.zeros((), dtype=torch.int64))

torch.manual_seed(100 + rank)
x = torch.randn(5, 1, 8, 8)
said = {}
for members in (2, 3, 5):
    plain = NetworkReference("ensemble", [network(s) for s in range(members)])
    spread = SpreadReference("ensemble", [network(s) for s in range(rank, members, world)], members, rank, world)
    one, other = plain(batch(x), features=True), spread(batch(x), features=True)
    assert other.logits.shape == (members, 5, 7)
    assert not other.logits.requires_grad
    torch.testing.assert_close(other.logits, one.logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(other.features, one.features, rtol=0, atol=1e-5)
    torch.testing.assert_close(spread(batch(x)).logits.mean(0), plain(batch(x)).logits.mean(0), rtol=0, atol=1e-5)
    drawn = torch.tensor([members - 1])
    torch.testing.assert_close(spread.chosen(batch(x), drawn), one.logits[-1], rtol=0, atol=1e-5)
    assert not torch.allclose(one.logits[0], one.logits[1], atol=1e-3)
    sizes = [sum(p.numel() for p in reference.parameters()) for reference in (plain, spread)]
    assert sizes[1] * members == sizes[0] * len(range(rank, members, world))
# Inputs of several tensors, as texts have them.
class Sum(torch.nn.Module):
    def forward(self, x):
        return x["a"].sum(-1, keepdim=True) * torch.arange(7.0) + x["b"]
words = {"a": torch.randn(5, 11), "b": torch.randn(5, 1)}
spread = SpreadReference("ensemble", [Sum()], 2, rank, world)
torch.testing.assert_close(spread(batch(words)).logits, torch.stack([Sum()(words)] * 2))
Path(sys.argv[1], f"{rank}.done").touch()
"""


def test_spread_over_two_processes(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.done", "1.done"], "\n".join(errors)


def test_shares_that_do_not_add_up() -> None:
    with pytest.raises(InputError, match="the 2 members of 'ensemble' cannot be spread over 3 processes"):
        SpreadReference("ensemble", [nn.Linear(3, 5)], 2, 0, 3)
    with pytest.raises(InputError, match="process 1 of 2 holds 2 of the 3 members of 'ensemble'"):
        SpreadReference("ensemble", [nn.Linear(3, 5), nn.Linear(3, 5)], 3, 1, 2)


def test_it_stays_frozen() -> None:
    reference = SpreadReference("ensemble", [nn.Linear(3, 5)], 1, 0, 1)
    reference.train()
    assert not reference.own.networks[0].training
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert torch.is_tensor(next(reference.parameters()))
