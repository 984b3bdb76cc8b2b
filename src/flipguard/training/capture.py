"""A whole training step as one CUDA graph: batch, references, forward, loss, backward, update, sums.

A plain loop on a fast GPU waits for kernel launches: a ResNet-18 of width 32 launches about 700 kernels a step, most of
them shorter than the launch. Captured once and replayed, a step costs the host one call. Everything that changes from
step to step is found on the device: the rows by counters (`ResidentBatches`), the learning rate in a table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from flipguard.data import ResidentBatches
from flipguard.ensembles import Prefetched, prefetchable
from flipguard.types import Batch, Reference, Step

WARM_UP = 3
_NEVER = 1 << 62


class CannotCapture(Exception):
    """The step cannot be captured, or not in the way that was asked for; the message says why, for the log."""


@dataclass(frozen=True)
class Part:
    """What a step needs of one run: where its batches come from, what it is held to, its sums, the tensors that its
    update changes, and (the learning rate now, the rates by step) of each of its parameter groups."""

    data: ResidentBatches
    references: Mapping[str, Reference]
    add: Callable[[Step, Tensor], None]
    moving: Callable[[], list[Tensor]]
    rates: Sequence[tuple[Tensor, Tensor]]


Update = Callable[[list[Batch], list[dict[str, Reference]]], list[Step]]
"""Forward, backward and the optimiser's step of every part."""


