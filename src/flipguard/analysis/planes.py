"""Samples in a plane: two logits or two features of each, before and after an update."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from flipguard.analysis.members import Logits, Members
from flipguard.analysis.plots import Panel, Plot, Series, floats
from flipguard.types import InputError


def logit_arrows(old: Members, new: Members, *, sizes: Sequence[int] = (1, 3), most: int = 120) -> Plot:
    """Where the logits of two-class samples go from an old to a new model: ELODI (Zhao et al. 2024), Fig. 3a and 3b.

    Without two classes the two are taken that old and new confuse most, and only their samples are shown.
    """
    pair, rows = _shown(old, new, most)
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    for size in sizes:
        before, after = (members.dealt(size)[0][rows][:, pair] for members in (old, new))
        label = (old.label[rows] == pair[1]).astype(np.int64)
        right = [logits.argmax(axis=1) == label for logits in (before, after)]
        panels.append(Panel(*_axes("logit of class", pair), _arrows(before, after, *right), f"{size}×", equal=True))
        facts |= _averages([members.dealt(size)[:, rows][:, :, pair] for members in (old, new)], label, size)
    return Plot("logit-arrows", "Two-class logits, old to new", "ELODI Fig. 3a, 3b", tuple(panels), facts)


def logit_members(old: Members, new: Members, *, size: int = 3, most: int = 6) -> Plot:
    """Two ensembles and their members in one plane: ELODI (Zhao et al. 2024), Fig. 3c.

    The samples of the two classes are those that the members, all in all, are least decided about.
    """
    pair, chosen = _undecided(old, new, most)
    sides = {"old": old, "new": new}
    planes = {name: members.logits[:size, chosen][:, :, pair] for name, members in sides.items()}
    for members in sides.values():
        members.dealt(size)
    return Plot(
        "logit-members",
        f"Two {size}× ensembles and their members",
        "ELODI Fig. 3c",
        (Panel(*_axes("logit of class", pair), _around(planes), f"{size}× and members", equal=True),),
        _spread(planes),
    )


@dataclass(frozen=True)
class Embedded:
    """Members with the features (M, N, D) that their heads see; `head` is W (C, D) and b (C,) of the reference's."""

    members: Members
    features: Logits
    head: tuple[Logits, Logits] | None = None

    def as_members(self) -> Members:
        """The features in the logits' place, for figures of displacements."""
        return replace(self.members, logits=self.features)

    def judged(self, size: int) -> Logits:
        """(N, C): what the reference's head says of the mean feature of the first `size` members (Eq. 14)."""
        if self.head is None:
            raise InputError("there is no reference's head to judge the mean feature by.")
        weight, bias = self.head
        found: Logits = self.features[:size].mean(axis=0) @ weight.T + bias
        return found


def feature_arrows(old: Embedded, new: Embedded, *, sizes: Sequence[int] = (1, 3), most: int = 120) -> Plot:
    """Where two-dimensional features go from old to new, the last panel with the members: ELODI, Fig. 11a to 11c.

    Features of networks that were trained apart do not compare; BCT has aligned these with one reference. Then the mean
    of the members' logits (Eq. 13) is about what the reference's head says of their mean feature (Eq. 14), which is
    therefore the ensemble's own; the facts say how often both choose the same class. Flips are those of Eq. 13.
    """
    if old.features.shape[2] != 2 or new.features.shape[2] != 2:
        raise InputError(
            f"the plane needs features of 2 numbers, these have {old.features.shape[2]} and {new.features.shape[2]}: "
            "train networks with feature_width=2."
        )
    panels: list[Panel] = []
    facts: dict[str, float] = {}
    label = old.members.label
    for size in sizes:
        logits = [side.members.dealt(size)[0] for side in (old, new)]
        planes = [side.features[:size].mean(axis=0) for side in (old, new)]
        right = [said.argmax(axis=1) == label for said in logits]
        rows = _spaced(len(label), most)
        drawn = _arrows(*(plane[rows] for plane in planes), *(each[rows] for each in right))
        panels.append(Panel("feature 0", "feature 1", drawn, f"{size}×", equal=True))
        facts |= _averages([side.members.dealt(size) for side in (old, new)], label, size)
        facts[f"mean displacement, {size}×"] = float(np.linalg.norm(planes[1] - planes[0], axis=1).mean())
        if new.head is not None:
            agree = [logits[1].argmax(axis=1) == new.judged(size).argmax(axis=1)]
            facts[f"Eq. 14 chooses as Eq. 13, {size}×"] = float(np.mean(agree))
    largest = max(sizes)
    few = _spaced(len(label), 6)
    sides = {"old": old.features[:largest, few], "new": new.features[:largest, few]}
    panels.append(Panel("feature 0", "feature 1", _around(sides), f"{largest}× and members", equal=True))
    facts |= _spread(sides)
    title = "Features of three classes, old to new" if old.members.logits.shape[2] == 3 else "Features, old to new"
    return Plot("feature-arrows", title, "ELODI Fig. 11a–c", tuple(panels), facts)


