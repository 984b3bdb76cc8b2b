"""A bench's models on corrupted test samples, which are made where they are used and never stored."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard import metrics
from flipguard._nearest import nearest
from flipguard.bench.evaluate import AS_THEY_ARE, Pair
from flipguard.bench.node import Piece
from flipguard.bench.plan import CorruptionsPlan
from flipguard.bench.shop import Shop
from flipguard.data.corruptions import CORRUPTIONS, corrupted
from flipguard.training import predict_logits
from flipguard.types import InputError

PART = "corrupted"


def kinds_of(plan: CorruptionsPlan) -> list[str]:
    """The kinds of corruption; all fifteen when none are named."""
    for kind in plan.kinds or ():
        if kind not in CORRUPTIONS:
            raise InputError(f"corruptions.kinds: there is no corruption '{kind}'{nearest(kind, CORRUPTIONS)}")
    return plan.kinds or list(CORRUPTIONS)


def on_corrupted(pairs: Sequence[Pair], shop: Shop, plan: CorruptionsPlan) -> dict[str, list[dict[str, Any]]]:
    """For each pair, by its column, a record for each kind and severity; their mean is LatentBE's Table 4.

    Every corrupted test part is made once and shown to all networks.
    """
    pieces = list(dict.fromkeys(piece for pair in pairs for piece in (*pair.old, *pair.new)))
    networks = {piece: shop.network(piece.node, piece.place) for piece in pieces}
    label = shop.data.test.y.cpu().numpy()
    found: dict[str, list[dict[str, Any]]] = {pair.column: [] for pair in pairs}
    for kind, severity in product(kinds_of(plan), plan.severities):
        data = replace(shop.data, test=corrupted(shop.data.test, kind, severity, seed=plan.seed))
        said = {piece: predict_logits(network, data, device=shop.device) for piece, network in networks.items()}
        for pair in pairs:
            record = {"part": PART, "corruption": kind, "severity": severity, **_figures(pair, label, said)}
            found[pair.column].append(record)
    return found


def _figures(pair: Pair, label: npt.NDArray[Any], said: dict[Piece, npt.NDArray[np.float32]]) -> dict[str, Any]:
    old, new = (np.mean([said[piece] for piece in side], axis=0) for side in (pair.old, pair.new))
    counted = metrics.tally(label, None, None, old_logits=old, new_logits=new)
    figures = {name: float(getattr(metrics, name)(counted)) for name in AS_THEY_ARE}
    outcome = dict(zip(metrics.OUTCOMES, counted.count.tolist(), strict=False))
    return {
        "n": len(label),
        "negative_flips": int(outcome["negative_flip"]),
        "positive_flips": int(outcome["positive_flip"]),
        **{name: value if np.isfinite(value) else None for name, value in figures.items()},
    }
