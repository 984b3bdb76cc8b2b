"""Small models trained on the spot, on scikit-learn's digits, for figures that need many members."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from flipguard.analysis.members import Members
from flipguard.analysis.planes import Embedded

if TYPE_CHECKING:
    import torch


_RATE, _MOMENTUM = 0.2, 0.9
_REFERENCE = 77_777


def digit_members(
    count: int,
    *,
    width: int = 16,
    digits: tuple[int, ...] | None = None,
    rows: int | None = None,
    seed: int = 0,
    steps: int = 60,
) -> Members:
    """`count` networks of one hidden layer that differ in their seeds alone, and their logits on the test digits.

    All of them train at once, as one product of stacked matrices, on full batches with momentum.
    `digits` keeps some classes, `rows` the first few training samples: with many, networks hardly ever disagree on two
    digits, which make ELODI's two-class example (Zhao et al. 2024, section 3.2).
    """
    import torch
    from torch.nn import functional

    from flipguard.data import load_data

    data = load_data("digits")
    kept = tuple(range(10)) if digits is None else digits
    code = torch.full((10,), -1)
    code[list(kept)] = torch.arange(len(kept))
    parts = []
    for split in (data.train, data.test):
        wanted = code[split.y] >= 0
        assert isinstance(split.x, torch.Tensor)
        parts.append((split.x[wanted].flatten(1).float() / 255, code[split.y[wanted]], split.ids[wanted.numpy()]))
    (x, y, _), (test, label, ids) = parts
    x, y = x[:rows], y[:rows]
    sizes = (x.shape[1], width, len(kept))
    weights = [_initial(count, a, b, seed + place) for place, (a, b) in enumerate(pairwise(sizes))]
    parameters = [w.requires_grad_() for pair in weights for w in pair]
    speeds = [torch.zeros_like(w) for w in parameters]

    def logits(inputs: "torch.Tensor") -> "torch.Tensor":
        hidden = torch.relu(inputs @ weights[0][0] + weights[0][1])
        return hidden @ weights[1][0] + weights[1][1]

    for _ in range(steps):
        # A sum over members keeps each one's gradient its own.
        loss = functional.cross_entropy(logits(x).flatten(0, 1), y.repeat(count), reduction="sum") / len(y)
        with torch.no_grad():
            for w, speed, gradient in zip(parameters, speeds, torch.autograd.grad(loss, parameters), strict=True):
                speed.mul_(_MOMENTUM).add_(gradient)
                w.sub_(_RATE * speed)
    with torch.no_grad():
        found = logits(test).double().numpy()
    names = tuple(f"seed {seed}, member {i}" for i in range(count))
    return Members(names, tuple(ids.tolist()), np.asarray(label, np.int64), found)


def digit_embeddings(
    count: int,
    *,
    hidden: int = 16,
    feature_width: int = 2,
    digits: tuple[str, ...] | None = None,
    per_class: int | None = None,
    seed: int = 0,
    epochs: int = 20,
) -> Embedded:
    """`count` networks whose features BCT has aligned with one reference's, and those features on the test digits.

    ELODI (Zhao et al. 2024), appendix B: a reference is trained, then each network from a seed of its own so that its
    features serve the reference's frozen head, too. The reference depends on the options alone, never on `seed`.
    """
    import torch

    from flipguard.data import Batches, load_data, subset
    from flipguard.ensembles import NetworkReference
    from flipguard.methods import build_method
    from flipguard.training import ModelSpec, Recipe, Seeds, train_network

    classes = None if digits is None else list(digits)
    data = subset(load_data("digits"), classes=classes, per_class=per_class, seed=0)
    model = ModelSpec("mlp", {"hidden": (hidden,), "feature_width": feature_width})
    size = min(32, len(data.train))
    recipe = Recipe(epochs=epochs, batch_size=size, learning_rate=0.05, clip_norm=1.0)
    reference = train_network(model, data, build_method("none"), recipe, seeds=Seeds.of(_REFERENCE))
    held = {"old": NetworkReference("old", [reference])}
    everything = next(iter(Batches(data.test, len(data.test), normalisation=data.normalisation)))
    features, logits = [], []
    for member in range(count):
        network = train_network(
            model, data, build_method("bct"), recipe, seeds=Seeds.of(seed + member), references=held
        )
        with torch.no_grad():
            found = network.features(everything.x)
            features.append(found.double().numpy())
            logits.append(network.head(found).double().numpy())
    names = tuple(f"seed {seed + member}" for member in range(count))
    label = np.asarray(data.test.y, np.int64)
    members = Members(names, tuple(data.test.ids.tolist()), label, np.stack(logits))
    head = reference.head.weight.detach().double().numpy(), reference.head.bias.detach().double().numpy()
    return Embedded(members, np.stack(features), head)


def _initial(count: int, inputs: int, outputs: int, seed: int) -> tuple["torch.Tensor", "torch.Tensor"]:
    """Weights (M, inputs, outputs) by Kaiming's rule and biases (M, 1, outputs), from a generator of their own."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(count, inputs, outputs, generator=generator) * (2 / inputs) ** 0.5
    return weight, torch.zeros(count, 1, outputs)
