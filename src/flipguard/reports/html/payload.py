"""The flips as the browser takes them: columns, with codes for names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.detail import Detail, displacement_edges
from flipguard.metrics import OUTCOMES
from flipguard.reports.html.samples import Samples

NEAR = 0.1
"""A flip is near the boundary when the old model's two largest probabilities differ by no more than this."""
FAR = 0.95
"""A displacement is large beyond this share of the samples that stayed right."""

_NUMBERS = {
    "old_confidence": 4,
    "new_confidence": 4,
    "old_margin": 4,
    "new_margin": 4,
    "displacement": 3,
    "rank": 0,
}


def negative_flips(detail: Detail, most: int) -> pa.Table:
    """The negative flips, those first of which the new model is surest; at most so many."""
    flips = detail.flips.filter(pc.equal(detail.flips["outcome"], "negative_flip"))
    if "new_confidence" in flips.column_names:
        order = pc.sort_indices(
            flips.select(["new_confidence", "id"]),
            sort_keys=[("new_confidence", "descending"), ("id", "ascending")],
        )
        flips = flips.take(order)
    return flips.slice(0, most)


def flip_payload(detail: Detail, flips: pa.Table, samples: Samples) -> dict[str, Any]:
    """What report.js reads. Numbers are rounded; ids are texts, as a browser's integers end at 2^53."""
    names = sorted({name for side in ("label", "new") for name in flips[side].to_pylist() if name is not None})
    code = {name: i for i, name in enumerate(names)}
    return {
        "id": [str(id_) for id_ in flips["id"].to_pylist()],
        "classes": names,
        "label": [code[name] for name in flips["label"].to_pylist()],
        "new": [-1 if name is None else code[name] for name in flips["new"].to_pylist()],
        "numbers": {
            name: _rounded(flips[name], digits)
            for name, digits in _NUMBERS.items()
            if name in flips.column_names and flips[name].null_count < len(flips)
        },
        "slices": [_coded(name, flips[column]) for name, column in detail.slices.items()],
        "columns": samples.columns,
        "pictures": list(samples.pictures),
        "near": NEAR,
        "far": far(detail),
    }


def _rounded(column: pa.ChunkedArray, digits: int) -> list[float | int | None]:
    values: list[float | int | None] = column.to_pylist()
    if not digits:
        return values
    return [None if value is None else round(value, digits) for value in values]


def _coded(name: str, column: pa.ChunkedArray) -> dict[str, Any]:
    texts: list[str | None] = [None if value is None else str(value) for value in column.to_pylist()]
    values = sorted({text for text in texts if text is not None})
    code: dict[str | None, int] = {text: i for i, text in enumerate(values)} | {None: -1}
    return {"name": name, "values": values, "codes": [code[text] for text in texts]}


def far(detail: Detail) -> float | None:
    """The displacement that only the last few of the samples that stayed right exceed, to the width of a bin."""
    if detail.displacements is None:
        return None
    return quantile(detail.displacements[OUTCOMES.index("both_right")], FAR)


def quantile(counts: Sequence[int] | Any, share: float) -> float | None:
    """The upper end of the displacement bin in which the share is reached."""
    total = np.cumsum(counts)
    if not total[-1]:
        return None
    return float(displacement_edges()[int(np.searchsorted(total, share * total[-1])) + 1])
