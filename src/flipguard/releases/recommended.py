"""`method: recommended`: what our measurements favour, by what a version follows and what it learns from.

docs/methods/index.md has the same as a table, and results/README.md the measurements.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from flipguard.releases.heritage import has_heritage, inherited_from, members_left
from flipguard.releases.plan import DataPlan, MethodPlan, TrainPlan, VersionPlan
from flipguard.types import InputError

RECOMMENDED = "recommended"
_IMAGES = frozenset(
    ("digits", "cifar10", "cifar100", "svhn", "tiny-imagenet", "image-folder", "mnist-idx", "mosaic", "webdataset")
)


@dataclass(frozen=True)
class Way:
    """A method, and the training with which it was measured.

    `longer` is in the epochs of a plain training. What `settles` ends with a quarter of its steps at a tenth of the
    rate, and averages its weights there. What `asks` many networks pays for one: each row
    is answered by one of them (`dealt`), or they are asked once (`views`).
    """

    name: str
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    longer: float = 1.0
    settles: bool = False
    asks: Literal["every", "dealt", "views"] = "every"

    def train(self, plain: TrainPlan, own: Mapping[str, Any]) -> dict[str, Any]:
        """What it changes about a plain training, but for a version's own settings, which have the last word."""
        plain = plain.model_copy(update=dict(own))
        longer = plain.cycles * max(1, round(self.longer * plain.epochs / plain.cycles))
        epochs = own.get("epochs", longer)
        found: dict[str, Any] = {"epochs": epochs}
        if self.asks != "every" and not own.keys() & {"views", "dealt"}:
            found |= {"dealt": self.asks == "dealt", "views": int(self.asks == "views")}
        # Only a rate that falls can end at a floor, and a mean over epochs leaves none to choose.
        if self.settles and plain.schedule in ("cosine", "one_cycle") and plain.choose_epoch == "last":
            found |= {"floor": 0.1, "tail": 0.25, "average": epochs // 4}
        return {**found, **own}


FIRST = Way(
    "elodi",
    "it is held to an ensemble of its own kind, for about twelve trainings with eight members, and leaves that to the "
    "updates after it",
    {"alpha": 0.9},
)
HEIR_OF_IMAGES = Way(
    "scion",
    "branches, held to the members that the version before learned from: on CIFAR-100, five seeds, an error of 26.10 "
    "(ELODI 26.21) and 101 % of its cut in relative NFR for 2.9 trainings instead of 11.7",
    longer=1.375,
    settles=True,
    asks="dealt",
)
HEIR = Way(
    "heir",
    "held to the members that the version before learned from: on AG News, five seeds, an error of 14.39 (ELODI 14.34) "
    "and 114 % of its cut in relative NFR for 2.8 trainings instead of 15.3",
    longer=2.5,
    asks="views",
)
AFTER_UNTREATED_IMAGES = Way(
    "graft",
    "branches, held to the version before: on CIFAR-100, five seeds, 72 % of ELODI's cut in relative NFR at 0.55 "
    "points more error than it, for 2.9 trainings instead of 11.7",
    {"strength": 0.05},
    longer=1.125,
    settles=True,
)
AFTER_TREATED_IMAGES = Way(
    "graft",
    "branches, held to the version before, whose members are gone: on CIFAR-100, five seeds, ELODI's relative NFR at "
    "0.74 points more error than it, for 2.9 trainings instead of 11.7",
    {"strength": 0.1},
    longer=1.125,
    settles=True,
)
AFTER_ANY = Way(
    "fd_kl",
    "held to the version before, where that was right above all: on AG News, three seeds, 95 % of ELODI's cut in "
    "relative NFR at 0.27 points more error than it, for 2.3 trainings instead of 15.3",
    {"strength": 0.3},
    longer=2.0,
    asks="views",
)
WAYS = (FIRST, HEIR_OF_IMAGES, HEIR, AFTER_UNTREATED_IMAGES, AFTER_TREATED_IMAGES, AFTER_ANY)


def way_for(before: Sequence[VersionPlan], data: DataPlan) -> Way:
    """The way for a version that follows these, which are resolved, on this data."""
    if not before:
        return FIRST
    images, left = _shows_images(data), _members_left(before)
    if left:
        return HEIR_OF_IMAGES if images else HEIR
    if not images:
        return AFTER_ANY
    return AFTER_UNTREATED_IMAGES if left is None else AFTER_TREATED_IMAGES


def recommended(
    version: VersionPlan, plan: MethodPlan, before: Sequence[VersionPlan], data: DataPlan, train: TrainPlan, place: str
) -> VersionPlan:
    """The version with a method and a training in place of `recommended`; its own `train` has the last word."""
    if plan.options:
        raise InputError(
            f"{place}: recommended chooses a method with its options, and cannot be given {next(iter(plan.options))}: "
            "name the method that is to have it."
        )
    way = way_for(before, data)
    method: dict[str, Any] = {"name": way.name, **way.options}
    if plan.ensemble is not None and way is FIRST:
        method["ensemble"] = plan.ensemble
    own = version.train.model_dump(exclude_unset=True) if version.train is not None else {}
    wanted = TrainPlan.model_validate(way.train(train, own))
    return version.model_copy(update={"method": MethodPlan.model_validate(method), "train": wanted})


def taken(method: MethodPlan) -> Way:
    """The way that a resolved method is."""
    return next(
        way
        for way in WAYS
        if way.name == method.name and all(method.options.get(name) == value for name, value in way.options.items())
    )


def _members_left(before: Sequence[VersionPlan]) -> bool | None:
    """Whether there are members that the last of these learned from; None where it learned from none."""
    source = inherited_from([*before, before[-1]], len(before))
    if source.run is not None:
        return members_left(source.run)
    return True if has_heritage(source) else None


def _shows_images(data: DataPlan) -> bool:
    if data.name == "npz":
        return data.augment is not None
    return data.name in _IMAGES and "encode" not in data.options
