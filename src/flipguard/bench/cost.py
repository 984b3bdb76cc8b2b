"""What a training and an answer cost, in floating-point operations that are counted, not estimated.

A step is run on two and on four samples under a counter that sees every matrix product and convolution, also those of
references, perturbations and the backward pass; a line through both gives a step of any size, so that what a batch
costs by itself (AE-KD solves a small programme for each) is not taken for a sample's. Elementwise work is not counted,
and the device does not matter.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from flipguard.bench.graph import Graph, Node, Piece, made_for
from flipguard.data import Batches
from flipguard.ensembles import CachedReference, NetworkReference
from flipguard.methods import NoTreatment
from flipguard.releases import material
from flipguard.releases.resolved import recipe_of
from flipguard.training import Recipe, Seeds
from flipguard.training.network import new_student
from flipguard.types import Batch

FEW, MORE = 2, 4


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
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


class Costs:
    """Counts for the networks of a bench; each kind of network is counted once."""

    def __init__(self, graph: Graph) -> None:
        self._graph, self._found = graph, {}  # type: Graph, dict[tuple[Any, ...], float]

    def training(self, node: Node) -> float:
        """Operations of a whole training, its own steps and its references' answers, but not their training."""
        key = ("training", node.name, node.side)
        if key not in self._found:
            with torch.random.fork_rng(devices=[]):
                self._found[key] = self._step(node) * self._steps(node.recipe) + self._extraction(node)
        return self._found[key]

    def answer(self, node: Node) -> float:
        """Operations of one answer of the network that is released."""
        key = ("answer", node.name, node.side)
        if key not in self._found:
            with torch.random.fork_rng(devices=[]):
                self._found[key] = self._forward(fresh(node, len(self._graph.data.classes))[0])
        return self._found[key]

    def update(self, pieces: list[Piece]) -> float:
        """Operations of all trainings that an update pays for: the old model is there already."""
        return sum(self.training(node) for node in made_for(pieces))

    def one_training(self) -> float:
        """The unit: one plain training of the new model."""
        spec = self._graph.spec
        model, recipe = material.model_spec(spec.new), recipe_of(spec.train)
        with torch.random.fork_rng(devices=[]):
            student = new_student(model, len(self._graph.data.classes), NoTreatment(), recipe, Seeds.of(0))
            return self._counted_step(student, NoTreatment(), {}, recipe.batch_size) * self._steps(recipe)

    def _step(self, node: Node) -> float:
        classes = len(self._graph.data.classes)
        student = new_student(node.model, classes, node.method, node.recipe, node.seeds)
        references: dict[str, Any] = {}
        for need, pieces in node.references.items():
            networks = [fresh(piece.node, classes)[piece.place] for piece in pieces]
            if node.plan.offline:
                rows = torch.zeros(len(networks), len(self._graph.data.train), classes)
                references[need] = CachedReference(need, rows)
            else:
                references[need] = NetworkReference(need, networks)
        return self._counted_step(student, node.method, references, node.recipe.batch_size)

    def _counted_step(self, student: nn.Module, method: Any, references: dict[str, Any], size: int) -> float:
        """Of a step on `size` samples."""
        student.train()
        counts = []
        for rows in (FEW, MORE):
            # Attention as the matrix products that it is: each backend's fused form would need a formula of its own.
            with sdpa_kernel(SDPBackend.MATH), Counter() as counter:
                method(student, references, self._batch(rows)).loss.backward()
            counts.append(float(counter.total))
            student.zero_grad()
        each = (counts[1] - counts[0]) / (MORE - FEW)
        return counts[0] + each * (size - FEW)

    def _forward(self, network: nn.Module) -> float:
        with sdpa_kernel(SDPBackend.MATH), Counter() as counter, torch.no_grad():
            network.eval()(self._batch(FEW).x)
        return float(counter.total) / FEW

    def _steps(self, recipe: Recipe) -> int:
        return recipe.epochs * (len(self._graph.data.train) // recipe.batch_size)

    def _extraction(self, node: Node) -> float:
        if not node.plan.offline:
            return 0.0
        each = sum(self.answer(piece.node) for pieces in node.references.values() for piece in pieces)
        return each * len(self._graph.data.train)

    def _batch(self, rows: int) -> Batch:
        data, shift = self._graph.data, self._graph.augmentation
        batch = next(iter(Batches(data.train, rows, augmentation=shift, normalisation=data.normalisation)))
        # In the middle of training, when every ramp is up.
        return replace(batch, progress=torch.tensor(0.5))


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