class CapturedStep:
    """One step for one student, or for several together, on a stream of its own: `replay()` enqueues it and returns.

    What warm-up changed is put back before the first replay, also when the capture fails, so that training starts from
    the same state as the plain loop. Off the GPU there is no graph: the same step is called as it is.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        update: Update,
        autocast: Callable[[], AbstractContextManager[Any]],
        device: torch.device,
    ) -> None:
        on_gpu = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self._parts, self._update, self._autocast = list(parts), update, autocast
        # Looking ahead needs a second stream; without one a reference is asked when it is needed.
        self._ahead = [{n: r for n, r in part.references.items() if on_gpu and prefetchable(r)} for part in parts]
        self._first_bad = torch.full((len(parts),), _NEVER, dtype=torch.int64, device=device)
        self._prime: torch.cuda.CUDAGraph | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        with self.turn(), _left_as_it_was(self._moving, device):
            try:
                self._prepare()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise CannotCapture(
                    f"a CUDA graph of the step cannot be made ({first_line(error)})"
                    if on_gpu
                    else f"the step fails ({first_line(error)})"
                ) from error
        self._wait()

    def _moving(self) -> list[Tensor]:
        return [self._first_bad, *(tensor for part in self._parts for tensor in part.moving())]

    def _wait(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()

    def _prepare(self) -> None:
        """Warm up, and on a GPU capture."""
        for part in self._parts:
            part.data.seek(0, 0)
        self._prefetch()
        for _ in range(1 if self.stream is None else WARM_UP):
            self._body(self._ready())
        self._wait()
        if self.stream is None:
            return
        if any(self._ahead):
            self._prime = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._prime, stream=self.stream):
                self._look_ahead(0)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self.stream):
            self._body(self._ready())

    def _prefetch(self) -> None:
        """What each reference says of the first batch, into memory that stays: later steps write over it."""
        self._said: list[dict[str, Tensor]] = []
        for part, ahead in zip(self._parts, self._ahead, strict=True):
            batch = part.data.current() if ahead else None
            with self._autocast(), torch.no_grad():
                self._said.append({name: r(cast(Batch, batch)).logits.clone() for name, r in ahead.items()})
        self._next = [{name: torch.empty_like(said) for name, said in each.items()} for each in self._said]

    def _look_ahead(self, ahead: int) -> None:
        targets = self._next if ahead else self._said
        for part, references, target in zip(self._parts, self._ahead, targets, strict=True):
            if references:
                batch = part.data.current(ahead=ahead)
                with self._autocast(), torch.no_grad():
                    for name, reference in references.items():
                        target[name].copy_(reference(batch).logits)

    def _ready(self) -> list[dict[str, Reference]]:
        found = []
        for part, ahead, said in zip(self._parts, self._ahead, self._said, strict=True):
            known = {name: Prefetched(reference, said[name]) for name, reference in ahead.items()}
            found.append({name: known.get(name, reference) for name, reference in part.references.items()})
        return found

    def _body(self, references: list[dict[str, Reference]]) -> None:
        side = torch.cuda.Stream() if any(self._ahead) else None
        if side is not None and self.stream is not None:
            # The references look at the next batch while the student learns from this one.
            side.wait_stream(self.stream)
            with torch.cuda.stream(side):
                self._look_ahead(1)
        batches = [part.data.current() for part in self._parts]
        for part, batch, known in zip(self._parts, batches, references, strict=True):
            for reference in known.values():
                if isinstance(reference, Prefetched):
                    reference.batch = batch
            for now, table in part.rates:
                # `table[step]` would read the step on the host.
                now.copy_(table.take(batch.step))
        steps = self._update(batches, references)
        for part, batch, step in zip(self._parts, batches, steps, strict=True):
            part.add(step, batch.y)
        bad = [torch.where(torch.isfinite(s.loss), _NEVER, b.step) for s, b in zip(steps, batches, strict=True)]
        self._first_bad.copy_(torch.minimum(self._first_bad, torch.stack(bad)))
        if side is not None and self.stream is not None:
            self.stream.wait_stream(side)
            for said, after in zip(self._said, self._next, strict=True):
                for name, value in said.items():
                    value.copy_(after[name])
        for part in self._parts:
            part.data.advance()

    def seek(self, epoch: int, step: int) -> None:
        """The next replay is this step of this epoch."""
        with self.turn():
            for part in self._parts:
                part.data.seek(epoch, step)
            if self._prime is not None:
                self._prime.replay()

    def replay(self) -> None:
        with self.turn():
            if self._graph is None:
                self._body(self._ready())
            else:
                self._graph.replay()

    def turn(self) -> AbstractContextManager[Any]:
        """Within, what is enqueued goes to this step's stream."""
        if self.stream is None:
            return nullcontext()
        return cast(AbstractContextManager[Any], torch.cuda.stream(self.stream))

    def rows(self, part: int, epoch: int, step: int) -> Tensor:
        """The training rows that a part saw at a step."""
        return self._parts[part].data.rows(epoch, step)

    def first_bad(self, part: int) -> int | None:
        """The first step at which a part's loss was not finite, if any; waits for the stream."""
        self._wait()
        found = int(self._first_bad[part])
        return None if found == _NEVER else found


@dataclass(frozen=True)
class Share:
    """A step as one of its runs sees it."""

    step: CapturedStep
    part: int = 0

    def turn(self) -> AbstractContextManager[Any]:
        return self.step.turn()

    def rows(self, epoch: int, step: int) -> Tensor:
        return self.step.rows(self.part, epoch, step)

    def first_bad(self) -> int | None:
        return self.step.first_bad(self.part)


def first_line(error: Exception) -> str:
    """What an error says, for the log."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _left_as_it_was(moving: Callable[[], list[Tensor]], device: torch.device) -> Iterator[None]:
    """Within, steps may run; afterwards, however that ended, every moving tensor is as before, and a new one zero."""
    before = [(tensor, tensor.clone()) for tensor in moving()]
    on_gpu = device.type == "cuda"
    random, host = torch.cuda.get_rng_state(device) if on_gpu else None, torch.get_rng_state()
    try:
        yield
    finally:
        known = {tensor.data_ptr() for tensor, _ in before}
        for tensor in moving():
            if tensor.data_ptr() not in known:
                tensor.zero_()
        for tensor, value in before:
            tensor.copy_(value)
        if random is not None:
            torch.cuda.set_rng_state(random, device)
        torch.set_rng_state(host)
