"""The reader of MATLAB files, against what SciPy writes."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from flipguard.data.matlab import read_matlab
from flipguard.types import InputError

RNG = np.random.default_rng(7)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_arrays_come_back_as_scipy_writes_them(dtype: str, compressed: bool, tmp_path: Path) -> None:
    arrays = {"X": RNG.integers(0, 100, (5, 7, 3)).astype(dtype), "y": np.array([[3]], dtype)}
    scipy.io.savemat(tmp_path / "a.mat", {**arrays, "text": "passed over"}, do_compression=compressed)
    found = read_matlab(tmp_path / "a.mat", ("X", "y", "text"))
    assert set(found) == {"X", "y"}
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "a.mat", {"X": np.eye(3), "z": np.eye(5), "cell": np.array([1, "a"], object)})
    assert set(read_matlab(tmp_path / "a.mat", ("X", "cell", "nothing"))) == {"X"}


@pytest.mark.parametrize("compressed", [False, True])
def test_damage_anywhere_is_an_array_or_one_line(compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": RNG.integers(0, 9, (5, 7)).astype(np.uint8)}, do_compression=compressed)
    whole = path.read_bytes()
    refused = 0
    for place in range(120, len(whole)):
        for change in (whole[:place], whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]):
            path.write_bytes(change)
            try:
                read_matlab(path, ("X",))
            except InputError as error:
                refused += "\n" not in str(error)
    assert refused > (len(whole) - 120) // 2
