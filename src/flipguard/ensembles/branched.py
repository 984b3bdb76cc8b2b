"""A student that branches: its networks share their first blocks, which are computed once, and end each in its own.

The networks are whole ones, built as any other. In all but the first, what lies before the fork is replaced by modules
that recall what the first network's have just answered, so that any network can branch whose modules are called once
each, in the order in which they are registered. What is released is the first: an ordinary network.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flipguard.ensembles.combine import features_and_logits
from flipguard.ensembles.students import decay_groups
from flipguard.types import InputError, Output


class Branches(nn.Module):
    """M networks with a common trunk: x -> (M, B, C). One graph, so that quicker kernels can be put in its place."""

    def __init__(self, networks: Sequence[nn.Module], trunk: Sequence[str]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self._names = list(trunk)
        self._trunk = [networks[0].get_submodule(name) for name in trunk]
        _refuse_tied(networks[0], trunk)
        self._said: dict[int, Any] = {}
        self._at_fork: list[int] = []
        for network in networks[1:]:
            _share_parameters(networks[0], network, trunk)
            for place, name in enumerate(trunk):
                parent, _, last = name.rpartition(".")
                setattr(network.get_submodule(parent), last, Recalled(self._trunk[place], self._said, place))

    @property
    def share_nothing(self) -> bool:
        return not self._names

    def forward(self, x: Any) -> Tensor:
        return torch.stack(self.each(lambda network: network(x)))

    def each(self, ask: Callable[[nn.Module], Any]) -> list[Any]:
        """What every network answers; the trunk is computed for the first, and nothing of it is kept."""
        hooks = [module.register_forward_hook(self._keep(place)) for place, module in enumerate(self._trunk)]
        try:
            answers = [ask(self.networks[0])]
            if self._versions() != self._at_fork:
                raise InputError(
                    "after the fork the network changes in place what its branches share: take another share for own."
                )
            return answers + [ask(network) for network in self.networks[1:]]
        finally:
            for hook in hooks:
                hook.remove()
            self._said.clear()

    def _keep(self, place: int) -> Callable[[Any, Any, Any], None]:
        def hook(module: nn.Module, given: Any, said: Any) -> None:
            if place in self._said:
                raise InputError(
                    f"the network calls {self._names[place]} more than once, and what its branches share is computed "
                    "once: it cannot branch there."
                )
            self._said[place] = said
            if place == len(self._trunk) - 1:
                self._at_fork = self._versions()

        return hook

    def _versions(self) -> list[int]:
        """How often each of the trunk's answers has been changed in place."""
        tensors = (said for said in self._said.values() if isinstance(said, Tensor))
        return [0 if said.is_inference() else said._version for said in tensors]


class BranchedStudent(nn.Module):
    """M networks on one batch, of which the last share `own` of the blocks is each one's own; the first is released.

    Blocks are what stands in the network's (nested) `Sequential` and `ModuleList`, and what stands beside these: for a
    ResNet-18 the stem, eight residual blocks and the head, of which `own=0.5` leaves the last two stages and the head.
    With `own=1` they share nothing, and stand side by side.
    """

    def __init__(
        self, build: Callable[[int], nn.Module], members: int, *, own: float = 0.5, decay_all: bool = True
    ) -> None:
        super().__init__()
        # The others are taken apart: who gave a network of their own keeps it whole.
        networks = [build(0), *(copy.deepcopy(build(member)) for member in range(1, members))]
        self.members, self.decay_all = members, decay_all
        self.branches = Branches(networks, trunk_of(networks[0], own))

    def forward(self, x: Any, *, features: bool = False) -> Output:
        """Logits (M, B, C); features (M, B, D) when asked for."""
        if not features:
            return Output(self.branches(x))
        found, logits = zip(*self.branches.each(lambda network: features_and_logits(network, x)), strict=True)
        return Output(torch.stack(logits), torch.stack(found))

    @property
    def passes(self) -> list[nn.Module]:
        """What is called as a whole: the trunk has no place of its own in any one network's pass."""
        return [self.branches]

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [g for network in self.branches.networks for g in decay_groups(network, decay_all=self.decay_all)]

    def release(self) -> nn.Module:
        return self.branches.networks[0]

    @property
    def networks(self) -> list[nn.Module]:
        """The branches as whole networks: the first, and copies of it in which the others' own parts stand."""
        first, *others = self.branches.networks
        if self.branches.share_nothing:
            return [first, *(copy.deepcopy(other) for other in others)]
        copies = [copy.deepcopy(first) for _ in others]
        for whole, other in zip(copies, others, strict=True):
            whole.load_state_dict(first.state_dict() | other.state_dict())
        return [first, *copies]


