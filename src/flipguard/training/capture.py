"""A whole training step as one CUDA graph: batch, references, forward, loss, backward, update, sums.

A plain loop on a fast GPU waits for kernel launches: a ResNet-18 of width 32 launches about 700 kernels a step, most of
them shorter than the launch. Captured once and replayed, a step costs the host one call. Everything that changes from
step to step is found on the device: the rows by counters (`ResidentBatches`), the learning rate in a table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn

from flipguard.data import ResidentBatches
from flipguard.ensembles import Prefetched, prefetchable
from flipguard.models.fusion import UNTRACEABLE, fuse_layers
from flipguard.types import Batch, Reference, Step

WARM_UP = 3
_NEVER = 1 << 62


class CannotCapture(Exception):
    """The step cannot be captured; the message says why, for the log."""


class CapturedStep:
    """One student's step on a stream of its own. `replay()` enqueues it and returns at once.

    `update(batch, references)` does forward, backward and the optimiser's step; `add(step, y)` sums up. What warm-up
    changed is put back before the first replay, so that training starts from the same state as the plain loop.
    """

    def __init__(
        self,
        data: ResidentBatches,
        references: Mapping[str, Reference],
        update: Callable[[Batch, Mapping[str, Reference]], Step],
        add: Callable[[Step, Tensor], None],
        moving: Callable[[], list[Tensor]],
        rates: Sequence[tuple[Tensor, Tensor]],
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.stream = torch.cuda.Stream()
        self._data, self._update, self._add, self._rates, self._autocast = data, update, add, rates, autocast
        self._references = dict(references)
        self._ahead = {name: r for name, r in references.items() if prefetchable(r)}
        self._first_bad = torch.full((), _NEVER, dtype=torch.int64, device=self.stream.device)
        self._prime: torch.cuda.CUDAGraph | None = None
        self.stream.wait_stream(torch.cuda.current_stream())
        with self.turn(), _left_as_it_was(moving, self.stream.device):
            try:
                self._graph = self._captured()
            except RuntimeError as error:
                raise CannotCapture(
                    f"a CUDA graph of the step cannot be made ({str(error).splitlines()[0]})"
                ) from error
        self.stream.synchronize()

    def _captured(self) -> torch.cuda.CUDAGraph:
        self._data.seek(0, 0)
        self._prefetch()
        for _ in range(WARM_UP):
            self._body(self._ready())
        self.stream.synchronize()
        if self._ahead:
            self._prime = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._prime, stream=self.stream):
                self._look_ahead(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._body(self._ready())
        return graph

    def _prefetch(self) -> None:
        """What each reference says of the first batch, into memory that stays: later steps write over it."""
        if self._ahead:
            batch = self._data.current()
            with self._autocast(), torch.no_grad():
                self._said = {name: r(batch).logits.clone() for name, r in self._ahead.items()}
            self._next = {name: torch.empty_like(said) for name, said in self._said.items()}

    def _look_ahead(self, ahead: int) -> None:
        batch = self._data.current(ahead=ahead)
        target = self._next if ahead else self._said
        with self._autocast(), torch.no_grad():
            for name, reference in self._ahead.items():
                target[name].copy_(reference(batch).logits)

    def _ready(self) -> dict[str, Reference]:
        said = {name: Prefetched(r, self._said[name]) for name, r in self._ahead.items()}
        return {name: said.get(name, r) for name, r in self._references.items()}

    def _body(self, references: dict[str, Reference]) -> None:
        side = torch.cuda.Stream() if self._ahead else None
        if side is not None:
            # The references look at the next batch while the student learns from this one.
            side.wait_stream(self.stream)
            with torch.cuda.stream(side):
                self._look_ahead(1)
        batch = self._data.current()
        for reference in references.values():
            if isinstance(reference, Prefetched):
                reference.batch = batch
        for now, table in self._rates:
            # `table[step]` would read the step on the host.
            now.copy_(table.take(batch.step))
        step = self._update(batch, references)
        self._add(step, batch.y)
        bad = torch.where(torch.isfinite(step.loss), _NEVER, batch.step)
        self._first_bad.copy_(torch.minimum(self._first_bad, bad))
        if side is not None:
            self.stream.wait_stream(side)
            for name, said in self._said.items():
                said.copy_(self._next[name])
        self._data.advance()

    def seek(self, epoch: int, step: int) -> None:
        """The next replay is this step of this epoch."""
        with self.turn():
            self._data.seek(epoch, step)
            if self._prime is not None:
                self._prime.replay()

    def replay(self) -> None:
        with self.turn():
            self._graph.replay()

    def turn(self) -> AbstractContextManager[Any]:
        """Within, what is enqueued goes to this student's stream."""
        return cast(AbstractContextManager[Any], torch.cuda.stream(self.stream))

    def rows(self, epoch: int, step: int) -> Tensor:
        return self._data.rows(epoch, step)

    def first_bad(self) -> int | None:
        """The first step whose loss was not finite, if any; waits for the stream."""
        self.stream.synchronize()
        found = int(self._first_bad)
        return None if found == _NEVER else found


@contextmanager
def _left_as_it_was(moving: Callable[[], list[Tensor]], device: torch.device) -> Iterator[None]:
    """Within, steps may run; afterwards every moving tensor is as before, and one that is new is zero."""
    before = [(tensor, tensor.clone()) for tensor in moving()]
    random, host = torch.cuda.get_rng_state(device), torch.get_rng_state()
    yield
    known = {tensor.data_ptr() for tensor, _ in before}
    for tensor in moving():
        if tensor.data_ptr() not in known:
            tensor.zero_()
    for tensor, value in before:
        tensor.copy_(value)
    torch.cuda.set_rng_state(random, device)
    torch.set_rng_state(host)


_compiled: dict[Any, Any] = {}


@contextmanager
def compiled(network: nn.Module) -> Iterator[None]:
    """Within, the network's forward goes through torch.compile, shared by all networks of its class and shape."""
    kind = type(network)
    if kind not in _compiled:
        _compiled[kind] = torch.compile(kind.forward, dynamic=False)
    with _instead(network, MethodType(cast(Any, _compiled[kind]), network)):
        yield


@contextmanager
def fused(network: nn.Module) -> Iterator[None]:
    """Within, BatchNorm, sums and ReLU are single kernels, where Triton is there and the network can be traced."""
    try:
        from flipguard.training.normalisation import FusedNorm, fusable

        traced = fuse_layers(network, fusable, FusedNorm, alone=True)
    except (ImportError, *UNTRACEABLE):
        yield
        return
    with _instead(network, traced.forward):
        yield


@contextmanager
def _instead(network: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """The network's `forward` as an attribute of this one object; no name in its state changes."""
    network.forward = forward
    try:
        yield
    finally:
        del network.forward
