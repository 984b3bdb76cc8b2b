"""The old model, a deep ensemble, or logits that were computed once: one interface, no gradients into any weight."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flipguard.ensembles.combine import features_and_logits, stacked
from flipguard.types import Batch, InputError, Output, Reference


class NetworkReference(nn.Module):
    """One or several networks in evaluation mode; they may differ in architecture, but know the same classes.

    A network that cannot be differentiated says so by `differentiable = False`, and the reference then says it too.
    """

    dealt = False
    """Whether each row is answered by one of the networks alone (`DealtReference`)."""

    def __init__(self, name: str, networks: Sequence[nn.Module], *, classes: tuple[int, ...] | None = None) -> None:
        super().__init__()
        if not networks:
            raise InputError(f"the reference '{name}' has no members.")
        self.name, self.members, self.classes = name, len(networks), classes
        self.networks = nn.ModuleList(networks)
        columns = None if classes is None else torch.tensor(classes)
        self.register_buffer("columns", columns, persistent=False)
        self.differentiable = all(getattr(network, "differentiable", True) for network in networks)
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.eval()
        self._alike = _are_alike(networks)

    @property
    def heads(self) -> tuple[nn.Linear, ...]:
        """The members' last layers, frozen: what a new network's features are judged by in compatible training."""
        found = tuple(getattr(network, "head", None) for network in self.networks)
        for network, head in zip(self.networks, found, strict=True):
            if not isinstance(head, nn.Linear):
                raise InputError(
                    f"the reference '{self.name}' has no linear head to use: {type(network).__name__} gives only "
                    "logits; wrap it in flipguard.models.split(network, classes=C)."
                )
        return found

    def train(self, mode: bool = True) -> "NetworkReference":
        """Stays in evaluation mode: a reference's BatchNorm statistics and dropout must not move with the student's."""
        return super().train(False)

    def forward(self, batch: Batch, *, features: bool = False) -> Output:
        """Logits (M, B, C'). Gradients flow to x only if x asks for them, never to weights."""
        if not features:
            return Output(stacked([network(batch.x) for network in self.networks], self.name))
        found, logits = zip(*(features_and_logits(network, batch.x) for network in self.networks), strict=True)
        together = torch.stack(found) if len({f.shape for f in found}) == 1 else None
        return Output(stacked(logits, self.name), together)

    def chosen(self, batch: Batch, which: Tensor) -> Tensor:
        """One member's logits (B, C'), by its index in a tensor (1,), so that a captured step can draw it.

        Where the members differ by their weights alone, the drawn one's are put into the first network: one pass
        instead of M.
        """
        if not self._alike:
            return self(batch).logits.index_select(0, which)[0]
        states = [{**dict(n.named_parameters()), **dict(n.named_buffers())} for n in self.networks]
        drawn = {name: torch.stack([s[name] for s in states]).index_select(0, which)[0] for name in states[0]}
        return functional_call(self.networks[0], drawn, (batch.x,))


class OwnInputs(NetworkReference):
    """Networks that know the samples by other inputs than the student's, as texts under a tokenizer of their own.

    `inputs` are a network's own over the whole training set, (N, …) by name, in which a batch's rows are looked up;
    None for a network that takes the student's.
    """

    def __init__(
        self,
        name: str,
        networks: Sequence[nn.Module],
        inputs: Sequence[Mapping[str, Tensor] | None],
        *,
        classes: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(name, networks, classes=classes)
        self._names = [() if own is None else tuple(own) for own in inputs]
        for place, own in enumerate(inputs):
            for key, tensor in (own or {}).items():
                self.register_buffer(f"input_{place}_{key}", tensor, persistent=False)

    def forward(self, batch: Batch, *, features: bool = False) -> Output:
        """Logits (M, B, C')."""
        inputs = [self._rows(place, batch) for place in range(self.members)]
        if not features:
            return Output(stacked([n(x) for n, x in zip(self.networks, inputs, strict=True)], self.name))
        pairs = zip(self.networks, inputs, strict=True)
        found, logits = zip(*(features_and_logits(network, x) for network, x in pairs), strict=True)
        together = torch.stack(found) if len({f.shape for f in found}) == 1 else None
        return Output(stacked(logits, self.name), together)

    def chosen(self, batch: Batch, which: Tensor) -> Tensor:
        """One member's logits (B, C'), by its index in a tensor (1,)."""
        return self(batch).logits.index_select(0, which)[0]

    def _rows(self, place: int, batch: Batch) -> "Tensor | dict[str, Tensor]":
        names = self._names[place]
        if not names:
            return batch.x
        return {name: self.get_buffer(f"input_{place}_{name}")[batch.index] for name in names}


def _are_alike(networks: Sequence[nn.Module]) -> bool:
    """Whether networks have the same modules with the same settings and shapes, and so differ by weights alone."""
    return len({_structure(network) for network in networks}) == 1


def _structure(network: nn.Module) -> tuple[tuple[str, str], ...]:
    """Each module's name, class, attributes and shapes; attributes without a value to show are told by identity."""
    internal, found = vars(nn.Module()), []
    for name, module in network.named_modules():
        own = [(key, value) for key, value in vars(module).items() if key not in internal]
        tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        shapes = [(key, tuple(value.shape), str(value.dtype)) for key, value in tensors]
        found.append((name, f"{type(module)} {own} {shapes}"))
    return tuple(found)


@dataclass(frozen=True)
class CachedReference:
    """Logits over the training set, extracted once: (M, N, C'), looked up by each row's place in the set.

    Cheap at every step, but blind to augmentation: the student sees a shifted image, the reference saw the plain one.
    """

    name: str
    logits: Tensor
    classes: tuple[int, ...] | None = None
    differentiable: bool = False
    columns: Tensor | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "columns", torch.tensor(self.classes, device=self.logits.device))

    @property
    def members(self) -> int:
        return self.logits.shape[0]

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        if features:
            raise InputError(
                f"the reference '{self.name}' holds logits only: a method that needs features cannot use it."
            )
        rows = self.rows(batch).to(self.logits.device)
        return Output(self.logits[:, rows].to(batch.index.device))

    def rows(self, batch: Batch) -> Tensor:
        """Where the batch's samples stand among the logits."""
        return batch.index


@dataclass(frozen=True)
class ViewedReference(CachedReference):
    """Logits of several augmented views of the training set, (M, V·N, C'), one view after another.

    An epoch shows one view of every sample, the next epoch the next one, round and round: the reference saw what the
    student sees, and was asked V times for each sample instead of once an epoch.
    """

    views: int = 1
    steps_per_epoch: int = 1

    def rows(self, batch: Batch) -> Tensor:
        """By the epoch, which is known on the device alone in a captured step."""
        samples = self.logits.shape[1] // self.views
        return batch.index + batch.step // self.steps_per_epoch % self.views * samples

    def __call__(self, batch: Batch, *, features: bool = False) -> Output:
        said = super().__call__(batch, features=features)
        # Kept in half precision they take half the room; the loss is computed in full.
        return Output(said.logits.float())


@torch.no_grad()
def extract_logits(reference: Reference, batches: Iterable[Batch]) -> Tensor:
    """(M, N, C) over batches that visit every row once, in any order."""
    parts, places = [], []
    for batch in batches:
        parts.append(reference(batch).logits)
        places.append(batch.index)
    if not parts:
        raise InputError("there are no batches to extract logits from.")
    index, order = torch.cat(places).sort()
    missing = (index != torch.arange(len(index), device=index.device)).nonzero()
    if len(missing):
        raise InputError(
            f"logits are extracted from every row once, but row {int(missing[0])} is not there once: "
            "use batches of the whole training set, without drop_last."
        )
    return torch.cat(parts, dim=1)[:, order]
