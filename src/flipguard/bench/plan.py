"""A bench as types: which networks are trained, what each is held to, and which pairs of them make a row. No torch."""

import json
import re
from itertools import combinations
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import BeforeValidator, Field, model_validator

from flipguard.releases.plan import (
    KeptClasses,
    KeptRows,
    MethodPlan,
    NamedData,
    NamedMethod,
    NamedModel,
    Strict,
    SubsetSeed,
    TrainPlan,
)
from flipguard.types import InputError

Side = Literal["old", "new"]
SIDES: tuple[Side, ...] = ("old", "new")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
_SELECTOR = re.compile(rf"(?:(old|new)\.)?({_NAME})(?:\.(\d+)(?:-(\d+))?)?")


def _both(value: Any) -> Any:
    """A name alone is short for a row whose old and new models are both made that way."""
    return {"old": value, "new": value} if isinstance(value, str) else value


Stream = Literal["initialisation", "order", "augment"]


class PartPlan(Strict):
    """A part of the bench's training data, as a model from before the data grew had it."""

    classes: KeptClasses = None
    per_class: KeptRows = None
    subset_seed: SubsetSeed = 0


class NetworkPlan(Strict):
    """A way to make networks: for the old and the new side, for every seed, as many copies as are said here."""

    method: NamedMethod = MethodPlan()
    copies: Annotated[int, Field(ge=1, le=900, description="networks that differ by their seed alone")] = 1
    references: Annotated[
        dict[str, str],
        Field(
            default_factory=dict, description="for each reference of the method, the networks: name, name.0, name.0-3"
        ),
    ]
    offline: Annotated[bool, Field(description="the references' logits are extracted once, without augmentation")] = (
        False
    )
    model: Annotated[NamedModel | None, Field(description="another network than the side's")] = None
    train: Annotated[TrainPlan | None, Field(description="what differs from the bench's training")] = None
    data: Annotated[PartPlan | None, Field(description="trained on a part of the bench's data")] = None
    augment: Annotated[bool, Field(description="false trains without the bench's augmentation")] = True
    shared: Annotated[
        list[Stream],
        Field(default_factory=list, description="randomness that all networks of a seed that say so have in common"),
    ]
    held: Annotated[
        list[Stream],
        Field(default_factory=list, description="randomness that all networks that say so have in common, of any seed"),
    ]
    keeps: Annotated[
        Literal["release", "members", "snapshots"],
        Field(
            description="what a training leaves: the network to release; all that were trained jointly; the network at "
            "the end of each of the schedule's cycles"
        ),
    ] = "release"


class RowPlan(Strict):
    """An old and a new model, each one network or the mean of several."""

    old: Annotated[str, Field(description="networks of the old side: name, name.0, name.0-3")]
    new: Annotated[str, Field(description="networks of the new side")]
    each: Annotated[bool, Field(description="not together, but the first old with the first new, and so on")] = False
    group: Annotated[
        str | None, Field(description="rows of one group are judged against each other, and have a table of their own")
    ] = None


class Link(NamedTuple):
    """A row that compares two versions of a chain: which chain, and the places of both in it."""

    chain: str
    older: int
    newer: int


class CorruptionsPlan(Strict):
    """The test part's images, corrupted in several ways: every model is also judged on the mean over them."""

    kinds: Annotated[list[str] | None, Field(min_length=1, description="all fifteen when none are named")] = None
    severities: Annotated[
        list[Annotated[int, Field(ge=1, le=5)]], Field(min_length=1, default_factory=lambda: [1, 2, 3, 4, 5])
    ]
    seed: Annotated[int, Field(description="draws the noise")] = 0


class BenchSpec(Strict):
    """What `flipguard bench` reads: one update on one data set, made in many ways."""

    title: str
    data: NamedData
    old: NamedModel
    new: NamedModel
    train: TrainPlan = TrainPlan()
    seeds: Annotated[list[int], Field(min_length=1)]
    networks: Annotated[dict[str, NetworkPlan], Field(min_length=1)]
    rows: Annotated[dict[str, Annotated[RowPlan, BeforeValidator(_both)]], Field(default_factory=dict)]
    chains: Annotated[
        dict[str, Annotated[list[str], Field(min_length=2, max_length=9)]],
        Field(default_factory=dict, description="the networks of each version, the oldest first; each two make a row"),
    ]

    corruptions: Annotated[
        CorruptionsPlan | None, Field(description="the models are also compared on corrupted test images")
    ] = None

    @property
    def facts(self) -> dict[str, Any]:
        """What a table says of its bench, as JSON has it."""
        shown = self.model_dump(mode="json", exclude_unset=True, include={"title", "data", "old", "new", "train"})
        shown["data"].pop("folder", None)
        found: dict[str, Any] = json.loads(json.dumps(shown))
        return found

    @property
    def every_row(self) -> dict[str, RowPlan]:
        """Rows, and what chains come to: CHAIN_v0_v1 and so on, grouped by the two versions."""
        return self.rows | {name: self._row(link) for name, link in self.links.items()}

    def _row(self, link: Link) -> RowPlan:
        old, new = (_of_version(self.chains[link.chain][place], place) for place in link[1:])
        return RowPlan(old=old, new=new, group=f"v{link.older} → v{link.newer}")

    @property
    def links(self) -> dict[str, Link]:
        """The rows that come from chains."""
        return {
            f"{chain}_v{older}_v{newer}": Link(chain, older, newer)
            for chain, versions in self.chains.items()
            for older, newer in combinations(range(len(versions)), 2)
        }

    @model_validator(mode="after")
    def _consistent(self) -> "BenchSpec":
        if not self.rows and not self.chains:
            raise ValueError("a bench has at least one of `rows` or `chains`")
        if self.rows.keys() & self.links.keys():
            raise ValueError(f"two rows are called '{min(self.rows.keys() & self.links.keys())}'")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("`seeds` are different numbers")
        for name in (*self.networks, *self.rows, *self.chains):
            if not re.fullmatch(_NAME, name):
                raise ValueError(f"'{name}' cannot name a network, a row or a chain: letters, digits, '_' and '-'")
        return self


def _of_version(text: str, place: int) -> str:
    """A chain's first version is of the old side, and every later one of the new, unless it says otherwise.

    >>> _of_version("single.0 + old.kd", 1)
    'new.single.0 + old.kd'
    """
    parts = (part.strip() for part in text.split("+"))
    side = "new" if place else "old"
    return " + ".join(part if part.startswith(("old.", "new.")) else f"{side}.{part}" for part in parts)


class Selection(NamedTuple):
    """Some networks of a kind: those of a side, from the first to the last place; None for all of them."""

    side: Side
    name: str
    places: range | None


def selected(text: str, side: Side, place: str) -> Selection:
    """What a selector means; without a side of its own it is of the given one.

    >>> selected("old.single.0-3", "new", "rows.a")
    Selection(side='old', name='single', places=range(0, 4))
    """
    found = _SELECTOR.fullmatch(text)
    if found is None:
        raise InputError(f"{place}: '{text}' selects no networks: write name, name.0, name.0-3, or old.name.")
    own, name, first, last = found.groups()
    places = None if first is None else range(int(first), int(last or first) + 1)
    if places is not None and not places:
        raise InputError(f"{place}: '{text}' selects nothing: the last place lies before the first.")
    return Selection(cast(Side, own) if own else side, name, places)
