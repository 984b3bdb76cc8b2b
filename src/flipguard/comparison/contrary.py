"""Predictions that contradict their own scores: classes in two orders, or a decision threshold of one's own."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.groups import Codes
from flipguard.comparison.scores import Matrix


@dataclass(frozen=True)
class Contrary:
    """Of `rows` with a prediction and scores, the `number` whose prediction is not a class of the highest score.

    `first` is the smallest of their ids. What two parts of the rows give adds up.
    """

    number: int = 0
    rows: int = 0
    first: int | str | None = None

    def __add__(self, other: "Contrary") -> "Contrary":
        ids = [part.first for part in (self, other) if part.first is not None]
        return Contrary(self.number + other.number, self.rows + other.rows, min(ids, default=None))


def contrary_in(
    prediction: Codes, scores: Matrix, top: Codes, columns: npt.NDArray[np.int64] | None, ids: pa.Array
) -> Contrary:
    """The contrary ones of some rows: `prediction` and `top` are (B,), `scores` (B, C).

    `top` is each row's first column with the highest score; `columns` (V,) leads from the predictions' codes to
    columns, -1 for none; without it a code is its column. A prediction that is no column is not counted.

    >>> scores = np.array([[0.7, 0.3], [0.5, 0.5], [0.2, 0.8]])
    >>> contrary_in(np.array([1, 1, 1]), scores, np.array([0, 0, 1]), None, pa.array(["a", "b", "c"]))
    Contrary(number=1, rows=3, first='a')
    """
    column = prediction if columns is None else np.where(prediction >= 0, columns[prediction], -1)
    known = (column >= 0) & (column < scores.shape[1])
    # Most rows agree: only the others' scores are looked at again, for the highest may stand in several columns.
    rows = np.flatnonzero(known & (column != top))
    rows = rows[scores[rows, column[rows]] < scores[rows, top[rows]]]
    first = pc.min(ids.take(pa.array(rows))).as_py() if len(rows) else None
    return Contrary(len(rows), int(np.count_nonzero(known)), first)


def note_on_contrary(name: str, found: Contrary) -> list[str]:
    """A threshold does this as well, rightly: so it is said, and nothing is refused.

    >>> note_on_contrary("new.csv", Contrary(412, 600, "u3"))[0][:97]
    'new.csv: the prediction is not the class of the highest score in 412 of 600 rows (69%; first: u3)'
    """
    if not found.number:
        return []
    share = _percent(found.number / found.rows)
    return [
        f"{name}: the prediction is not the class of the highest score in {found.number:,} of {found.rows:,} rows "
        f"({share}; first: {found.first}): is the order of its classes right? A decision threshold does this as well; "
        "NLL, ECE and the like are those of the scores."
    ]


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"
