"""A version that is there already as a network: another run's release, a checkpoint, an ONNX file, a user's code."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from flipguard.checkpoints import load_checkpoint, load_weights
from flipguard.data import Encoder, read_encoder
from flipguard.releases import material
from flipguard.releases.folder import version_home
from flipguard.releases.plan import NormalisationPlan
from flipguard.releases.provenance import facts_of
from flipguard.releases.references import Task
from flipguard.releases.release import TOKENIZER, Release, load_release
from flipguard.training import ModelSpec
from flipguard.types import InputError, Normalisation


def given_release(task: Task, *, trust: bool) -> Release:
    """The network in whatever form the version has it, under the version's name."""
    version = task.version
    if version.run is not None:
        found = load_release(version_home(Path(version.run)), trust=trust)
        source = {"source": version.run, "test": task.data.fingerprint("test")}
        return replace(found, name=task.name, facts={**found.facts, **source})
    if version.factory is not None:
        model = material.model_spec(version.factory)
        classes = tuple(version.classes or task.data.classes)
        network = material.build(model, len(classes), 0, f"version {task.name}").eval()
        return _release(task, network, model, classes, version.factory.name, {})
    assert version.checkpoint is not None
    if version.checkpoint.endswith(".onnx"):
        return _from_onnx(task, version.checkpoint)
    return _from_weights(task, version.checkpoint)


def _from_onnx(task: Task, path: str) -> Release:
    version, told = task.version, _beside(path)
    classes = tuple(version.classes or told.get("classes") or task.data.classes)
    model = ModelSpec(f"onnx:{path}", {} if version.output is None else {"output": version.output})
    network = material.build(model, len(classes), 0, f"version {task.name}")
    return _release(task, network, model, classes, path, told)


def _from_weights(task: Task, path: str) -> Release:
    version = task.version
    assert version.model is not None
    if not path.endswith(".safetensors"):
        raise InputError(f"version {task.name}: {path} is no .safetensors file; nothing else is loaded.")
    model = material.model_spec(version.model)
    tensors, told = load_checkpoint(path)
    # A release's weights tell of themselves; an export has a file beside it that does.
    told = told if "classes" in told else _beside(path)
    classes = tuple(version.classes or told.get("classes") or task.data.classes)
    network = material.build(model, len(classes), 0, f"version {task.name}")
    load_weights(network, tensors, path).eval()
    return _release(task, network, model, classes, path, told)


def _release(
    task: Task, network: nn.Module, model: ModelSpec, classes: tuple[str, ...], source: str, told: Mapping[str, Any]
) -> Release:
    facts: dict[str, Any] = {"source": source, **facts_of(task)}
    encoder = task.data.encoder if task.data.encoder is None else _tokenizer(source, told) or task.data.encoder
    return Release(task.name, network, model, classes, _normalisation(task, told), facts=facts, encoder=encoder)


def _tokenizer(source: str, told: Mapping[str, Any]) -> Encoder | None:
    """What lies beside the network: an export names it, and a release's folder has it under one name."""
    name = told.get("preprocessing", {}).get("tokenizer") if "preprocessing" in told else TOKENIZER
    path = Path(source).with_name(Path(str(name)).name)
    return read_encoder(path) if told and name and path.is_file() else None


def _beside(path: str) -> dict[str, Any]:
    """What `flipguard export` wrote beside a network: its classes, and how its inputs are scaled."""
    try:
        found = json.loads(Path(f"{path}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    kinds = {"classes": list, "preprocessing": dict, "checked_on": int}
    ours = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
    return found if ours else {}


def _normalisation(task: Task, told: Mapping[str, Any]) -> Normalisation | None:
    """How the network's inputs are scaled: as the spec says, else as the network's own file, else as the data."""
    wanted, data, place = task.version.normalisation, task.data, f"version {task.name}.normalisation"
    if wanted is not None or "normalisation" not in told or data.kind == "text":
        return material.scale_of(wanted, data, place)
    if told.get("preprocessing", {}).get("inside"):
        return None
    try:
        return material.scale_of(NormalisationPlan.of(told["normalisation"]) or "none", data, place)
    except ValueError as error:
        raise InputError(f"{place}: what the network's file tells has no mean and std for each channel.") from error
