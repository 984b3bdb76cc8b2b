"""A column of scores (logits or probabilities, a list per row) as a matrix."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.types import InputError

Matrix = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

# The smallest positive normal float32: a probability of 0 costs at most -log of it, about 87 nats.
_TINY = np.float32(np.finfo(np.float32).tiny)


def row_scores(column: pa.Array, width: int, name: str, ids: pa.Array) -> tuple[Matrix, Mask]:
    """The (B, C) scores and, per row, whether they are there; a missing row reads as zeros.

    No copy is made of a column without gaps. `name` and `ids` serve the message when a row has another length.
    """
    valid = np.asarray(column.is_valid()) if column.null_count else np.ones(len(column), bool)
    if pa.types.is_fixed_size_list(column.type):
        if column.type.list_size != width:
            raise InputError(f"{name}: its rows hold {column.type.list_size} scores, but it has {width} classes.")
    else:
        lengths = pc.list_value_length(column).fill_null(width).to_numpy()
        if (lengths != width).any():
            row = int(np.flatnonzero(lengths != width)[0])
            raise wrong_length(name, ids[row], lengths[row], width)
    # Flattening leaves out the rows that are missing.
    there = column.flatten()
    if there.null_count:
        raise InputError(f"{name}: a score within a row is missing. Every row needs one finite number per class.")
    values = there.to_numpy(zero_copy_only=False).reshape(-1, width)
    if valid.all():
        return values, valid
    padded = np.zeros((len(column), width), values.dtype)
    padded[valid] = values
    return padded, valid


def wrong_length(name: str, id_: object, length: int, width: int) -> InputError:
    return InputError(f"{name}: id {id_} has {length} scores, expected {width}: one for every class.")


def as_logits(values: Matrix, kind: str, name: str) -> Matrix:
    """Logits as they are; probabilities as their logarithm, which the softmax takes back to the probabilities."""
    if kind == "logits":
        return values
    values = values.astype(np.float32, copy=False)
    total = values.sum(axis=1)
    if (values < 0).any() or (np.abs(total - 1) > 0.02).any():
        raise _no_probabilities(values, total, name)
    result: Matrix = np.log(np.maximum(values, _TINY))
    return result


def _no_probabilities(values: Matrix, total: Matrix, name: str) -> InputError:
    """What is wrong with the (B, C) values that sum to `total` (B,), and what would put it right."""
    if (values < 0).any():
        return InputError(
            f"{name}: its probabilities are not all between 0 and 1 with sum 1 (one is {values.min():.4g}). "
            "Name the column 'logits' if it holds logits."
        )
    bad = total[np.abs(total - 1) > 0.02]
    found = f"one row sums to {bad[np.argmax(np.abs(bad - 1))]:.4g}"
    if not np.isfinite(bad).all():
        return InputError(
            f"{name}: its probabilities are not all finite ({found}): leave the scores of such rows empty."
        )
    if len(bad) == len(total) and (np.abs(bad - 100) <= 2).all():
        return InputError(f"{name}: its probabilities look like percentages ({found}): divide them by 100.")
    return InputError(f"{name}: its probabilities are not normalised ({found}): divide each row by its sum.")
