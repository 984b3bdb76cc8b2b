"""A student cut into pieces: each process of a team holds its share of every weight (torch's FSDP2).

What leaves the team is whole: the checkpoint of one process, of data-parallel ones and of a sharded team are the same
file, and so is the release.
"""

import copy
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, distributed, nn

from flipguard.types import InputError, Output

UNIT_SHARE, LEAST_SHARE = 8, 1000
"""A unit, whose weights are put together for its own pass alone, has at most one in 8 of all weights, unless a single
layer has more; what has less than one in 1000 is not worth the journey."""
_KEPT_WHOLE = {"FULL_SHARD": True, "1": True, "TRUE": True, "SHARD_GRAD_OP": False, "2": False, "FALSE": False}


def asked_by_launcher() -> bool:
    """Whether `accelerate launch` was configured to shard; what else its configuration asks for must be possible."""
    if not _is_set("ACCELERATE_USE_FSDP"):
        return False
    for variable, instead in {
        "FSDP_OFFLOAD_PARAMS": "leave it out",
        "FSDP_ACTIVATION_CHECKPOINTING": "set train.checkpoint_activations: true",
    }.items():
        if _is_set(variable):
            raise InputError(f"{variable} is not supported: {instead}.")
    _resharded()
    return True


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in ("true", "1")


def _resharded() -> bool:
    """Whether a unit's weights are given up between its forward and its backward pass."""
    several = [os.environ.get(name, "true") for name in ("FSDP_SHARDING_STRATEGY", "FSDP_RESHARD_AFTER_FORWARD")]
    for value in several:
        if value.upper() not in _KEPT_WHOLE:
            raise InputError(
                f"the sharding strategy {value} is not supported: configure FULL_SHARD, or SHARD_GRAD_OP, which keeps "
                "weights whole from the forward to the backward pass."
            )
    return all(_KEPT_WHOLE[value.upper()] for value in several)


