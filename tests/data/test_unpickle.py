"""The restricted reader of pickles: reads what data files hold, runs nothing."""

import io
import pickle
import pickletools
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flipguard.data.unpickle import read_pickle
from flipguard.types import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7), dtype=np.uint8)


class Python2Pickler(pickle._Pickler):  # type: ignore[misc,name-defined]
    """Writes text as Python 2 wrote its `str`: the opcodes of the official CIFAR files."""

    dispatch: ClassVar[dict[Any, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_text(self, obj: str | bytes) -> None:
        data = obj if isinstance(obj, bytes) else obj.encode("latin1")
        self.write(b"U" + bytes([len(data)]) if len(data) < 256 else b"T" + struct.pack("<i", len(data)))
        self.write(data)
        self.memoize(obj)

    dispatch[str] = dispatch[bytes] = save_text


def python2_pickle(value: Any) -> bytes:
    file = io.BytesIO()
    Python2Pickler(file, protocol=2).dump(value)
    return file.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def call(name: str, *arguments: str) -> bytes:
    """A pickle that calls a function by name."""
    module, _, function = name.rpartition(".")
    pushed = b"".join(b"X" + struct.pack("<I", len(a.encode())) + a.encode() for a in arguments)
    return b"\x80\x02c" + f"{module}\n{function}\n".encode() + b"(" + pushed + b"tR."


def test_reads_what_python_2_wrote() -> None:
    data = python2_pickle({"data": PIXELS, "labels": [1, 2, 300], "filenames": ["a.png"], "batch_label": "x" * 300})
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert {"SHORT_BINSTRING", "BINSTRING", "GLOBAL", "REDUCE", "BUILD"} <= opcodes
    assert "SHORT_BINBYTES" not in opcodes
    found = read_pickle(data, name="batch")
    assert np.array_equal(found["data"], PIXELS)
    assert found["data"].dtype == np.uint8
    assert found["labels"] == [1, 2, 300]
    assert found["filenames"] == [b"a.png"]
    assert found["batch_label"] == b"x" * 300


@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i4", "<f8"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_reads_what_python_3_writes(dtype: str, order: Any, protocol: int) -> None:
    array = np.array(PIXELS.astype(dtype), order=order)
    found = read_pickle(pickle.dumps({"data": array, b"key": ["text"]}, protocol=protocol), name="batch")
    assert np.array_equal(found["data"], array)
    assert found["data"].dtype == array.dtype
    assert found["key"] == ["text"]


@pytest.mark.parametrize(
    "name",
    ["os.system", "posix.system", "builtins.eval", "__builtin__.eval", "builtins.getattr", "numpy.load"],
)
def test_refuses_other_functions_by_name_and_runs_nothing(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    with pytest.raises(InputError, match=rf"^batch: the pickle asks for {name}, which is refused\.$"):
        read_pickle(call(name, f"open({str(canary)!r}, 'w')" if "eval" in name else f"touch {canary}"), name="batch")
    assert not canary.exists()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1 + 1",)


def test_refuses_calls_hidden_inside_containers() -> None:
    with pytest.raises(InputError, match="eval, which is refused"):
        read_pickle(pickle.dumps({"data": [{"deep": Evil()}]}, protocol=2), name="batch")


def test_refuses_arrays_of_objects() -> None:
    data = pickle.dumps({"data": np.array([Path, None], dtype=object)}, protocol=2)
    with pytest.raises(InputError, match="which is refused"):
        read_pickle(data, name="batch")
    with pytest.raises(InputError, match="array of type 'O8', which is refused"):
        read_pickle(pickle.dumps({"data": np.array([None], dtype=object)}, protocol=2), name="batch")


def test_refuses_codecs_other_than_the_one_that_bytes_need() -> None:
    with pytest.raises(InputError, match=r"call of _codecs\.encode, which is refused"):
        read_pickle(call("_codecs.encode", "text", "rot13"), name="batch")


def test_refuses_to_change_a_name() -> None:
    # GLOBAL numpy.dtype, then BUILD with a state.
    with pytest.raises(InputError, match=r"change to numpy\.dtype, which is refused"):
        read_pickle(b"\x80\x02cnumpy\ndtype\n}b.", name="batch")


def test_damaged_pickles_are_one_line() -> None:
    whole = python2_pickle({"data": PIXELS, "labels": [1, 2, 3]})
    for end in (0, 1, 3, len(whole) // 2, len(whole) - 1):
        with pytest.raises(InputError, match=r"^batch cannot be read as a pickle \(.*\)\.$") as error:
            read_pickle(whole[:end], name="batch")
        assert "\n" not in str(error.value)


def test_an_array_whose_bytes_do_not_fit_its_shape() -> None:
    data = python2_pickle({"data": PIXELS}).replace(b"K\x05K\x07", b"K\x05K\x08")
    with pytest.raises(InputError, match="cannot be read as a pickle"):
        read_pickle(data, name="batch")


@pytest.mark.parametrize("data", [b"}r\xff\xff\xff\x7f.", b"}p4000000000\n."], ids=["binary", "text"])
def test_memory_that_the_file_cannot_fill_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match=r"place \d+ of a memo, which is refused"):
        read_pickle(b"\x80\x02" + data, name="batch")


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_random_damage_gives_data_or_a_clear_error(data: st.DataObject) -> None:
    damaged = bytearray(python2_pickle({"data": PIXELS, "labels": [1, 2, 3]}))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    message = "batch"
    try:
        read_pickle(bytes(damaged), name="batch")
    except InputError as error:
        message = str(error)
    assert message.startswith("batch")
    assert "\n" not in message


def test_only_dicts_are_data() -> None:
    with pytest.raises(InputError, match="expected a pickled dict, not list"):
        read_pickle(pickle.dumps([1]), name="batch")
