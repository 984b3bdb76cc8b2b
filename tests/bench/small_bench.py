"""A small bench on digits."""

from typing import Any

from flipguard.bench.plan import BenchSpec
from flipguard.spec.training import parse_as

SPEC: dict[str, Any] = {
    "title": "A small bench",
    "data": {"name": "digits", "test_size": 0.5, "validation": 53, "per_class": 11},
    "old": {"name": "mlp", "hidden": [5]},
    "new": {"name": "mlp", "hidden": [7]},
    "train": {"epochs": 2, "batch_size": 19, "learning_rate": 0.1},
    "seeds": [3, 8],
    "networks": {
        "single": {"copies": 3},
        "elodi": {"method": "elodi", "references": {"ensemble": "single"}},
        "heir": {"method": "elodi", "references": {"ensemble": "old.single.0-1"}, "offline": True},
        "kd": {"method": "kd", "references": {"old": "single.0"}},
        "pair": {"method": "codistill_skl", "keeps": "members"},
        "cyclic": {"train": {"cycles": 2}, "keeps": "snapshots"},
        "mean": {"train": {"average": 2}},
    },
    "rows": {
        "none": {"old": "single", "new": "single", "each": True},
        "paragon": "single",
        "elodi": "elodi",
        "heir": {"old": "elodi", "new": "heir"},
        "kd": {"old": "single.0", "new": "kd"},
        "pair": "pair.0",
        "cyclic": "cyclic",
        "mean": "mean",
    },
}


def parsed(**changes: Any) -> BenchSpec:
    """The small bench with other values for some of its keys."""
    return parse_as(BenchSpec, {**SPEC, **changes}, "bench.yaml")
