"""Weights in safetensors, everything else in the file's JSON header; written beside and renamed, never half there.

The header also holds the file's seal, a checksum of all its bytes, which is looked at whenever the file is read.
"""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from flipguard.files import EMPTY_SEAL, seal, seal_holds, to_disk
from flipguard.models import SplitClassifier
from flipguard.types import DamagedFile, InputError

FORMAT, SEAL = 1, "seal"


def save_checkpoint(path: str | Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON-able facts to one file; a reader sees the old file or the new one, whole."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # One name for all processes: a run folder has one writer, and what a kill leaves behind the next save takes over.
    beside = path.with_name(f".{path.name}.part")
    kept, seen = {}, set()
    for name, tensor in tensors.items():
        value = tensor.detach().contiguous().cpu()
        # The format has no aliases: weights that two layers share are written twice.
        storage = value.untyped_storage().data_ptr()
        kept[name] = value.clone() if storage in seen else value
        seen.add(storage)
    try:
        # safetensors' own save_file writes to a temporary name of its own, which a kill would leave behind for good.
        whole = io.BytesIO(
            save(kept, metadata={"flipguard": json.dumps({SEAL: EMPTY_SEAL, "format": FORMAT, **facts})})
        )
        seal(whole, at_end=False)
        beside.write_bytes(whole.getbuffer())
        to_disk(beside)
        beside.replace(path)
        to_disk(path.parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise InputError(f"the checkpoint {path} cannot be written: {error}.") from error


def load_checkpoint(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the facts of a checkpoint. Nothing in it is code: no pickle is read.

    A checkpoint that does not fit its own checksum is a DamagedFile. Those of other programs have none.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"the checkpoint {path} does not exist.")
    try:
        # In one go: safe_open opens the file twice, and a save in between would give facts and weights of two saves.
        content = path.read_bytes()
        if not seal_holds(io.BytesIO(content), at_end=False):
            raise DamagedFile(f"{path} is damaged: its content does not fit its checksum.", path)
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        facts = json.loads(header.get("__metadata__", {}).get("flipguard", "{}"))
        return tensors, {name: value for name, value in facts.items() if name != SEAL}
    except DamagedFile:
        raise
    except (SafetensorError, ValueError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DamagedFile(f"{path} is no readable safetensors file: {reason}.", path) from error


def load_facts(path: str | Path) -> dict[str, Any]:
    """The facts of a checkpoint alone, from its header: no tensor is read, and no checksum looked at."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            return facts_in(file, path.stat().st_size)
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} is no readable safetensors file: {error}.", path) from error


def facts_in(file: BinaryIO, length: int) -> dict[str, Any]:
    """The same of an open file of so many bytes; a ValueError when it is no checkpoint."""
    size = int.from_bytes(file.read(8), "little")
    try:
        header = json.loads(file.read(size) if size <= length else b"")
        facts = json.loads(header.get("__metadata__", {}).get("flipguard", "{}"))
    except (AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    return {name: value for name, value in facts.items() if name != SEAL} if isinstance(facts, dict) else {}


def load_weights(network: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> nn.Module:
    """The network with a checkpoint's weights in it, all of them and no others.

    Somebody else's network also takes them by the names that its author's code gives them.
    """
    tensors = network.from_whole(tensors) if isinstance(network, SplitClassifier) else tensors
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    if wanted != found:
        name = next(name for name in (*wanted, *found) if wanted.get(name) != found.get(name))
        there, here = _shape(found.get(name)), _shape(wanted.get(name))
        raise InputError(f"{path} holds another network: {name} is {there} there and {here} here.")
    network.load_state_dict(tensors)
    return network


def load_start(network: nn.Module, tensors: Mapping[str, Tensor], path: str | Path) -> nn.Module:
    """The network with a checkpoint's weights as a start for fine-tuning: its body's, all of them, and its head's if
    that has as many classes. A head of another size stays as it was made."""
    tensors = network.from_whole(tensors) if isinstance(network, SplitClassifier) else tensors
    fresh = {f"head.{name}": value for name, value in _head(network).items()}
    # A head is taken whole or not at all: weights and biases of two trainings do not belong together.
    fits = all(name in tensors and tensors[name].shape == value.shape for name, value in fresh.items())
    mixed = {name: value for name, value in tensors.items() if not name.startswith("head.")}
    mixed |= {name: tensors[name] if fits else value for name, value in fresh.items()}
    return load_weights(network, mixed, path)


def _head(network: nn.Module) -> dict[str, Tensor]:
    head = getattr(network, "head", None)
    if not isinstance(head, nn.Module):
        raise InputError(f"{type(network).__name__} has no head to replace: use flipguard.models.split to take it out.")
    return dict(head.state_dict())


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else f"of shape {shape}"


def nested(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors under a prefix, without it.

    >>> nested({"model.a": 1, "optimiser.a": 2}, "model.")
    {'a': 1}
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
