"""Pickles that hold only plain containers and NumPy arrays of numbers, read without running what they name.

The python form of CIFAR is a pickle. A pickle is a program that can call anything it can name; here it can name four
functions, none of which is the real one: each is replaced by a stand-in that only collects its arguments.
"""

import io
import pickle
import pickletools
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.types import InputError

_RECONSTRUCT = ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")
_NDARRAY, _DTYPE, _ENCODE = ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")
_DTYPES = {"u1", "i1", "i2", "i4", "i8", "f4", "f8"}


class Refused(Exception):
    """The pickle asks for something that a data file has no need of."""


class _Array:
    """Stands for an array: takes the state that NumPy's `ndarray.__reduce__` writes and keeps a checked copy."""

    __slots__ = ("value",)

    def __setstate__(self, state: Any) -> None:
        _version, shape, dtype, fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise Refused("an array that is not made of numbers")
        flat = np.frombuffer(data, dtype.value)
        self.value: npt.NDArray[Any] = flat.reshape(shape, order="F" if fortran else "C")


class _Dtype:
    """Stands for a number type; only its name and byte order are kept."""

    __slots__ = ("value",)

    def __init__(self, name: str) -> None:
        self.value: np.dtype[Any] = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order in ("<", ">"):
            self.value = self.value.newbyteorder(order)


class _Name:
    """Stands for a name in the pickle. It can be called, and nothing else can be done to it."""

    __slots__ = ("key",)

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key

    def __setstate__(self, state: Any) -> None:
        raise Refused(f"a change to {'.'.join(self.key)}")

    def __call__(self, *arguments: Any) -> Any:
        if self.key in _RECONSTRUCT:
            return _Array()
        if self.key == _DTYPE:
            name = arguments[0].decode("ascii") if isinstance(arguments[0], bytes) else arguments[0]
            if name not in _DTYPES:
                raise Refused(f"an array of type {name!r}")
            return _Dtype(name)
        if self.key == _ENCODE and arguments[1:] in (("latin1",), (b"latin1",)):
            text = arguments[0]
            return text if isinstance(text, bytes) else text.encode("latin1")
        raise Refused(f"a call of {'.'.join(self.key)}")


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (*_RECONSTRUCT, _NDARRAY, _DTYPE, _ENCODE):
            return _Name((module, name))
        raise Refused(f"{module}.{name}")


def _check_sizes(data: bytes) -> None:
    """Refuse sizes that the file cannot back: the reader would reserve that memory before it noticed.

    Lengths of texts and arrays are compared with the file by `genops` itself; places in the memo are not.
    """
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise Refused(f"place {argument} of a memo")


def read_pickle(data: bytes, *, name: str) -> dict[str, Any]:
    """The dict in a pickle, with text keys and arrays in place of their stand-ins. `name` is the file, for errors.

    >>> read_pickle(pickle.dumps({"labels": [1, 2]}, protocol=2), name="batch")
    {'labels': [1, 2]}
    >>> read_pickle(pickle.dumps({"labels": print}, protocol=2), name="batch")
    Traceback (most recent call last):
    ...
    flipguard.types.InputError: batch: the pickle asks for __builtin__.print, which is refused.
    """
    try:
        _check_sizes(data)
        # fix_imports would rename Python 2 modules, and the error should name what the file says.
        found = _Reader(io.BytesIO(data), fix_imports=False, encoding="bytes").load()
    except Refused as error:
        raise InputError(f"{name}: the pickle asks for {' '.join(str(error).split())}, which is refused.") from error
    except Exception as error:
        # Damaged pickles raise nearly anything: UnpicklingError, EOFError, IndexError, KeyError, TypeError, …
        raise InputError(f"{name} cannot be read as a pickle ({' '.join(str(error).split())}).") from error
    if not isinstance(found, dict):
        raise InputError(f"{name}: expected a pickled dict, not {type(found).__name__}.")
    decoded = {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in found.items()}
    return {
        key: getattr(value, "value", None) if isinstance(value, _Array) else value for key, value in decoded.items()
    }
