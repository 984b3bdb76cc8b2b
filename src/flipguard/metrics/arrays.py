"""The few operations that NumPy and torch spell differently; torch is never imported unless a tensor came in."""

from collections.abc import Callable
from typing import Any, TypeAlias

import array_api_compat as compat
import numpy as np

from flipguard.types import InputError

Array: TypeAlias = Any
"""A NumPy array or a torch tensor. Shapes stand in the docstrings, in the letters B (rows), C (classes)."""

Namespace: TypeAlias = Any


def namespace(*arrays: Array) -> Namespace:
    """The array namespace that all given arrays share; `None` is skipped. NumPy 2 speaks the standard by itself.

    >>> namespace(np.zeros(2), None).__name__
    'numpy'
    """
    given = [array for array in arrays if array is not None]
    if all(isinstance(array, np.ndarray | np.generic) for array in given):
        return np
    try:
        return compat.array_namespace(*given)
    except TypeError:
        kinds = ", ".join(sorted({type(array).__module__.partition(".")[0] for array in given}))
        raise InputError(
            f"expected NumPy arrays only or torch tensors only, got a mixture ({kinds}); convert them to one kind."
        ) from None


def as_array(values: Array) -> Array:
    """Arrays and tensors as they are (a tensor without its gradient); lists become NumPy arrays."""
    if compat.is_torch_array(values):
        return values.detach()
    return values if compat.is_array_api_obj(values) else np.asarray(values)


def as_codes(values: Array, *, name: str) -> Array:
    """(B,) integer codes as int64.

    >>> as_codes([0.5], name="label")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: label must be a one-dimensional array of integer codes, got float64 of shape (1,).
    """
    codes = as_array(values)
    xp = namespace(codes)
    if codes.ndim != 1 or not xp.isdtype(codes.dtype, "integral"):
        raise InputError(
            f"{name} must be a one-dimensional array of integer codes, got {codes.dtype} of shape {tuple(codes.shape)}."
        )
    return xp.astype(codes, xp.int64, copy=False)


def check_logits(values: Array, *, name: str = "logits") -> Array:
    """(B, C) logits in the type they came in."""
    logits = as_array(values)
    if logits.ndim != 2 or logits.shape[1] == 0:
        raise InputError(
            f"{name} must have the shape (rows, classes) with at least one class, got {tuple(logits.shape)}."
        )
    return logits


def as_logits(values: Array) -> Array:
    """(B, C) logits as float32; float64 stays."""
    logits = check_logits(values)
    xp = namespace(logits)
    return logits if logits.dtype == xp.float64 else xp.astype(logits, xp.float32, copy=False)


def as_values(values: Array, *, name: str) -> Array:
    """(B,) float64."""
    array = as_array(values)
    if array.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, got the shape {tuple(array.shape)}.")
    xp = namespace(array)
    return xp.astype(array, xp.float64, copy=False)


def check_rows(**arrays: Array) -> None:
    """Refuses arrays whose first axes differ.

    >>> check_rows(label=np.zeros(3), old=np.zeros(2))
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: all arrays need one row per sample, got label 3, old 2.
    """
    rows = {name: int(array.shape[0]) for name, array in arrays.items() if array is not None}
    if len(set(rows.values())) > 1:
        listing = ", ".join(f"{name} {count:,}" for name, count in rows.items())
        raise InputError(f"all arrays need one row per sample, got {listing}.")


def like(values: Array, other: Array) -> Array:
    """`values` in the namespace and on the device of `other`; nothing is copied when it is there already."""
    return namespace(other).asarray(values, device=compat.device(other))


def pick(xp: Namespace, values: Array, column: Array) -> Array:
    """(B, C), (B,) -> (B,): in each row the value in its column."""
    if compat.is_torch_array(values):
        return xp.take_along_axis(values, column[:, None], axis=1)[:, 0]
    return values[np.arange(values.shape[0]), column]


def put(values: Array, column: Array, value: float) -> None:
    """Writes one value per row into its column, in place."""
    if compat.is_torch_array(values):
        values.scatter_(1, column[:, None], value)
    else:
        values[np.arange(values.shape[0]), column] = value


def row_sums(values: Array) -> Array:
    """(B, C) -> (B,). A product with ones takes a third of the time of NumPy's sum along short rows."""
    if compat.is_torch_array(values):
        return values.sum(1)
    return np.vecdot(values, np.ones(values.shape[1], dtype=values.dtype))


def into(function: Callable[..., Array], *arguments: Array, out: Array | None) -> Array:
    """What a function of arrays gives, written into `out` if given."""
    return function(*arguments) if out is None else function(*arguments, out=out)


class Scatter:
    """Sums over rows by key: `key` (B,) in [0, size). Counts are exact integers, sums are float64.

    >>> scatter = Scatter(np.array([0, 2, 2]), 3)
    >>> scatter.count()
    array([1, 0, 2])
    >>> scatter.sum(np.array([0.5, 1.0, 2.0]))
    array([0.5, 0. , 3. ])
    """

    def __init__(self, key: Array, size: int) -> None:
        self.key = key
        self.size = size
        self.xp = namespace(key)

    def count(self, mask: Array | None = None) -> Array:
        """(size,) int64: rows per key, of those where `mask` (B,) is true."""
        if compat.is_torch_array(self.key):
            ones = self.xp.ones_like(self.key) if mask is None else self.xp.astype(mask, self.xp.int64)
            return self.xp.zeros(self.size, dtype=self.xp.int64, device=self.key.device).index_add_(0, self.key, ones)
        key = self.key if mask is None else self.key[mask]
        return np.bincount(key, minlength=self.size)

    def sum(self, values: Array) -> Array:
        """(size,) float64: the sum of `values` (B,) per key."""
        if compat.is_torch_array(self.key):
            zeros = self.xp.zeros(self.size, dtype=self.xp.float64, device=self.key.device)
            return zeros.index_add_(0, self.key, self.xp.astype(values, self.xp.float64))
        return np.bincount(self.key, values, minlength=self.size)
