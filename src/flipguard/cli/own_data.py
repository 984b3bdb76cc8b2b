"""The data of a run's version, for commands that take others by --data."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from flipguard.cli.demo import with_torch
from flipguard.types import InputError

if TYPE_CHECKING:
    from flipguard.releases.plan import DataPlan


def own_data(home: Path, doing: str) -> "DataPlan":
    """The data that a version was trained and judged on, as its run's spec has them."""
    from flipguard.releases.folder import SPEC

    spec = home.resolve().parent.parent / SPEC
    if not spec.is_file():
        raise InputError(f"{home} lies in no run folder that would tell its data: name them with --data.")
    wanted = import_module("flipguard.spec.training").read_training_spec(spec)
    version = next((each for each in wanted.versions or () if each.name == home.resolve().name), None)
    resolved = with_torch("flipguard.releases.resolved", doing, "train")
    plan: DataPlan = wanted.data if version is None else resolved.data_of(wanted, version)
    return plan
