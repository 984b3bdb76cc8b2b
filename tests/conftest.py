"""Lets the adapters be tested where torchvision's compiled operators were built for another torch.

A wheel built for CUDA beside a torch built for the CPU (or the other way round) is pure Python that works and a library
that does not load. Importing it fails only because two operators, which no classifier uses, are then not known; so they
are declared here, before the first import, and stay without an implementation.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
