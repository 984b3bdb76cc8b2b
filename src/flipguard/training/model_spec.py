"""A network as a value: what it is called, its options, and what it starts from."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flipguard.checkpoints import load_checkpoint, load_start
from flipguard.files import whole_file
from flipguard.models import build_model
from flipguard.models.onnx import whole_onnx
from flipguard.models.pretrained import pretrained_folder
from flipguard.types import InputError, Method

CARRIED = {"transformers": "config.json", "onnx": "model.onnx"}
"""Kinds of networks whose architecture is a file, and what that is called in a release's folder."""


@dataclass(frozen=True)
class ModelSpec:
    """A network by name and options; a value, so that it can travel to another process or into a file.

    For fine-tuning: `init` is a checkpoint (.safetensors, or a folder with a model.safetensors) whose weights the
    network starts from, with a new head when the classes differ in number; `backbone_rate` is the share of the learning
    rate that everything but the head gets.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    init: str | None = None
    backbone_rate: float | None = None

    def __post_init__(self) -> None:
        if self.backbone_rate is not None and not self.backbone_rate > 0:
            raise InputError(f"backbone_rate must be above 0, got {self.backbone_rate}.")

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any]) -> "ModelSpec":
        """From one flat mapping, as a spec file has it: `init` and `backbone_rate` stand among the network's options.

        >>> ModelSpec.of("mlp", {"hidden": (8,), "backbone_rate": 0.1})
        ModelSpec(name='mlp', options={'hidden': (8,)}, init=None, backbone_rate=0.1)
        """
        own = {key: value for key, value in options.items() if key in ("init", "backbone_rate")}
        return cls(name, {key: value for key, value in options.items() if key not in own}, **own)

    def build(self, classes: int, seed: int) -> nn.Module:
        """A new network whose weights depend on the seed alone, and on `init`."""
        torch.manual_seed(seed)
        network = build_model(self.name, classes=classes, **self.options)
        path = self.start()
        if path is not None:
            load_start(network, load_checkpoint(path)[0], path)
        if self.backbone_rate is not None:
            network.backbone_rate = self.backbone_rate
        return network

    def start(self) -> Path | None:
        """The file that `init` means."""
        if self.init is None:
            return None
        place = Path(self.init)
        return place / "model.safetensors" if place.is_dir() else place

    def described(self) -> dict[str, Any]:
        """What decides the weights, ready for JSON: of `init` the content, not the path."""
        facts: dict[str, Any] = {"name": self.name, "options": dict(self.options)}
        path = self.start()
        if path is not None:
            if not path.is_file():
                raise InputError(f"the checkpoint {path} does not exist.")
            facts["init"] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
        if self.backbone_rate is not None:
            facts["backbone_rate"] = self.backbone_rate
        return facts

    def carry(self, folder: Path) -> None:
        """Put beside a release the file that its architecture is read from, if there is one."""
        kind, _, name = self.name.partition(":")
        if kind in CARRIED:
            content = _config(name) if kind == "transformers" else whole_onnx(Path(name))
            with whole_file(folder / CARRIED[kind]) as beside:
                beside.write_bytes(content)

    def bare(self, folder: Path | None = None) -> "ModelSpec":
        """The same architecture with no weights of its own, for a checkpoint that brings all of them.

        `folder` is a release's: what was carried into it stands in for the place that it came from.
        """
        kind, name = self.name.partition(":")[0], self.name
        if kind in CARRIED and folder is not None and (folder / CARRIED[kind]).is_file():
            name = f"{kind}:{folder / CARRIED[kind] if kind == 'onnx' else folder}"
        without: dict[str, Any] = {}
        if kind in ("timm", "transformers", "pretrained"):
            without = {"pretrained": False}
        elif kind == "torchvision":
            without = {"weights": None}
        return ModelSpec(name, {**self.options, **without})

    def for_method(self, method: Method) -> "ModelSpec":
        """With what the method asks of the network (dropout asks for dropout); most ask for nothing."""
        return replace(self, options={**self.options, **getattr(method, "model_options", {})})


def _config(name: str) -> bytes:
    source = pretrained_folder(name) / CARRIED["transformers"]
    try:
        return source.read_bytes()
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}.") from error
