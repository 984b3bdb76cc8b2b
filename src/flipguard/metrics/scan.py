"""The one pass over the logits of two models that gives all intermediates of their scores."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import array_api_compat as compat
import numpy as np

from flipguard.metrics.arrays import Array, as_logits, into, namespace
from flipguard.metrics.scores import (
    Softmax,
    distance,
    halved_distance,
    logit_displacement_per_sample,
    shift,
    softmax,
    surrogate_churn_per_sample,
)

_BLOCK = 1 << 18
"""Logits of one model that NumPy works on at a time, so that large batches need no large temporaries."""

_BUFFERS = 5


@dataclass(frozen=True, eq=False)
class Request:
    """What to scan. A pair is (old, new), None for a model without logits; the first axis of all arrays is the row."""

    logits: tuple[Array | None, Array | None]  # (B, C) each
    label: tuple[Array | None, Array | None]  # (B,) each: the label's column in these logits, in range
    shared: tuple[Array, Array] | None  # (S,) each: the columns that scores of the pair use; None for all
    alpha: float
    temperature: tuple[float, float] | None

    def rows(self, start: int, stop: int) -> "Request":
        def cut(pair: tuple[Array | None, Array | None]) -> tuple[Array | None, Array | None]:
            old, new = (None if array is None else array[start:stop] for array in pair)
            return old, new

        return Request(cut(self.logits), cut(self.label), self.shared, self.alpha, self.temperature)


@dataclass(frozen=True, eq=False)
class Scan:
    """What a scan gives, row by row; None for what the request's logits do not allow."""

    old: Softmax | None = None
    new: Softmax | None = None
    calibrated_old: Softmax | None = None
    calibrated_new: Softmax | None = None
    surrogate_churn: Array | None = None  # (B,) float64
    displacement: Array | None = None  # (B,) float64


def scan(request: Request) -> Scan:
    """All at once for torch, whose allocator reuses memory by itself; block by block for NumPy."""
    given = [logits for logits in request.logits if logits is not None]
    if compat.is_torch_array(given[0]):
        return _scan(request, [None] * _BUFFERS)
    rows = given[0].shape[0]
    classes = max(logits.shape[1] for logits in given)
    block = max(1, min(rows, _BLOCK // classes))
    dtype: type[np.floating[Any]] = np.float64 if any(logits.dtype == np.float64 for logits in given) else np.float32
    # One allocation, so that the C library keeps it between calls: fresh pages cost more than the arithmetic.
    buffers = np.empty((_BUFFERS, block * classes), dtype=dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        parts = [_scan(request.rows(start, start + block), list(buffers)) for start in range(0, max(rows, 1), block)]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _scan(request: Request, buffers: Sequence[Array | None]) -> Scan:
    """A buffer is written over once what it held is used up: logits by shifted logits, a gap by tempered logits."""
    old_work, new_work, old_out, new_out, gap = buffers
    old, new = _converted(request.logits[0], old_work), _converted(request.logits[1], new_work)
    displacement = surrogate_churn = None
    if old is not None and new is not None:
        if request.shared is None:
            displacement = distance(old, new, out=_window(gap, old))
        elif request.shared[0].shape[0] > 0:
            xp = namespace(old)
            shared = xp.take(old, request.shared[0], axis=1), xp.take(new, request.shared[1], axis=1)
            displacement = logit_displacement_per_sample(*shared)
            surrogate_churn = surrogate_churn_per_sample(*shared, alpha=request.alpha)
    old_model = None if old is None else _Model.of(old, request.label[0], old_work, old_out)
    new_model = None if new is None else _Model.of(new, request.label[1], new_work, new_out)
    if old_model is not None and new_model is not None and request.shared is None:
        ends = old_model.powered(request.alpha), new_model.powered(request.alpha)
        surrogate_churn = halved_distance(*ends, out=_window(gap, ends[0]))
    tau = request.temperature
    return Scan(
        old=None if old_model is None else old_model.softmax,
        new=None if new_model is None else new_model.softmax,
        calibrated_old=None if old_model is None or tau is None else old_model.tempered(tau[0], gap),
        calibrated_new=None if new_model is None or tau is None else new_model.tempered(tau[1], gap),
        surrogate_churn=surrogate_churn,
        displacement=displacement,
    )


@dataclass(frozen=True, eq=False)
class _Model:
    """One model's rows while they are scanned."""

    softmax: Softmax
    label: Array  # (B,)
    shifted: Array  # (B, C)
    relative: Array  # (B, C)

    @classmethod
    def of(cls, logits: Array, label: Array, work: Array | None, out: Array | None) -> "_Model":
        top, shifted = shift(logits, _window(work, logits))
        shared, relative = softmax(shifted, top, label, _window(out, logits))
        return cls(shared, label, shifted, relative)

    def powered(self, alpha: float) -> Array:
        """(B, C) (f / max f)^alpha, which is exp(alpha s)."""
        return self.relative if alpha == 1.0 else namespace(self.shifted).exp(self.shifted * alpha)

    def tempered(self, temperature: float, out: Array | None) -> Softmax:
        """With the logits divided by a temperature; `relative` is written over where buffers are used."""
        xp = namespace(self.shifted)
        scaled = into(xp.multiply, self.shifted, 1.0 / temperature, out=_window(out, self.shifted))
        return softmax(scaled, self.softmax.top, self.label, None if out is None else self.relative)[0]


def _converted(logits: Array | None, out: Array | None) -> Array | None:
    """(B, C) as float32 (float64 stays), in `out` if it is given and a conversion is needed."""
    if logits is None or out is None:
        return None if logits is None else as_logits(logits)
    if logits.dtype == out.dtype:
        return logits
    window = _window(out, logits)
    if logits.dtype == np.float16:
        _FROM_HALF.take(logits.view(np.uint16), out=window, mode="wrap")
    else:
        np.copyto(window, logits)
    return window


_FROM_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
"""Every float16 as float32 by its bits: looking one up takes a third of the time of NumPy's conversion."""


def _window(buffer: Array, like: Array) -> Array:
    """The start of a flat buffer in the shape of another array; None for None."""
    return None if buffer is None else buffer[: like.size].reshape(like.shape)


def _joined(parts: Sequence[Scan]) -> Scan:
    def join(values: Sequence[Any]) -> Any:
        if values[0] is None:
            return None
        if isinstance(values[0], Softmax):
            names = [field.name for field in fields(Softmax)]
            return Softmax(*(np.concatenate([getattr(value, name) for value in values]) for name in names))
        return np.concatenate(values)

    return Scan(*(join([getattr(part, field.name) for part in parts]) for field in fields(Scan)))
