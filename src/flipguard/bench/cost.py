"""What a training and an answer cost, in floating-point operations that are counted, not estimated.

A step is run on two and on four samples under a counter that sees every matrix product and convolution, also those of
references, perturbations and the backward pass; a line through both gives a step of any size, so that what a batch
costs by itself (AE-KD solves a small programme for each) is not taken for a sample's. Elementwise work is not counted,
and the device does not matter.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from flipguard.bench.graph import Graph
from flipguard.bench.node import Node, Piece, made_for
from flipguard.data import Batches, DataSet, class_places
from flipguard.ensembles import CachedReference, NetworkReference, average_weights, deal
from flipguard.methods import NoTreatment
from flipguard.releases import material
from flipguard.releases.resolved import recipe_of
from flipguard.training import Recipe, Seeds
from flipguard.training.capture import first_line
from flipguard.training.network import new_student
from flipguard.training.scales import at_scale, spans
from flipguard.training.threads import one_thread
from flipguard.training.views import number_of_views
from flipguard.types import Batch, FlipguardError, InputError

FEW = 2
GROUPS, MASK = 9, 10
"""Places among the arguments of a convolution's backward: its groups, and which gradients are wanted."""


class Counter(TorchDispatchMode):  # type: ignore[misc]
    """Adds up the operations of what runs within.

    torch's own FlopCounterMode also tracks modules, and stumbles over gradients that are taken inside of a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        if function._overloadpacket is torch.ops.aten.convolution_backward and args[GROUPS] > 1:
            # torch counts the weights' gradient as if every input channel met every output channel.
            of_input, of_weight = args[MASK][0], args[MASK][1]
            self.total += count(*args[:MASK], [of_input, False, False], out_val=out)
            self.total += count(*args[:MASK], [False, of_weight, False], out_val=out) / args[GROUPS]
        elif count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


class Costs:
    """Counts for the networks of a bench; equal steps are counted once, of whatever side, name or length."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._found = graph, {}  # type: Graph, dict[tuple[Any, ...], float]
        self._networks: dict[tuple[Any, ...], list[nn.Module]] = {}

    def training(self, node: Node) -> float:
        """Operations of a whole training, its own steps and its references' answers, but not their training."""
        held_to = [(need, [self._form(p.node) for p in pieces]) for need, pieces in node.references.items()]
        asked = self._asked(node)
        asking = (asked > 0, node.recipe.dealt)
        key = ("step", self._form(node), repr(node.method), node.recipe.batch_size, *asking, str(held_to))
        total = self._extraction(node)
        for scale, epochs in spans(node.recipe):
            if (*key, scale) not in self._found:
                with torch.random.fork_rng(devices=[]), _named(node):
                    tried = node.average is not None
                    self._found[*key, scale] = self._tried(node) if tried else self._step(node, scale)
            total += self._found[*key, scale] * self._steps(len(epochs), node.recipe, self._graph.set_of(node))
        return total

    def answer(self, node: Node) -> float:
        """Operations of one answer of the network that is released."""
        key = ("answer", self._form(node))
        if key not in self._found:
            self._found[key] = self._forward(self._fresh(node)[0])
        return self._found[key]

    def _form(self, node: Node) -> tuple[Any, ...]:
        """Networks of one form cost the same: they differ by weights alone."""
        own = repr(node.method) if hasattr(node.method, "student") else ""
        model = json.dumps(node.model.described(), sort_keys=True, default=str)
        return (model, len(self._graph.set_of(node).classes), own, node.plan.keeps, node.pieces)

    def _fresh(self, node: Node) -> list[nn.Module]:
        """A network of each piece's form."""
        form = self._form(node)
        if form not in self._networks:
            with torch.random.fork_rng(devices=[]):
                self._networks[form] = fresh(node, form[1])
        return self._networks[form]

    def update(self, pieces: list[Piece]) -> float:
        """Operations of all trainings that an update pays for: the old model is there already."""
        return sum(self.training(node) for node in made_for(pieces))

    def one_training(self) -> float:
        """The unit: one plain training of the new model."""
        spec = self._graph.spec
        model, recipe = material.model_spec(spec.new), recipe_of(spec.train)
        with torch.random.fork_rng(devices=[]):
            student = new_student(model, len(self._graph.data.classes), NoTreatment(), recipe, Seeds.of(0))
            total = 0.0
            for scale, epochs in spans(recipe):
                shown = at_scale(student, scale)
                step = self._counted_step(shown, NoTreatment(), {}, recipe.batch_size, self._graph.data)
                total += step * self._steps(len(epochs), recipe, self._graph.data)
            return total

    def _tried(self, node: Node) -> float:
        """An average trains nothing; whether the networks can be averaged at all is said at once."""
        pieces = [piece for held_to in node.references.values() for piece in held_to]
        average_weights([self._fresh(piece.node)[piece.place] for piece in pieces])
        return 0.0

    def _step(self, node: Node, scale: float) -> float:
        data = self._graph.set_of(node)
        student = at_scale(new_student(node.model, len(data.classes), node.method, node.recipe, node.seeds), scale)
        references: dict[str, Any] = {}
        for need, pieces in node.references.items():
            known = self._graph.set_of(pieces[0].node).classes
            places = class_places(known, data.classes)
            if self._asked(node):
                rows = torch.zeros(len(pieces), len(data.train), len(known))
                references[need] = CachedReference(need, rows, classes=places)
            else:
                networks = [self._fresh(piece.node)[piece.place] for piece in pieces]
                references[need] = NetworkReference(need, networks, classes=places)
        if not node.recipe.dealt:
            return self._counted_step(student, node.method, references, node.recipe.batch_size, data)
        # So many rows that each network has some.
        most = max((reference.members for reference in references.values()), default=1)
        dealt = deal(references, node.recipe.batch_size // node.recipe.accumulate)
        return self._counted_step(student, node.method, dealt, node.recipe.batch_size, data, few=FEW * most)

    def _counted_step(
        self, student: Any, method: Any, references: dict[str, Any], size: int, data: DataSet, few: int = FEW
    ) -> float:
        """Of a step on `size` samples."""
        student.train()
        counts = []
        for rows in (few, 2 * few):
            with _counted() as counter:
                method(student, references, self._batch(rows, data)).loss.backward()
            counts.append(float(counter.total))
            student.zero_grad()
        each = (counts[1] - counts[0]) / few
        return counts[0] + each * (size - few)

    def _forward(self, network: nn.Module) -> float:
        with _counted() as counter, torch.no_grad():
            network.eval()(self._batch(FEW, self._graph.data).x)
        return float(counter.total) / FEW

    @staticmethod
    def _steps(epochs: int, recipe: Recipe, data: DataSet) -> int:
        return epochs * (len(data.train) // recipe.batch_size)

    def _asked(self, node: Node) -> int:
        """How often references are asked of each sample before the first step; 0 when they are asked at every step."""
        if node.plan.offline:
            return 1
        return number_of_views(node.recipe, self._graph.augmentation(node), self._graph.set_of(node).train)

    def _extraction(self, node: Node) -> float:
        asked = self._asked(node)
        if not asked:
            return 0.0
        each = sum(self.answer(piece.node) for pieces in node.references.values() for piece in pieces)
        return each * len(self._graph.set_of(node).train) * asked

    def _batch(self, rows: int, data: DataSet) -> Batch:
        shift = self._graph.augmentation()
        batch = next(iter(Batches(data.train, rows, augmentation=shift, normalisation=data.normalisation)))
        # In the middle of training, when every ramp is up.
        return replace(batch, progress=torch.tensor(0.5))


@contextmanager
def _counted() -> Iterator[Counter]:
    """Attention as the matrix products that it is: each backend's fused form would need a formula of its own.

    By one thread: a few samples need no more, and benches that begin together would hinder each other.
    """
    with one_thread(), sdpa_kernel(SDPBackend.MATH), Counter() as counter:
        yield counter


@contextmanager
def _named(node: Node) -> Iterator[None]:
    """Within, what goes wrong says in which network."""
    try:
        yield
    except FlipguardError as error:
        raise InputError(f"networks.{node.name}: {error}") from error
    except (TypeError, ValueError, RuntimeError, IndexError, AssertionError) as error:
        raise InputError(f"networks.{node.name} cannot take a step: {first_line(error)}") from error


def fresh(node: Node, classes: int) -> list[nn.Module]:
    """The pieces of a training before it: networks of the same form."""
    student: Any = new_student(node.model, classes, node.method, node.recipe, node.seeds)
    if node.plan.keeps == "members":
        return list(student.networks)
    released: nn.Module = student.release()
    if node.plan.keeps == "release":
        return [released]
    rebuilt = (new_student(node.model, classes, node.method, node.recipe, node.seeds) for _ in range(node.pieces))
    return [one.release() for one in rebuilt]
