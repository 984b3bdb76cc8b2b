"""Arrays that a bench has kept."""

from collections.abc import Iterable
from pathlib import Path

from flipguard.data.npz import Arrays, read_npz
from flipguard.types import DamagedFile


def read_arrays(path: Path, names: Iterable[str]) -> Arrays:
    """An archive that was written with these arrays: a flipped bit in its table of contents can hide one."""
    if not path.exists():
        raise DamagedFile(f"{path} is gone, though the record beside it is there.", path)
    found = read_npz(path)
    lost = next((name for name in names if name not in found), None)
    if lost is not None:
        raise DamagedFile(f"{path} is damaged: its array {lost} is gone.", path)
    return found
