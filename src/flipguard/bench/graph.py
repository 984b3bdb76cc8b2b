"""The networks that a bench comes to: each with what it is held to, and a key of all that decides its weights."""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flipguard.bench.plan import BenchSpec, NetworkPlan, Side, selected
from flipguard.data import Augmentation, DataSet
from flipguard.models.nearest import nearest
from flipguard.releases import material
from flipguard.releases.plan import TrainPlan
from flipguard.releases.resolved import build, card_of, laid_over, recipe_of, settled
from flipguard.training import ModelSpec, Recipe, Seeds
from flipguard.training.network import described, described_data
from flipguard.types import InputError, Method


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
        return Seeds.of(zlib.crc32(f"{self.name}/{self.side}/{self.seed}/{self.copy}".encode()) >> 1)

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


class Graph:
    """All networks of a bench, made once each however many ask for them."""

    def __init__(self, spec: BenchSpec, data: DataSet) -> None:
        self.spec, self.data = spec, data
        self.augmentation: Augmentation | None = material.augmentation(spec.data.augment)
        self._data = described_data(data)
        self._made: dict[tuple[str, Side, int, int], Node] = {}

    def row(self, name: str, side: Side, seed: int) -> list[Piece]:
        """The networks of a row's side."""
        return self.pieces(getattr(self.spec.rows[name], side), side, seed, f"rows.{name}.{side}", ())

    def pieces(self, text: str, side: Side, seed: int, place: str, above: tuple[str, ...]) -> list[Piece]:
        """What a selector selects; several are joined by +."""
        if "+" in text:
            parts = (self.pieces(part.strip(), side, seed, place, above) for part in text.split("+"))
            return [piece for part in parts for piece in part]
        side, name, places = selected(text, side, place)
        if name not in self.spec.networks:
            raise InputError(f"{place}: there is no network '{name}'{nearest(name, self.spec.networks)}")
        if f"{side}.{name}" in above:
            raise InputError(f"{place}: {' → '.join((*above, f'{side}.{name}'))}: a network cannot be held to itself.")
        copies = self.spec.networks[name].copies
        nodes = [self._node(name, side, seed, copy, above) for copy in range(copies)]
        every = [Piece(node, number) for node in nodes for number in range(node.pieces)]
        if places is None:
            return every
        if places[-1] >= len(every):
            raise InputError(f"{place}: '{text}' asks for place {places[-1]}, and '{name}' has {len(every)} networks.")
        return [every[number] for number in places]

    def _node(self, name: str, side: Side, seed: int, copy: int, above: tuple[str, ...]) -> Node:
        made = self._made.get((name, side, seed, copy))
        if made is not None:
            return made
        plan, place = self.spec.networks[name], f"networks.{name}"
        train = laid_over(self.spec.train, plan.train)
        method_plan = settled(plan.method, train, f"{place}.method")
        card = card_of(method_plan, f"{place}.method")
        if card.kind != "objective":
            raise InputError(
                f"{place}: {card.name} trains no network of its own; a row that names several is their mean."
            )
        method = build(method_plan, f"{place}.method")
        needs = tuple(getattr(method, "needs", ()))
        if {*needs} != {*plan.references}:
            wanted = ", ".join(needs) or "none"
            raise InputError(
                f"{place}.references: {card.name} needs {wanted}, and is given {', '.join(plan.references) or 'none'}."
            )
        if plan.method.ensemble is not None:
            raise InputError(f"{place}.method.ensemble: in a bench, references name the networks.")
        references = {
            # The old model is the old side's; an ensemble is of the network's own side.
            need: tuple(
                self.pieces(
                    plan.references[need],
                    "old" if need == "old" else side,
                    seed,
                    f"{place}.references.{need}",
                    (*above, f"{side}.{name}"),
                )
            )
            for need in needs
        }
        model = plan.model or (self.spec.old if side == "old" else self.spec.new)
        node = Node(
            name,
            side,
            seed,
            copy,
            plan,
            material.model_spec(model).for_method(method),
            method,
            recipe_of(train, f"{place}.train"),
            train,
            references,
        )
        if plan.keeps == "members" and node.pieces < 2:
            raise InputError(f"{place}.keeps is members, and {card.name} trains one network.")
        if plan.keeps == "average" and plan.last > node.recipe.epochs:
            raise InputError(f"{place}.last is {plan.last}, and training has {node.recipe.epochs} epochs.")
        made = Node(**{**vars(node), "key": self._key(node)})
        self._made[name, side, seed, copy] = made
        return made

    def _key(self, node: Node) -> str:
        facts: dict[str, Any] = described(
            node.model, self._data, node.method, node.recipe, node.seeds, self.augmentation, choose_epoch="last"
        )
        facts["references"] = {
            need: [f"{piece.node.key}.{piece.place}" for piece in pieces] for need, pieces in node.references.items()
        }
        facts["keeps"] = [node.plan.keeps, node.plan.last if node.plan.keeps == "average" else 0, node.plan.offline]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


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
    """The trainings that an update pays for: all that its networks rest on, but for the old side, which is there."""
    found: dict[Node, None] = {}

    def add(node: Node) -> None:
        if node not in found:
            found[node] = None
            for parent in node.parents():
                if parent.side == "new":
                    add(parent)

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
