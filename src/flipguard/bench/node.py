"""One training of a bench, or one average of weights: what decides it, and what it rests on."""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from flipguard.bench.plan import NetworkPlan, Side, Stream
from flipguard.methods import Soup, WeightInterpolation
from flipguard.releases.plan import TrainPlan
from flipguard.training import ModelSpec, Recipe, Seeds
from flipguard.types import Method

Average = Soup | WeightInterpolation
"""Methods that train nothing."""


@dataclass(frozen=True)
class Piece:
    """One of the networks that a training leaves."""

    node: "Node"
    place: int


@dataclass(frozen=True)
class Node:
    """One training: a network's model, method, recipe and seeds, and the pieces of others that it is held to."""

    name: str
    side: Side
    seed: int
    copy: int
    plan: NetworkPlan
    model: ModelSpec
    method: Method
    recipe: Recipe
    train: TrainPlan
    references: Mapping[str, tuple[Piece, ...]] = field(hash=False)
    key: str = ""

    @property
    def label(self) -> str:
        """For people: which network this is."""
        copy = f".{self.copy}" if self.plan.copies > 1 else ""
        return f"{self.side} {self.name}{copy}, seed {self.seed}"

    @property
    def folder(self) -> str:
        return f"{self.name}.{self.side}.{self.seed}.{self.copy}-{self.key}"

    @property
    def seeds(self) -> Seeds:
        """By name and not by place, so that a bench can grow without changing what it has."""
        return Seeds(**{stream: zlib.crc32(self._source(stream).encode()) >> 1 for stream in get_args(Stream)})

    def _source(self, stream: Stream) -> str:
        """What a stream of randomness depends on."""
        if stream in self.plan.held:
            return "held"
        if stream in self.plan.shared:
            return f"shared/{self.seed}"
        return f"{self.name}/{self.side}/{self.seed}/{self.copy}"

    @property
    def part(self) -> str:
        """Which part of the bench's training data it is trained on; empty for all of it."""
        return "" if self.plan.data is None else self.plan.data.model_dump_json(exclude_none=True)

    @property
    def average(self) -> Average | None:
        """How it is made of other networks' weights; None when it is trained."""
        method: Any = self.method
        return method if isinstance(method, Average) else None

    @property
    def pieces(self) -> int:
        if self.plan.keeps == "members":
            return int(getattr(self.method, "members", 1))
        return self.recipe.cycles if self.plan.keeps == "snapshots" else 1

    def parents(self) -> "list[Node]":
        return list(dict.fromkeys(piece.node for pieces in self.references.values() for piece in pieces))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.key == self.key


def with_parents(nodes: Iterable[Node]) -> list[Node]:
    """These and all that they rest on, each after its parents."""
    found: dict[Node, None] = {}

    def add(node: Node) -> None:
        for parent in node.parents():
            add(parent)
        found.setdefault(node)

    for node in nodes:
        add(node)
    return list(found)


def made_for(pieces: Iterable[Piece]) -> list[Node]:
    """The trainings that an update pays for: all that its networks rest on, but for the old side, which is there.

    So is what stands for the old model, of whichever side: in a chain the second version is the third one's.
    """
    found: dict[Node, None] = {}

    def add(node: Node) -> None:
        if node not in found:
            found[node] = None
            for need, held_to in node.references.items():
                for piece in held_to:
                    if piece.node.side == "new" and need != "old":
                        add(piece.node)

    for piece in pieces:
        add(piece.node)
    return list(found)


def waves(todo: Iterable[Node], done: set[Node]) -> Iterator[list[Node]]:
    """Nodes whose parents are done, then those that wait for these."""
    waiting, ready = list(todo), set(done)
    while waiting:
        wave = [node for node in waiting if all(parent in ready for parent in node.parents())]
        assert wave, "the graph has no circles"
        yield wave
        ready |= set(wave)
        waiting = [node for node in waiting if node not in ready]