def least_decided(old: Members, new: Members) -> int:
    """The sample of the two classes that all members together are least decided about."""
    return int(_undecided(old, new, 1)[1][0])


def _undecided(old: Members, new: Members, most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two classes, and the rows of their samples whose mean logits are closest."""
    pair, rows = _shown(old, new, len(old.label))
    together = np.concatenate([old.logits, new.logits])[:, rows][:, :, pair].mean(axis=0)
    return pair, rows[np.argsort(np.abs(together[:, 0] - together[:, 1]))[:most]]


def _axes(name: str, pair: npt.NDArray[np.int64]) -> tuple[str, str]:
    return f"{name} {pair[0]}", f"{name} {pair[1]}"


def _spaced(count: int, most: int) -> npt.NDArray[np.int64]:
    """At most so many places, evenly over all of them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _shown(old: Members, new: Members, most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Two classes, and the rows of their samples."""
    pair = np.array(_two_classes(old, new))
    return pair, np.flatnonzero((old.label == pair[0]) | (old.label == pair[1]))[:most]


def _two_classes(old: Members, new: Members) -> tuple[int, int]:
    classes = old.logits.shape[2]
    if classes == 2:
        return 0, 1
    mixed = np.zeros((classes, classes), np.int64)
    for members in (old, new):
        said = members.logits.argmax(axis=2)
        np.add.at(mixed, (np.broadcast_to(members.label, said.shape), said), 1)
    both = np.triu(mixed + mixed.T, 1)
    pair = np.unravel_index(int(both.argmax()), both.shape)
    return int(pair[0]), int(pair[1])


def _averages(sides: Sequence[Logits], label: npt.NDArray[np.int64], size: int) -> dict[str, float]:
    """(K, N, C) twice: flips and displacement, on average over disjoint pairs of ensembles, not only those drawn."""
    before, after = sides
    pairs = min(len(before), len(after))
    was, now = (logits[:pairs].argmax(axis=2) == label for logits in (before, after))
    return {
        f"negative flips, {size}×": float((was & ~now).sum(axis=1).mean()),
        f"mean displacement, {size}×": float(np.linalg.norm(after[:pairs] - before[:pairs], axis=2).mean()),
    }


def _arrows(
    before: Logits, after: Logits, was: npt.NDArray[np.bool_], now: npt.NDArray[np.bool_]
) -> tuple[Series, ...]:
    """(N, 2) to (N, 2), by what became of the samples."""
    kinds = {"consistent": was == now, "positive flips": ~was & now, "negative flips": was & ~now}
    return tuple(
        Series(
            name, floats(before[k, 0]), floats(before[k, 1]), "arrows", x2=floats(after[k, 0]), y2=floats(after[k, 1])
        )
        for name, k in kinds.items()
        if k.any()
    )


def _around(sides: dict[str, Logits]) -> tuple[Series, ...]:
    """(M, N, 2) by side: the members lightly, their means in full."""

    def series() -> Iterator[Series]:
        for colour, (name, plane) in enumerate(sides.items()):
            each, mean = plane.reshape(-1, 2), plane.mean(axis=0)
            spots = Series(f"{name}, members", floats(each[:, 0]), floats(each[:, 1]), "points", colour=colour + 1)
            yield replace(spots, faint=True)
            yield replace(spots, name=f"{name}, ensemble", x=floats(mean[:, 0]), y=floats(mean[:, 1]))

    return tuple(series())


def _spread(sides: dict[str, Logits]) -> dict[str, float]:
    """How far members are from their ensemble, and ensembles from each other, on average over the samples."""
    old, new = sides["old"], sides["new"]
    apart = np.concatenate([side - side.mean(axis=0) for side in (old, new)])
    moved = old.mean(axis=0) - new.mean(axis=0)
    return {
        "mean distance of members from their ensemble": float(np.linalg.norm(apart, axis=2).mean()),
        "mean distance between the ensembles": float(np.linalg.norm(moved, axis=1).mean()),
    }
