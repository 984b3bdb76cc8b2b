"""Which rows of a prediction file its model was trained on: of those its figures say little."""

from typing import Any

from flipguard.predictions import Predictions
from flipguard.releases import material
from flipguard.releases.plan import DataPlan
from flipguard.types import FlipguardError


def rows_trained_on(said: Predictions, asked: DataPlan, part: str, own: DataPlan) -> int | None:
    """How many rows, by id, are among the training samples of the run's `own` data; None where those are not to be had.

    The run's data are loaded where other settings of the same data set were asked for; another data set's ids are its
    own, of which 0 are told. A card without `train` is of a network that came from elsewhere, which has learned from
    who knows what.
    """
    if said.metadata.get("train") is None or asked.name != own.name:
        return 0
    if _rows_of(asked) == _rows_of(own):
        return said.rows if part == "train" else 0
    try:
        data = material.load(own)
    except FlipguardError:
        return None
    if said.metadata["data"].get("train") != data.fingerprint("train"):
        return None
    trained = data.train.ids.tolist()
    # Rows that have no names of their own go by their place in a file, and this may be another.
    if str(trained[0]).startswith("train_") and _files_of(asked) != _files_of(own):
        return 0
    return len(set(trained) & set(said.table(["id"])["id"].to_pylist()))


def _rows_of(plan: DataPlan) -> dict[str, Any]:
    """What decides which rows there are, and not how they become numbers."""
    return plan.model_dump(exclude={"encode", "augment", "normalisation"})


def _files_of(plan: DataPlan) -> dict[str, Any]:
    return {**plan.options, "encode": None, "folder": plan.folder}
