"""What the workers of a pool do of a run: a member, or one seed's chain of versions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flipguard.data import DataSet
from flipguard.releases.folder import RunFolder
from flipguard.releases.job import Job
from flipguard.releases.listener import Listener
from flipguard.releases.plan import TrainSpec
from flipguard.releases.resolved import as_dict
from flipguard.releases.run import train_one
from flipguard.training import Seeds
from flipguard.training.kept import kept_at
from flipguard.training.members import MemberPlan, train_member
from flipguard.training.storage import Storage, is_address

PATIENCE_SECONDS = 120.0
"""How long a worker waits for the folder of one that was cut off and lingers."""


def train_run(
    data: Mapping[str, DataSet],
    spec: Mapping[str, Any],
    place: str,
    members: Sequence[str],
    settings: Mapping[str, Any],
    *,
    say: Callable[[Any], None],
) -> None:
    """One seed's chain of versions, from a worker of a pool: what its listener hears is said."""
    fetched = {f"members/{name_of(member)}": member for member in members if is_address(member)}
    with kept_at(place, without=fetched) as folder:
        run = RunFolder(folder)
        wanted = TrainSpec.model_validate(spec, strict=True)
        if is_address(place):
            wanted = wanted.model_copy(update={"members": None})
            run.adopt(as_dict(wanted))
        for name, member in fetched.items():
            Storage(member).fetch(folder / name)
        job = Job(wanted, run, Saying(say, str(folder), place), loaded=dict(data), **settings)
        train_one(job, patience=PATIENCE_SECONDS)


def train_one_member(
    data: Mapping[str, DataSet],
    key: str,
    plan: MemberPlan,
    seeds: Seeds,
    place: str,
    *,
    say: Callable[[Any], None],
) -> None:
    """A member, from a worker of a pool."""
    train_member(data[key], plan, seeds, place, say=say)


class Saying(Listener):
    """Passes on what it hears as (method, arguments); notes speak of the place that a folder here stands for."""

    def __init__(self, say: Callable[[Any], None], folder: str, place: str) -> None:
        self._say, self._folder, self._place = say, folder, place

    def version_begins(self, version: str, method: str, epochs: int) -> None:
        self._say(("version_begins", (version, method, epochs)))

    def members(self, version: str, done: int, total: int) -> None:
        self._say(("members", (version, done, total)))

    def epoch(self, version: str, figures: Mapping[str, Any]) -> None:
        self._say(("epoch", (version, dict(figures))))

    def version_ends(self, version: str, *, found: bool) -> None:
        self._say(("version_ends", (version, found)))

    def note(self, text: str) -> None:
        self._say(("note", (text.replace(self._folder, self._place),)))


def name_of(place: str) -> str:
    """The last part of a path or an address."""
    return place.rsplit("/", 1)[-1]
