"""What is damaged in a run folder, cleared away so that the run makes it again, and nothing else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flipguard.checkpoints import load_checkpoint
from flipguard.predictions import read_predictions
from flipguard.releases.folder import CARD, EARLIER, METRICS, MODEL, PREDICTIONS, STATE, read_json, write_json
from flipguard.releases.recorded import SOURCE
from flipguard.types import DamagedFile, InputError


@contextmanager
def repairable(*folders: Path) -> Iterator[None]:
    """Within, a damaged file of one of these folders is an error that says how to have it made again."""
    try:
        yield
    except DamagedFile as error:
        if any(error.path.resolve().is_relative_to(folder.resolve()) for folder in folders):
            message = f"{error} The same command with --repair makes it again, and nothing else."
            raise DamagedFile(message, error.path) from error
        raise


def clear_damage(home: Path) -> list[Path]:
    """Remove what cannot be read of a version's files; returns what is to be made again.

    Weights that are lost take the card with them, by which a version counts as done: it is trained again. A card alone
    is written anew from the weights' own copy of it.
    """
    cleared = [path for path in (home / STATE, home / METRICS) if is_broken(path)]
    if (home / CARD).exists():
        cleared += _broken_release(home)
    for path in cleared:
        path.unlink(missing_ok=True)
    return cleared


def told(path: Path) -> str:
    """What becomes of a damaged file."""
    if path.name == METRICS and (path.parent / CARD).exists():
        return f"{path} was damaged and is gone: the epochs of a finished version are not told again."
    return f"{path} was damaged, and is made again."


def _broken_release(home: Path) -> list[Path]:
    said = [*home.glob(f"{PREDICTIONS}/*.parquet"), *home.glob(f"{EARLIER}/*.parquet")]
    broken = [path for path in sorted(said) if is_broken(path)]
    source = home / PREDICTIONS / SOURCE
    if not (home / MODEL).exists():
        # A version of which only predictions are left: without them it is taken over anew.
        return [*broken, home / CARD] if source in broken or is_broken(home / CARD) else broken
    if is_broken(home / MODEL):
        return [*broken, home / MODEL, home / CARD]
    card = load_checkpoint(home / MODEL)[1]
    if is_broken(home / CARD) or read_json(home / CARD) != card:
        write_json(home / CARD, card)
    return broken


def is_broken(path: Path) -> bool:
    """Whether a file is there and is not what was written."""
    if not path.exists():
        return False
    try:
        if path.suffix == ".safetensors":
            load_checkpoint(path)
        elif path.suffix == ".parquet":
            read_predictions(path)
        elif path.suffix == ".jsonl":
            for line in path.read_text(encoding="utf-8").splitlines():
                json.loads(line)
        else:
            read_json(path)
    except (InputError, ValueError):
        return True
    return False
