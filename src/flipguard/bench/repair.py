"""What is damaged of a bench's files, cleared away so that the bench makes it again, and nothing else."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from flipguard.bench.kept import read_arrays
from flipguard.bench.node import Node
from flipguard.bench.plan import SIDES
from flipguard.bench.shop import LOGITS, RECORD, Shop
from flipguard.releases.repair import is_broken
from flipguard.types import InputError


def clear_network(shop: Shop, node: Node) -> list[Path]:
    """Remove a network's folder when anything in it is damaged, or missing once it is done; returns what was."""
    home = shop.home(node)
    # One that is still trained has its state, and what was kept at the end of cycles.
    kept = [home / f"{place}.safetensors" for place in range(node.pieces)]
    if shop.is_done(node):
        damaged = [path for path in kept if not path.exists() or is_broken(path)]
        damaged += [home / RECORD] if is_broken(home / RECORD) else []
        damaged += _broken_arrays(home / LOGITS, shop.names(node))
    else:
        damaged = [path for path in sorted(home.glob("*.safetensors")) if path.exists() and is_broken(path)]
        if shop.is_done(node):
            # Another bench that shares the networks has finished it meanwhile.
            return []
    if damaged:
        shutil.rmtree(home)
    return damaged


def clear_pair(record: Path) -> list[Path]:
    """Remove a pair's record and its predictions when either is damaged, or the latter gone; returns what was."""
    if not record.exists():
        return []
    said = record.with_suffix(".npz")
    damaged = ([record] if is_broken(record) else []) + _broken_arrays(said, SIDES)
    if damaged:
        record.unlink()
        said.unlink(missing_ok=True)
    return damaged


def _broken_arrays(path: Path, names: Iterable[str]) -> list[Path]:
    try:
        read_arrays(path, names)
    except InputError:
        return [path]
    return []
