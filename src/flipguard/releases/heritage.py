"""What a version leaves behind: the ensemble that it was distilled from, or has inherited itself."""

from collections.abc import Sequence

from flipguard.releases.plan import VersionPlan
from flipguard.releases.settled import card_of


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
