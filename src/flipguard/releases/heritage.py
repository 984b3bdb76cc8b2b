"""What a version leaves behind: the ensemble that it was distilled from, or has inherited itself."""

from collections.abc import Sequence
from pathlib import Path

from flipguard.releases.folder import RunFolder, version_home
from flipguard.releases.plan import TrainSpec, VersionPlan
from flipguard.releases.settled import card_of
from flipguard.training.members import MEMBER


def has_heritage(version: VersionPlan) -> bool:
    """Whether a version was distilled from an ensemble, or is one; a soup's networks start from another's weights."""
    method = version.method
    return method is not None and method.ensemble is not None and card_of(method).kind != "post-hoc"


def inherited_from(versions: Sequence[VersionPlan], index: int) -> VersionPlan:
    """Whose ensemble the version at this place is held to: that of the one before, or of whom that one has it from."""
    earlier = list(reversed(versions[:index]))
    return next((one for one in earlier if one.references != "ensemble" or has_heritage(one)), earlier[-1])


def source_of(versions: Sequence[VersionPlan], index: int) -> VersionPlan:
    """The version whose ensemble the one at this place learned from: itself, or the one that it has it from."""
    version = versions[index]
    inherits = version.references == "ensemble" and not has_heritage(version)
    return inherited_from(versions, index) if inherits else version


def members_left(run: str) -> bool | None:
    """Whether the members are there that a version of another run learned from; None where it learned from none.

    They are counted, not checked: a run that is held to them looks at each of them before it trains.
    """
    home = version_home(Path(run)).resolve()
    folder = RunFolder(home.parent.parent)
    stored = folder.stored()
    names = [] if stored is None else [str(one.name) for one in stored.versions or []]
    if stored is None or home.name not in names:
        return None
    source = source_of(stored.versions or [], names.index(home.name))
    if source.run is not None:
        return members_left(source.run)
    if not has_heritage(source):
        return None
    return _count(folder, stored) >= _wanted(source)


def _count(folder: RunFolder, stored: TrainSpec) -> int:
    return sum(1 for _ in folder.members(stored.members).glob(f"*/{MEMBER}"))


def _wanted(source: VersionPlan) -> int:
    assert source.method is not None
    assert source.method.ensemble is not None
    return source.method.ensemble.members
