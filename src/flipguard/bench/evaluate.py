"""A row of a bench for one seed: what the old and the new model said, compared as `flipguard compare` does it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.bench.cost import Costs
from flipguard.bench.graph import Graph
from flipguard.bench.node import Node, Piece, made_for
from flipguard.bench.plan import SIDES
from flipguard.bench.shop import Shop
from flipguard.comparison import Figures
from flipguard.comparison.run import compare_all
from flipguard.data import class_places
from flipguard.predictions import Predictions
from flipguard.releases import material

OLD_CLASSES = "_old_classes"
"""Ends the name of a part of which only the samples of the old model's classes are counted."""

AS_THEY_ARE = (
    "error_rate_old",
    "error_rate_new",
    "negative_flip_rate",
    "relative_negative_flip_rate",
    "churn",
    "nll_new",
    "ece_new",
)
FIGURES = (*AS_THEY_ARE, "cnll_new", "cece_new")
"""The last two once the temperature is fitted, which takes a validation part."""
"""Fields of a comparison that a bench keeps. The calibrated two are known on the test part alone."""


@dataclass(frozen=True)
class Pair:
    """An old and a new model of a row: which networks each is the mean of."""

    row: str
    seed: int
    number: int
    old: tuple[Piece, ...]
    new: tuple[Piece, ...]

    @property
    def column(self) -> str:
        """In the table of predictions."""
        return f"{self.row}.{self.seed}.{self.number}"

    @property
    def key(self) -> str:
        """Changes with the weights of any network."""
        sides = ("+".join(f"{piece.node.key}.{piece.place}" for piece in side) for side in (self.old, self.new))
        return " → ".join(sides)

    def nodes(self) -> list[Node]:
        return list(dict.fromkeys(piece.node for piece in (*self.old, *self.new)))


def pairs_of(graph: Graph, row: str, seed: int) -> list[Pair]:
    """One pair, or one for each old and new network in turn."""
    old, new = (graph.row(row, side, seed) for side in SIDES)
    for side, pieces in zip(SIDES, (old, new), strict=True):
        graph.classes_of(pieces, f"rows.{row}.{side}")
    if not graph.spec.every_row[row].each:
        return [Pair(row, seed, 0, tuple(old), tuple(new))]
    return [
        Pair(row, seed, number, (one,), (other,)) for number, (one, other) in enumerate(zip(old, new, strict=False))
    ]


@dataclass(frozen=True)
class Said:
    """What a side's model says of each held-out part, (N, C'), and of which classes it knows."""

    logits: dict[str, npt.NDArray[Any]]
    classes: tuple[str, ...]

    @classmethod
    def by(cls, pieces: tuple[Piece, ...], shop: Shop) -> "Said":
        """The mean of the networks' logits."""
        parts = material.held_out(shop.data)
        found = {part: np.mean([shop.logits(p.node, p.place, part) for p in pieces], axis=0) for part in parts}
        return cls(found, shop.set_of(pieces[0].node).classes)

    def codes(self, part: str, classes: tuple[str, ...]) -> npt.NDArray[np.uint16]:
        """The predicted classes by their place among all of the data's."""
        places = class_places(self.classes, classes)
        return material.as_codes(self.logits[part].argmax(1), places).astype(np.uint16)


def measured(pair: Pair, shop: Shop, costs: Costs) -> tuple[list[dict[str, Any]], dict[str, npt.NDArray[np.uint16]]]:
    """The pair's records, one for each part, and what both models said of the test part, as class codes."""
    old, new = (Said.by(pieces, shop) for pieces in (pair.old, pair.new))
    facts = facts_of_pair(pair, shop, costs)
    records = []
    for part in material.held_out(shop.data):
        records.append({**facts, "part": part, **_figures(_compared(shop, old, new, part, shop.data.classes))})
        if old.classes != shop.data.classes:
            # After growth also over the samples of which the old model could be right (PCT, Table 5b).
            found = _compared(shop, old, new, part, old.classes)
            records.append({**facts, "part": f"{part}{OLD_CLASSES}", **_figures(found)})
    return records, {side: said.codes("test", shop.data.classes) for side, said in (("old", old), ("new", new))}


def facts_of_pair(pair: Pair, shop: Shop, costs: Costs) -> dict[str, Any]:
    """What a pair's records have in common: which it is, and what it cost."""
    flops = costs.update(list(pair.new))
    return {
        "row": pair.row,
        "seed": pair.seed,
        "pair": pair.number,
        "key": pair.key,
        "training_flops": flops,
        "training_cost": flops / costs.one_training(),
        "seconds": sum(float(shop.record(node)["seconds"]) for node in made_for(pair.new)),
        "hardware": str(shop.record(pair.new[0].node)["hardware"]),
        "inference_flops": sum(costs.answer(piece.node) for piece in pair.new),
    }


def _compared(shop: Shop, old: Said, new: Said, part: str, among: tuple[str, ...]) -> Figures:
    """On the part's samples of some classes; beside the test part validation, on which temperatures are fitted."""
    parts = ["validation", "test"] if part == "test" and "validation" in material.held_out(shop.data) else [part]
    return compare_all(*(_predictions(shop, said, parts, among) for said in (old, new)), by=())


def _predictions(shop: Shop, said: Said, parts: list[str], among: tuple[str, ...]) -> Predictions:
    splits = [shop.data.part(part) for part in parts]
    label = np.concatenate([np.asarray(shop.data.classes)[split.y.cpu().numpy()] for split in splits])
    rows = np.isin(label, among)
    return Predictions.from_arrays(
        id=np.concatenate([split.ids for split in splits])[rows],
        label=label[rows],
        logits=np.concatenate([said.logits[part] for part in parts])[rows],
        split=np.repeat(parts, [len(split) for split in splits])[rows] if len(parts) > 1 else None,
        classes=said.classes,
    )


def _figures(found: Figures) -> dict[str, Any]:
    figures = {name: getattr(found, name) for name in FIGURES}
    return {
        "n": found.n,
        "negative_flips": found.negative_flips,
        "positive_flips": found.positive_flips,
        **{name: None if figure is None else figure.value for name, figure in figures.items()},
    }
