"""The temperatures that calibrate both models: from the rows set aside, or from each model's own validation file."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.counted import as_codes
from flipguard.comparison.groups import Codes
from flipguard.comparison.scores import Matrix, as_logits, row_scores
from flipguard.comparison.stream import Block
from flipguard.metrics import fit_temperature
from flipguard.predictions import Predictions
from flipguard.types import InputError


def fit_temperatures(
    blocks: Iterator[Block], old: Predictions, new: Predictions, vocabulary: Vocabulary
) -> tuple[float, float] | None:
    """Each model's temperature on the rows set aside for it (LatentBE Eq. 23), whose scores are held in memory.

    None when fewer than two rows are set aside, or either file has no scores.
    """
    kept: dict[str, list[Matrix]] = {"old": [], "new": []}
    labels: list[Codes] = []
    for block in blocks:
        if block.old_scores is None or block.new_scores is None:
            return None
        use = block.calibration & (block.label >= 0)
        found = {}
        for side, predictions, column in (("old", old, block.old_scores), ("new", new, block.new_scores)):
            found[side], valid = row_scores(column, predictions.score_width, predictions.name, block.id)
            use = use & valid
        labels.append(block.label[use])
        for side, predictions in (("old", old), ("new", new)):
            # Indexing copies: the block's own memory can go.
            kept[side].append(as_logits(found[side][use], str(predictions.scores), predictions.name))
    label = np.concatenate(labels)
    if len(label) < 2:
        return None
    match = vocabulary.match()
    columns = (label, label) if match is None else (match.old_column[label], match.new_column[label])
    first, second = (_fit(np.concatenate(kept[side]), column) for side, column in zip(kept, columns, strict=True))
    return first, second


def _fit(logits: Matrix, label: Codes) -> float:
    known = label >= 0
    return float(fit_temperature(logits[known], label[known]))


def temperature_on(predictions: Predictions) -> float:
    """The temperature that fits a file of its own, with labels and scores (LatentBE Eq. 23)."""
    if not predictions.scores or "label" not in predictions.columns:
        raise InputError(f"{predictions.name} cannot calibrate: it needs labels, and logits or probabilities.")
    width = predictions.score_width
    logits, labels = [], []
    for batch in predictions.batches(["id", "label", predictions.scores], size=65_536):
        values, valid = row_scores(batch.column(2), width, predictions.name, batch.column(0))
        column = batch.column(1)
        if not pa.types.is_integer(column.type):
            names = predictions.classes or ()
            column = pc.index_in(column, value_set=pa.array(names, column.type))
        label = as_codes(column)
        use = valid & (label >= 0) & (label < width)
        logits.append(as_logits(values[use], predictions.scores, predictions.name))
        labels.append(label[use])
    rows = np.concatenate(labels)
    if len(rows) < 2:
        raise InputError(
            f"{predictions.name} cannot calibrate: it has no two rows with scores and a label among its classes."
        )
    return float(fit_temperature(np.concatenate(logits), rows))
