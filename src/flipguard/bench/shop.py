"""What all networks of a bench have in common: data, a device, and a folder in which each has one of its own."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from flipguard.bench.cost import fresh
from flipguard.bench.kept import read_arrays
from flipguard.bench.node import Node
from flipguard.checkpoints import load_checkpoint, load_weights
from flipguard.data import Augmentation, Batches, DataSet, class_places
from flipguard.ensembles import CachedReference, NetworkReference, extract_logits
from flipguard.releases import material
from flipguard.releases.folder import read_json
from flipguard.training.turns import Turns
from flipguard.training.views import number_of_views
from flipguard.types import DamagedFile

RECORD, LOGITS = "record.json", "logits.npz"


@dataclass(frozen=True)
class Shop:
    """`sets` are the parts of the data that networks are trained on, by name; the empty name has all of it.

    `kept` is an address at which networks are kept for machines that do not see the folder, `turns` are taken with
    other commands that train on the same device.
    """

    sets: Mapping[str, DataSet]
    augmentation: Augmentation | None
    folder: Path
    device: str
    kept: str | None = None
    turns: Turns | None = None

    @property
    def data(self) -> DataSet:
        return self.sets[""]

    def set_of(self, node: Node) -> DataSet:
        """What a network is trained on."""
        return self.sets[node.part]

    def augmentation_of(self, node: Node) -> Augmentation | None:
        return self.augmentation if node.plan.augment else None

    def home(self, node: Node) -> Path:
        return self.folder / node.folder

    def is_done(self, node: Node) -> bool:
        return (self.home(node) / RECORD).exists()

    def record(self, node: Node) -> dict[str, Any]:
        """How long the training took, and on what."""
        return read_json(self.home(node) / RECORD)

    def network(self, node: Node, place: int) -> nn.Module:
        """A piece as it was kept, on the device."""
        path = self.home(node) / f"{place}.safetensors"
        if not path.exists():
            raise DamagedFile(f"{path} is gone, though the record beside it is there.", path)
        tensors, _ = load_checkpoint(path)
        network = fresh(node, len(self.set_of(node).classes))[place]
        return load_weights(network, tensors, path).eval().to(self.device)

    def networks(self, node: Node, need: str) -> list[nn.Module]:
        """Those that a network is held to, or made of."""
        return [self.network(piece.node, piece.place) for piece in node.references[need]]

    def reference(self, node: Node, need: str) -> Any:
        """What a network is held to: it may know fewer classes."""
        own = self.set_of(node)
        known = self.set_of(node.references[need][0].node).classes
        places = class_places(known, own.classes)
        reference = NetworkReference(need, self.networks(node, need), classes=places).to(self.device)
        if not node.plan.offline:
            return reference
        rows = Batches.asked(own.train, normalisation=own.normalisation, device=self.device)
        return CachedReference(need, extract_logits(reference, rows), classes=places)

    def asked(self, node: Node) -> dict[str, list[Hashable]]:
        """What its references are asked before the first step, by a key for each network; nothing without views.

        Equal keys of several nodes stand for the same weights, samples and views.
        """
        shift, train = self.augmentation_of(node), self.set_of(node).train
        views = number_of_views(node.recipe, shift, train)
        if not views:
            return {}
        draws = None if shift is None or isinstance(train.x, dict) else node.seeds.augment
        seen = (node.part, draws, views, node.recipe.precision)
        return {
            need: [(piece.node.key, piece.place, *seen) for piece in pieces] for need, pieces in node.references.items()
        }

    def logits(self, node: Node, place: int, part: str) -> npt.NDArray[np.float32]:
        """What a piece says of a part of the data, in its order."""
        name = f"{place}.{part}"
        return read_arrays(self.home(node) / LOGITS, [name])[name]

    def names(self, node: Node) -> list[str]:
        """All that its logits are kept by."""
        return [f"{place}.{part}" for place in range(node.pieces) for part in material.held_out(self.data)]
