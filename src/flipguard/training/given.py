"""What a caller gives, as what training takes: a method by name, networks as references, a loader's rows."""

import copy
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.ensembles import CachedReference, NetworkReference, SingleStudent
from flipguard.methods import METHODS, build_method
from flipguard.types import InputError, Method, Reference


def objective_of(method: str | Method, options: Mapping[str, Any] | None = None) -> Method:
    """A method that trains a network as it is given: by name and options, or as it is."""
    if not isinstance(method, str):
        if options:
            raise InputError("options belong to a method by name: this one is built already.")
        return method
    built: Method = build_method(method, **(options or {}))
    if METHODS[method].kind != "objective":
        raise InputError(f"'{method}' is not trained by fit: it combines networks that are.")
    if getattr(built, "model_options", None):
        raise InputError(f"'{method}' changes the network itself: build yours with it, and use method='none'.")
    return built


def student_of(method: Method, model: nn.Module, peers: Sequence[nn.Module], *, decay_all: bool) -> nn.Module:
    """What the method trains: the model alone, or beside its peers."""
    networks = [model, *peers]
    if any(_alike(one, other) for one, other in combinations(networks, 2)):
        raise InputError("the model and its peers must be different networks, each with start weights of its own.")

    def build(member: int) -> nn.Module:
        if member >= len(networks):
            raise InputError(
                f"the method trains more networks than the {len(networks)} given: pass peers=[…], networks of the same "
                "classes with start weights of their own."
            )
        return networks[member]

    made = getattr(method, "student", None)
    student: nn.Module = SingleStudent(model, decay_all=decay_all) if made is None else made(build, decay_all=decay_all)
    return student


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Two networks that would stay equal: the same one twice, or copies of each other's weights."""
    mine, theirs = dict(one.named_parameters()), dict(other.named_parameters())
    return one is other or (
        mine.keys() == theirs.keys()
        and all(
            weight.shape == theirs[name].shape and torch.equal(weight, theirs[name].to(weight.device))
            for name, weight in mine.items()
        )
    )


def references_of(
    method: Method, old: nn.Module | Reference | None, ensemble: Sequence[nn.Module] | Reference | None
) -> dict[str, Reference]:
    """The references by name. Plain networks are copied, so that training cannot move what it is held to."""
    given: dict[str, Any] = {"old": old, "ensemble": ensemble}
    for name in getattr(method, "needs", ()):
        if given[name] is None:
            raise InputError(f"the method needs a reference: pass {name}= to fit.")
    found: dict[str, Reference] = {}
    for name, value in given.items():
        if isinstance(value, Sequence) or (isinstance(value, nn.Module) and not isinstance(value, Reference)):
            networks = list(value) if isinstance(value, Sequence) else [value]
            found[name] = NetworkReference(name, copy.deepcopy(networks))
        elif value is not None:
            found[name] = value
    return found


def check_live(references: Mapping[str, Reference]) -> None:
    """For rows without ids: logits that were computed once are found by a row's place in the set alone."""
    for name, reference in references.items():
        if isinstance(reference, CachedReference):
            raise InputError(f"the reference '{name}' holds logits by row: batches must say which rows they hold.")


def row_of(batch: Any) -> tuple[Any, Any, Any]:
    """A loader's batch as (x, y, ids); ids are None where it has none."""
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise InputError(f"the loader must yield (x, y) or (x, y, id), got {found}.")
    return batch[0], batch[1], batch[2] if len(batch) == 3 else None


def moved_to(x: Any, device: str) -> Any:
    """A tensor, or a dict of them, on a device."""
    return {name: value.to(device) for name, value in x.items()} if isinstance(x, dict) else x.to(device)


def index_of(names: Any, first: int, rows: int) -> Tensor:
    """Whole-number ids are the rows' places in the set; without them, the place in the loader's order."""
    if isinstance(names, Tensor) and not names.is_floating_point():
        return names.long()
    return torch.arange(first, first + rows)
