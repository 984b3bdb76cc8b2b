"""MATLAB files of version 5, as far as arrays of numbers go.

Our own reader: there are damaged files at which SciPy's ends the process with a bus error. Layout (MathWorks, "MAT-File
Format"): 128 bytes of header, then elements of a type, a length and data; an element may be compressed, and an array is
an element that holds four others: flags, dimensions, name, numbers.
"""

import math
import struct
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.types import InputError

MAX_BYTES = 2**31
"""Of one variable, unpacked."""

_HEADER, _MATRIX, _COMPRESSED = 128, 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}

Element = tuple[int, memoryview]


def read_matlab(path: Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """The numeric arrays of these names, those that are there; other variables are passed over."""
    content = path.read_bytes()
    if content[:10] == b"MATLAB 7.3":
        raise InputError(f"{path} is a MATLAB 7.3 (HDF5) file; version 5 can be read.")
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise InputError(f"{path} cannot be read as a MATLAB file (it has no header of version 5).")
    found = {}
    try:
        for kind, data in _elements(memoryview(content)[_HEADER:], order):
            for name, array in _variables(kind, data, order, names):
                found[name] = array
    except (ValueError, struct.error, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as a MATLAB file ({error}).") from error
    return found


def _elements(data: memoryview, order: str) -> Iterator[Element]:
    """Elements one after the other. Short ones share eight bytes with their tag; others are padded to eight."""
    place = 0
    while place < len(data):
        kind, length = struct.unpack_from(f"{order}II", data, place)
        if kind >> 16:
            kind, length, start, end = kind & 0xFFFF, kind >> 16, place + 4, place + 8
            if length > 4:
                raise ValueError(f"a short element of {length} bytes")
        else:
            start = place + 8
            end = start + length + (-length % 8 if kind != _COMPRESSED else 0)
        if start + length > len(data):
            raise ValueError(f"an element of {length:,} bytes where {len(data) - start:,} are left")
        yield kind, data[start : start + length]
        place = end


def _variables(
    kind: int, data: memoryview, order: str, names: Collection[str]
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    if kind == _COMPRESSED:
        unpacker = zlib.decompressobj()
        whole = unpacker.decompress(data, MAX_BYTES)
        if not unpacker.eof:
            raise ValueError(f"a variable that is cut short, or of over {MAX_BYTES:,} bytes")
        for inner, part in _elements(memoryview(whole), order):
            if inner == _MATRIX:
                yield from _variables(inner, part, order, names)
    elif kind == _MATRIX and len(data):
        yield from _matrix(data, order, names)


def _matrix(data: memoryview, order: str, names: Collection[str]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    parts = list(_elements(data, order))
    if len(parts) < 4:
        raise ValueError(f"an array of {len(parts)} parts")
    (_, flags), (_, sides), (_, text), (kind, numbers) = parts[:4]
    name, sort = bytes(text).decode("latin1"), struct.unpack_from(f"{order}I", flags)[0] & 0xFF
    if name not in names or sort not in _CLASSES:
        return
    if kind not in _NUMBERS:
        raise ValueError(f"numbers of type {kind}")
    shape = np.frombuffer(sides, f"{order}i4").tolist()
    # Stored in the smallest type that holds them, whatever the array's own.
    stored = np.frombuffer(numbers, f"{order}{_NUMBERS[kind]}")
    if min(shape, default=0) < 0 or math.prod(shape) != len(stored):
        raise ValueError(f"{len(stored):,} numbers for an array of shape {tuple(shape)}")
    yield name, stored.astype(_CLASSES[sort], copy=False).reshape(shape, order="F")
