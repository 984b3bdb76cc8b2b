"""A row of a bench for one seed: what the old and the new model said, compared as `flipguard compare` does it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.bench.cost import Costs
from flipguard.bench.graph import Graph, Node, Piece, made_for
from flipguard.bench.plan import SIDES
from flipguard.bench.work import Shop
from flipguard.comparison import Comparison, compare
from flipguard.predictions import Predictions
from flipguard.releases import material

FIGURES = (
    "error_rate_old",
    "error_rate_new",
    "negative_flip_rate",
    "relative_negative_flip_rate",
    "churn",
    "nll_new",
    "ece_new",
    "cnll_new",
    "cece_new",
)
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
    if not graph.spec.rows[row].each:
        return [Pair(row, seed, 0, tuple(old), tuple(new))]
    return [
        Pair(row, seed, number, (one,), (other,)) for number, (one, other) in enumerate(zip(old, new, strict=False))
    ]


def measured(pair: Pair, shop: Shop, costs: Costs) -> tuple[list[dict[str, Any]], dict[str, npt.NDArray[np.uint16]]]:
    """The pair's records, one for each part, and what both models said of the test part, as class codes."""
    parts = material.held_out(shop.data)
    said = {
        side: {part: np.mean([shop.logits(p.node, p.place, part) for p in pieces], axis=0) for part in parts}
        for side, pieces in (("old", pair.old), ("new", pair.new))
    }
    unit, paid = costs.one_training(), made_for(pair.new)
    flops = costs.update(list(pair.new))
    facts = {
        "row": pair.row,
        "seed": pair.seed,
        "pair": pair.number,
        "key": pair.key,
        "training_flops": flops,
        "training_cost": flops / unit,
        "seconds": sum(float(shop.record(node)["seconds"]) for node in paid),
        "hardware": str(shop.record(pair.new[0].node)["hardware"]),
        "inference_flops": sum(costs.answer(piece.node) for piece in pair.new),
    }
    records = []
    for part in parts:
        both = ["validation", "test"] if part == "test" and "validation" in parts else [part]
        found = compare(*(_predictions(shop, said[side], both) for side in SIDES), by=())
        records.append({**facts, "part": part, **_figures(found)})
    return records, {side: parts_said["test"].argmax(1).astype(np.uint16) for side, parts_said in said.items()}


def _predictions(shop: Shop, said: dict[str, npt.NDArray[Any]], parts: list[str]) -> Predictions:
    """Several parts with the split's column, so that temperatures are fitted on validation."""
    splits = [shop.data.part(part) for part in parts]
    return Predictions.from_arrays(
        id=np.concatenate([split.ids for split in splits]),
        label=np.concatenate([split.y.cpu().numpy() for split in splits]),
        logits=np.concatenate([said[part] for part in parts]),
        split=np.repeat(parts, [len(split) for split in splits]) if len(parts) > 1 else None,
        classes=shop.data.classes,
    )


def _figures(found: Comparison) -> dict[str, Any]:
    figures = {name: getattr(found, name) for name in FIGURES}
    return {
        "n": found.n,
        "negative_flips": found.negative_flips,
        "positive_flips": found.positive_flips,
        **{name: None if figure is None else figure.value for name, figure in figures.items()},
    }
