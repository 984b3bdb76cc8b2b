"""The networks that a bench comes to: each with what it is held to, and a key of all that decides its weights."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flipguard._nearest import nearest
from flipguard.bench.node import Average, Node, Piece
from flipguard.bench.plan import BenchSpec, NetworkPlan, PartPlan, Side, selected
from flipguard.data import Augmentation, DataSet, class_places, subset
from flipguard.methods import Elodi, FocalDistillation, Ldi, WeightInterpolation
from flipguard.methods.latent_be import BatchEnsembleDistillation, OneToOne
from flipguard.releases import material
from flipguard.releases.resolved import laid_over, recipe_of
from flipguard.releases.settled import build, card_of, settled
from flipguard.training.network import described, described_data
from flipguard.training.views import check_views
from flipguard.types import InputError


class Graph:
    """All networks of a bench, made once each however many ask for them."""

    def __init__(self, spec: BenchSpec, data: DataSet) -> None:
        self.spec, self.data = spec, data
        self._augmentation: Augmentation | None = material.augmentation(spec.data.augment)
        self.sets: dict[str, DataSet] = {"": data}
        self._described = {"": described_data(data)}
        self._made: dict[tuple[str, Side, int, int], Node] = {}

    def set_of(self, node: Node) -> DataSet:
        """What a network is trained on."""
        return self.sets[node.part]

    def augmentation(self, node: Node | None = None) -> Augmentation | None:
        return self._augmentation if node is None or node.plan.augment else None

    def row(self, name: str, side: Side, seed: int) -> list[Piece]:
        """The networks of a row's side."""
        return self.pieces(getattr(self.spec.every_row[name], side), side, seed, f"rows.{name}.{side}", ())

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
        method = self._method(plan, train, place)
        needs = _needs(method)
        if {*needs} != {*plan.references}:
            wanted = ", ".join(needs) or "none"
            given = ", ".join(plan.references) or "none"
            raise InputError(f"{place}.references: {plan.method.name} needs {wanted}, and is given {given}.")
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
        model = material.model_spec(plan.model or (self.spec.old if side == "old" else self.spec.new))
        if isinstance(method, Average):
            _check_average(plan, place)
            # It has the form of what it is made of, and knows the same data.
            first = references["ensemble" if "ensemble" in references else "new"][0].node
            plan, model = plan.model_copy(update={"data": first.plan.data}), first.model
        self._add_set(plan.data, place)
        recipe = recipe_of(train, f"{place}.train")
        node = Node(
            name,
            side,
            seed,
            copy,
            plan,
            model.for_method(method),
            method,
            # How references are asked is known only to those who learn from them.
            recipe if references and not isinstance(method, Average) else replace(recipe, views=0, dealt=False),
            train,
            references,
        )
        self._check(node, place)
        made = Node(**{**vars(node), "key": self._key(node)})
        self._made[name, side, seed, copy] = made
        return made

    def _method(self, plan: NetworkPlan, train: Any, place: str) -> Any:
        method_plan = settled(plan.method, train, f"{place}.method")
        card = card_of(method_plan, f"{place}.method")
        if card.kind == "paragon":
            raise InputError(
                f"{place}: {card.name} trains no network of its own; a row that names several is their mean."
            )
        if plan.method.ensemble is not None:
            raise InputError(f"{place}.method.ensemble: in a bench, references name the networks.")
        return build(method_plan, f"{place}.method")

    def _check(self, node: Node, place: str) -> None:
        plan, own = node.plan, self.set_of(node).classes
        if plan.keeps == "members" and node.pieces < 2:
            raise InputError(f"{place}.keeps is members, and {plan.method.name} trains one network.")
        if plan.keeps == "members" and isinstance(node.method, OneToOne):
            raise InputError(
                f"{place}.keeps is members, and {plan.method.name}'s members share their weights: they are one network."
            )
        if plan.keeps == "snapshots" and node.recipe.average:
            raise InputError(f"{place}.train.average is a mean over epochs, and keeps is snapshots, single ones.")
        if node.recipe.views:
            check_views(self.set_of(node).train, 1)
        if plan.offline and node.recipe.views:
            raise InputError(f"{place}: offline asks the references of plain samples, train.views of augmented ones.")
        if plan.offline and node.recipe.dealt:
            raise InputError(f"{place}: offline keeps what all networks say, train.dealt asks one: take either.")
        if getattr(node.average, "alpha", None) == "validation" and "validation" not in material.held_out(self.data):
            raise InputError(
                f"{place}: {plan.method.name} chooses alpha on the validation part, and the data has none."
            )
        for need, pieces in node.references.items():
            known = self.classes_of(pieces, f"{place}.references.{need}")
            if node.average is not None and known != own:
                raise InputError(f"{place}.references.{need}: weights are averaged over networks of the same classes.")
            try:
                class_places(known, own)
            except InputError as error:
                raise InputError(f"{place}.references.{need}: {error}") from error

    def classes_of(self, pieces: Sequence[Piece], place: str) -> tuple[str, ...]:
        """The classes that all of these networks know."""
        found = {self.set_of(piece.node).classes for piece in pieces}
        if len(found) > 1:
            raise InputError(f"{place}: the networks know different classes.")
        return found.pop()

    def _add_set(self, plan: PartPlan | None, place: str) -> None:
        if plan is None or (key := plan.model_dump_json(exclude_none=True)) in self.sets:
            return
        try:
            part = subset(self.data, classes=plan.classes, per_class=plan.per_class, seed=plan.subset_seed)
        except InputError as error:
            raise InputError(f"{place}.data: {error}") from error
        # Everything is evaluated on the whole data's held-out parts.
        self.sets[key] = replace(part, test=part.test.select([]), validation=None, extra={})
        self._described[key] = described_data(self.sets[key])

    def _key(self, node: Node) -> str:
        facts: dict[str, Any] = described(
            node.model,
            self._described[node.part],
            node.method,
            node.recipe,
            node.seeds,
            self.augmentation(node),
            choose_epoch="last",
        )
        facts["references"] = {
            need: [f"{piece.node.key}.{piece.place}" for piece in pieces] for need, pieces in node.references.items()
        }
        # The 0 stands where averages were once counted: networks of before keep their keys.
        facts["keeps"] = [node.plan.keeps, 0, node.plan.offline]
        if matches_probabilities(node):
            # A network of before was held to plain logarithms, and is another.
            facts["probabilities"] = "as logits of mean 0"
        if node.plan.held or node.plan.shared:
            # Runs that share all randomness are still runs of their own: how far they differ on a GPU is a figure.
            facts["run"] = [node.name, node.side, node.seed, node.copy]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def matches_probabilities(node: Node) -> bool:
    """Whether logits are matched one by one, of what answers by its mean probability."""
    method = node.method
    if not isinstance(method, Elodi | Ldi | FocalDistillation) or getattr(method, "distance", "logits") != "logits":
        return False
    whole = any(isinstance(parent.method, BatchEnsembleDistillation) for parent in node.parents())
    return method.combination == "probabilities" or whole


def _needs(method: Any) -> tuple[str, ...]:
    """The references of a method by name; what an interpolation leads to, beside the old network, is one here."""
    needs = tuple(getattr(method, "needs", ()))
    return (*needs, "new") if isinstance(method, WeightInterpolation) else needs


def _check_average(plan: NetworkPlan, place: str) -> None:
    """An average of weights is not trained."""
    own = {"copies", "model", "train", "data", "offline", "keeps", "augment", "shared", "held"}
    for name in type(plan).model_fields:
        if name in own & plan.model_fields_set:
            raise InputError(f"{place}.{name} has no meaning: {plan.method.name} averages weights, and trains nothing.")
