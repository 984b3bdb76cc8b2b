"""A small chain of updates as real processes, and what is left of it afterwards."""

import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner, Result

from flipguard.checkpoints import load_checkpoint
from flipguard.cli.app import app
from flipguard.predictions import read_predictions
from flipguard.releases.yaml_text import as_yaml

CHAIN: dict[str, Any] = {
    "data": {"name": "digits", "test_size": 0.6, "validation": 71, "per_class": 13},
    "versions": [
        {"name": "a", "model": {"name": "mlp", "hidden": [5]}, "method": {"name": "none"}},
        {"name": "b", "model": {"name": "mlp", "hidden": [7]}, "method": {"name": "elodi", "ensemble": {"members": 2}}},
        {"name": "c", "model": {"name": "mlp", "hidden": [11]}, "method": {"name": "kd"}},
    ],
    "train": {
        "epochs": 11,
        "batch_size": 31,
        "learning_rate": 0.05,
        "device": "cpu",
        "processes": 1,
        "checkpoint_every": 2,
    },
}


def write_chain(folder: Path) -> Path:
    path = folder / "chain.yaml"
    path.write_text(as_yaml(CHAIN))
    return path


def start(folder: Path, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
    """`flipguard …` in the folder, in a session of its own, with one thread."""
    return subprocess.Popen(
        [sys.executable, "-m", "flipguard", *map(str, arguments)],
        **{
            "cwd": folder,
            "env": {**os.environ, "OMP_NUM_THREADS": "1"},
            "text": True,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "start_new_session": True,
            **options,
        },
    )


def flipguard(folder: Path, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    """The same to its end."""
    process = start(folder, *arguments, **options)
    said, complaint = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, said, complaint)


def in_this_process(folder: Path, *arguments: object) -> Result:
    """`flipguard …` in the folder, with one thread, where nothing happens to it: it need not be started for that."""
    torch.set_num_threads(1)
    with chdir(folder):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="flipguard")


def same_run(one: Path, other: Path) -> str | None:
    """None when two run folders hold the same weights and predictions, bit for bit; else what differs."""
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.suffix in (".safetensors", ".parquet"))
    others = sorted(path.relative_to(other) for path in other.rglob("*") if path.suffix in (".safetensors", ".parquet"))
    if files != others:
        return f"files differ: {sorted(map(str, {*files} ^ {*others}))}"
    for file in files:
        if file.suffix == ".parquet":
            same = read_predictions(one / file).table().equals(read_predictions(other / file).table())
        else:
            first, second = (load_checkpoint(folder / file)[0] for folder in (one, other))
            same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
        if not same:
            return f"{file} differs"
    return None


def flip_bit(path: Path, place: int) -> None:
    """Flip one bit of a file's byte, counted from its end when negative."""
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
