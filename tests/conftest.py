"""Lets the adapters be tested where torchvision's compiled operators were built for another torch.

A wheel built for CUDA beside a torch built for the CPU (or the other way round) is pure Python that works and a library
that does not load. Importing it fails only because two operators, which no classifier uses, are then not known; so they
are declared here, before the first import, and stay without an implementation.
"""

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from object_store import RCLONE, ObjectStore

_declared: list[Any] = []


def _declare_operators() -> None:
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return
    import torch

    for library in Path(found.origin).parent.glob("_C*"):
        try:
            torch.ops.load_library(library)
        except OSError:
            continue
        return
    # Kept, as the declarations go with the object.
    _declared.append(torch.library.Library("torchvision", "DEF"))
    for operator in ("nms", "qnms"):
        _declared[0].define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


_declare_operators()


@pytest.fixture
def object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A running S3 server that this process's clients find."""
    if RCLONE is None or find_spec("s3fs") is None:
        pytest.skip("s3fs and rclone are not installed here: `make storage` has an environment with them")
    store = ObjectStore(tmp_path / "store")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    store.start()
    # A client is kept for as long as the process lives, with the address that it was made for.
    import_module("s3fs").S3FileSystem.clear_instance_cache()
    try:
        yield store
    finally:
        store.stop()
