"""Where a release comes from: data, method, seeds, versions of what was used."""

import platform
import sys
from typing import Any

import numpy as np
import torch

from flipguard._version import __version__
from flipguard.releases.references import Task


def facts_of(task: Task) -> dict[str, Any]:
    """Where a release comes from, ready for JSON."""
    data = task.data
    plan = task.version.model_dump(mode="json", exclude_none=True, include={"method", "seeds", "train", "references"})
    x = data.train.x
    shape = list(x.shape[1:]) if isinstance(x, torch.Tensor) else None
    about = {"name": data.name, "kind": data.kind, "input_shape": shape, "train": data.fingerprint("train")}
    return {"data": about, "test": data.fingerprint("test"), **plan, "versions": versions_used()}


def versions_used() -> dict[str, str]:
    """What a run was made with."""
    return {
        "flipguard": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
    }