class Sharded:
    """A student in pieces, as it is called in a step; everything else is asked of the student itself.

    `x` are a batch's inputs, by which the modules are found that can be units: those that each pass calls. BatchNorm's
    statistics are the first process's, as with data parallel training: the others' go their own way in training, where
    nobody looks at them, and are replaced before an evaluation.
    """

    def __init__(self, student: nn.Module, device: torch.device, world: int, x: Any) -> None:
        # Loaded only here: they take as long as half of torch.
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self._student = student
        for name, parameter in student.named_parameters():
            if parameter.ndim == 0:
                raise InputError(
                    f"{name} is a single number, which cannot be sharded: leave train.sharded out, or make it a vector."
                )
        self._empty = _without_weights(student)
        mesh = init_device_mesh(device.type, (world,))
        # From the inside out, each moved to the device by itself: no process ever has all of it there.
        for unit in units(student, _few(x, next(student.parameters()).device)):
            unit.register_forward_hook(_no_views)
            fully_shard(unit, mesh=mesh, reshard_after_forward=_resharded())
        self._passes = fully_shard(_Passes(student), mesh=mesh)
        self._buffers = list(student.buffers())

    def __call__(self, x: Any, *, features: bool = False) -> Output:
        logits, *found = self._pass("forward", x, features=features)
        return Output(logits, found[0] if found else None)

    forward = __call__

    def chosen(self, x: Any, which: Tensor) -> Tensor:
        """One member's logits (B, C), from the student's own way to ask only one, where it has it."""
        if hasattr(self._student, "chosen"):
            return self._pass("chosen", x, which)[0]
        return self(x).logits.index_select(0, which)[0]

    def stale_logits(self, x: Any) -> Tensor:
        """What the student's copies of itself say, where it has them."""
        return self._pass("stale_logits", x)[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._student, name)

    def _pass(self, way: str, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        if not self._student.training:
            self._settle()
        tensors: tuple[Tensor, ...] = self._passes(way, *args, **options)
        return tensors

    def whole(self, *, keep: bool) -> nn.Module | None:
        """A student with all weights, on the CPU: made by all processes together, for those that `keep` it."""
        self._settle()
        tensors = gathered(self._student.state_dict(), keep=keep)
        if not keep:
            return None
        student = copy.deepcopy(self._empty)
        # Some buffers are in no state.
        for name, buffer in self._student.named_buffers():
            student.get_buffer(name).copy_(buffer)
        student.load_state_dict(tensors, assign=True)
        return student

    def _settle(self) -> None:
        for buffer in self._buffers:
            distributed.broadcast(buffer, 0)


class _Passes(nn.Module):
    """Every way to ask a student as one call, before which its weights are put together; gives plain tensors."""

    def __init__(self, student: nn.Module) -> None:
        super().__init__()
        self.student = student

    def forward(self, way: str, *args: Any, **options: Any) -> tuple[Tensor, ...]:
        answer = (self.student if way == "forward" else getattr(self.student, way))(*args, **options)
        several = (answer.logits, answer.features) if isinstance(answer, Output) else (answer,)
        return tuple(_own(one) for one in several if one is not None)


def _own(value: Any) -> Any:
    """A tensor of its own: on a view that is then changed in place, the backward pass could not be announced."""
    return value.clone() if isinstance(value, Tensor) and value._is_view() else value


def _no_views(_unit: nn.Module, _args: Any, answer: Any) -> Any:
    return tuple(map(_own, answer)) if type(answer) is tuple else _own(answer)


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """The whole of each tensor, pieces put together on the CPU one after another; of those to `keep`, else nothing.

    All processes call it with the same names. Tensors that are whole already are kept as they are.
    """
    found: dict[str, Tensor] = {}
    # In one order in every process: that of an optimiser's loaded state is not.
    for name, value in sorted(tensors.items()):
        whole = value.full_tensor().cpu() if _is_cut(value) else value
        if keep:
            found[name] = whole
    return found


def cut_as(like: Tensor, value: Tensor) -> Tensor:
    """This process's piece of a whole value, where `like` is in pieces of the same shape; else the value itself."""
    if not _is_cut(like) or like.shape != value.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has read the same file: nothing needs to travel.
    piece: Tensor = distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return piece


def _is_cut(value: Tensor) -> bool:
    """Whether a tensor is a DTensor, of which this process has a piece."""
    return hasattr(value, "full_tensor")


def _few(x: Any, device: torch.device) -> Any:
    return {name: value[:2].to(device) for name, value in x.items()} if isinstance(x, dict) else x[:2].to(device)


def _without_weights(student: nn.Module) -> nn.Module:
    """A copy whose parameters have shapes and no content; buffers have theirs."""
    empty = {
        id(parameter): nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        for parameter in student.parameters()
    }
    return copy.deepcopy(student, empty)


def units(student: nn.Module, rows: Any) -> list[nn.Module]:
    """The modules whose weights are put together and given up again by themselves; the rest belongs to the student.

    The outermost that have no more and no less than their share, are called in every pass, and share no weight.
    """
    every = called(student, rows)
    sizes = {module: sum(parameter.numel() for parameter in module.parameters()) for module in student.modules()}
    limit = sizes[student] / UNIT_SHARE

    def within(module: nn.Module) -> Iterable[nn.Module]:
        for child in module.children():
            alone = child in every and _owns_its_weights(student, child)
            inner = [] if alone and sizes[child] <= limit else list(within(child))
            if inner or not alone or sizes[child] < sizes[student] / LEAST_SHARE:
                yield from inner
            else:
                yield child

    return list(dict.fromkeys(within(student)))


def _owns_its_weights(student: nn.Module, module: nn.Module) -> bool:
    own = {id(parameter) for parameter in module.parameters()}
    inside = set(module.modules())
    return not any(
        id(parameter) in own
        for other in student.modules()
        if other not in inside
        for parameter in other.parameters(recurse=False)
    )


def called(student: nn.Module, rows: Any) -> set[nn.Module]:
    """The modules that each pass of the student calls by themselves: for logits alone, and for features where it has
    them. In evaluation mode nothing in the student changes."""
    modes = [(module, module.training) for module in student.modules()]
    student.eval()
    try:
        every = _called(student, rows, features=False)
        # One without features says so: no method will ask for them.
        with suppress(InputError):
            every &= _called(student, rows, features=True)
    finally:
        for module, mode in modes:
            module.training = mode
    return every


def _called(student: nn.Module, rows: Any, *, features: bool) -> set[nn.Module]:
    found: set[nn.Module] = set()
    hooks = [module.register_forward_pre_hook(lambda module, _: found.add(module)) for module in student.modules()]
    try:
        # With gradients, as in training: without them some layers take a short cut past their parts.
        student(rows, features=features)
    finally:
        for hook in hooks:
            hook.remove()
    return found - {student}