class Recalled(nn.Module):
    """Stands for a module of the trunk: answers what the first network's has just answered, whatever it is given."""

    def __init__(self, first: nn.Module, said: dict[int, Any], place: int) -> None:
        super().__init__()
        # Not registered: its weights are the first network's alone.
        self.__dict__["_first"] = first
        self._said, self._place = said, place

    def __getattr__(self, name: str) -> Any:
        """What a network reads of a module beside calling it, such as a layer's dtype."""
        return getattr(self.__dict__["_first"], name)

    def forward(self, *given: Any, **named: Any) -> Any:
        if self._place not in self._said:
            raise InputError("branches keep no activations to compute again from: leave checkpoint_activations out.")
        return self._said[self._place]


def _refuse_tied(network: nn.Module, trunk: Sequence[str]) -> None:
    """A weight on both sides of the fork would be one in the first network and two in the others."""
    shared = {id(weight) for name in trunk for weight in network.get_submodule(name).parameters()}
    inside = tuple(f"{name}." for name in trunk)
    for name, weight in network.named_parameters(remove_duplicate=False):
        if id(weight) in shared and not name.startswith(inside):
            raise InputError(f"{name} is also a weight of what its branches would share: take another share for own.")


def _share_parameters(first: nn.Module, other: nn.Module, trunk: Sequence[str]) -> None:
    """Parameters that stand beside the trunk's modules, such as a ViT's class token, are the first network's in all.

    As plain attributes: each is trained, saved and listed once.
    """
    for name in {name.rpartition(".")[0] for name in trunk} | ({""} if trunk else set()):
        mine, theirs = first.get_submodule(name), other.get_submodule(name)
        for parameter in [key for key, value in theirs.named_parameters(recurse=False) if value is not None]:
            shared = getattr(mine, parameter)
            delattr(theirs, parameter)
            theirs.__dict__[parameter] = shared


def trunk_of(network: nn.Module, own: float) -> list[str]:
    """The names of the modules before the fork, as large as they come, in the order of registration; none for own=1.

    >>> blocks = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 2)))
    >>> trunk_of(nn.ModuleDict({"stem": nn.Linear(2, 3), "blocks": blocks, "head": nn.Linear(2, 2)}), 0.5)
    ['stem', 'blocks.0']
    """
    if not 0 < own <= 1:
        raise InputError(f"own must be above 0, and at most 1, got {own}.")
    if own == 1:
        return []
    blocks = [*_blocks("", network, flat=False)]
    if len(blocks) < 2:
        blocks = [*_blocks("", network, flat=True)]
    if len(blocks) < 2:
        # No chain to fork in: the head alone is each branch's own.
        blocks = _parts("", network)
    if len(blocks) < 2:
        raise InputError("a network branches between two of its modules, and this one has no two of them.")
    kept = max(1, min(len(blocks) - 1, round(own * len(blocks))))
    return [*_before(network, blocks[-kept])]


def _parts(name: str, module: nn.Module) -> list[str]:
    """The modules with weights that a network consists of; of one that only wraps another, the other's.

    >>> _parts("", nn.ModuleDict({"inside": nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 2)})}))
    ['inside.body', 'inside.head']
    """
    found = {
        f"{name}.{child}" if name else child: inner
        for child, inner in module.named_children()
        if any(True for _ in inner.parameters())
    }
    return _parts(*next(iter(found.items()))) if len(found) == 1 else list(found)


def _blocks(name: str, module: nn.Module, *, flat: bool) -> Iterator[str]:
    """What stands in a list of modules and has weights; when `flat`, also layers that have no parts of their own."""
    for child, inner in module.named_children():
        below = f"{name}.{child}" if name else child
        if _has_blocks(inner, flat=flat):
            yield from _blocks(below, inner, flat=flat)
        elif _is_block(module, inner, flat=flat):
            yield below


def _has_blocks(module: nn.Module, *, flat: bool) -> bool:
    return any(_is_block(module, child, flat=flat) or _has_blocks(child, flat=flat) for child in module.children())


def _is_block(parent: nn.Module, module: nn.Module, *, flat: bool) -> bool:
    weights = any(True for _ in module.parameters())
    return (
        isinstance(parent, nn.Sequential | nn.ModuleList) and weights and (flat or any(True for _ in module.children()))
    )


def _before(network: nn.Module, fork: str) -> Iterator[str]:
    """Modules that are registered before the fork and do not contain it; lists, which nobody calls, by their parts."""
    inside = ""
    for name in fork.split("."):
        for sibling, module in network.get_submodule(inside).named_children():
            if sibling == name:
                break
            yield from _called(f"{inside}.{sibling}" if inside else sibling, module)
        inside = f"{inside}.{name}" if inside else name


def _called(name: str, module: nn.Module) -> Iterator[str]:
    if not isinstance(module, nn.ModuleList | nn.ModuleDict):
        yield name
        return
    for child, inner in module.named_children():
        yield from _called(f"{name}.{child}", inner)
