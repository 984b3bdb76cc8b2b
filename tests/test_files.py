"""Files that are there whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from flipguard.files import whole_file


def test_the_disk_has_a_file_before_its_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, seen = tmp_path / "x.txt", []
    target.write_text("old")

    def synced(place: int) -> None:
        seen.append((Path(f"/proc/self/fd/{place}").readlink(), target.read_text()))

    monkeypatch.setattr(os, "fsync", synced)
    with whole_file(target) as beside:
        beside.write_text("new")
    assert seen == [(beside, "old"), (tmp_path, "new")]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "x.txt"
    target.write_text("old")
    with suppress(KeyboardInterrupt), whole_file(target) as beside:
        beside.write_text("half of")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]
    assert target.read_text() == "old"


def test_a_disk_that_cannot_keep_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flipguard.types import InputError

    def full(place: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with (
        pytest.raises(InputError, match=r"x\.txt cannot be written: No space left on device"),
        whole_file(tmp_path / "x.txt") as beside,
    ):
        beside.write_text("new")
    assert list(tmp_path.iterdir()) == []
