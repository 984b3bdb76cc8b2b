"""What the old model answered, found by a sample's id, as the class codes of the model in training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flipguard.predictions import Predictions, read_predictions
from flipguard.types import InputError


class OldAnswers:
    """A prediction file as a lookup from ids to class codes (-1 for a class that the new model does not know, or none).

    `classes` are the new model's, in the order of its codes; without them the file's codes count as they are.

    >>> answers = OldAnswers({"id": ["a", "b"], "prediction": ["dog", "cat"]}, classes=["cat", "dog"])
    >>> answers.of(["b", "a"])
    array([0, 1])
    """

    def __init__(self, source: Any, *, classes: Sequence[str] | None = None) -> None:
        self._said = read_predictions(source, name=None if isinstance(source, str | Path) else "old")
        self._codes = _codes(self._said, None if classes is None else [str(name) for name in classes])
        self._place = {id_: row for row, id_ in enumerate(self._said.table(["id"])["id"].to_pylist())}

    def of(self, ids: Sequence[Any]) -> npt.NDArray[np.int64]:
        """The codes (B,) of samples by id; an id that the file lacks is an error."""
        try:
            return self._codes[[self._place[id_] for id_ in ids]]
        except KeyError as error:
            raise InputError(
                f"{self._said.name} has no sample with the id {error}: its {self._said.rows:,} ids must cover what the "
                "new model is measured on."
            ) from None


def _codes(said: Predictions, classes: Sequence[str] | None) -> npt.NDArray[np.int64]:
    """(N,) codes of the new model's classes."""
    told = _told(said)
    if not any(isinstance(value, str) for value in told):
        if said.classes is None or classes is None:
            return np.array([-1 if value is None else value for value in told], np.int64)
        told = [None if value is None else said.classes[value] for value in told]
    if classes is None:
        raise InputError(f"{said.name} names its classes: pass classes=, the new model's, in the order of its codes.")
    code = {name: place for place, name in enumerate(classes)}
    if not set(code) & set(told):
        raise InputError(f"{said.name} predicts none of the {len(code)} classes given (it has '{told[0]}').")
    return np.array([code.get(value, -1) for value in told], np.int64)


def _told(said: Predictions) -> list[Any]:
    if "prediction" in said.columns:
        return said.table(["prediction"])["prediction"].to_pylist()
    assert said.scores is not None
    scores = said.table([said.scores])[said.scores].to_pylist()
    return [None if row is None else int(np.argmax(row)) for row in scores]
