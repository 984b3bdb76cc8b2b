"""A chain of versions: each against each, and the flips that pile up along the way."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flipguard.comparison.engine import check_scores, engine
from flipguard.comparison.measure import measured
from flipguard.comparison.notes import whose_labels
from flipguard.comparison.options import Options
from flipguard.comparison.prepare import prepare
from flipguard.comparison.result import Figure, Figures, Matrix
from flipguard.predictions import Predictions, read_predictions
from flipguard.types import InputError

_NOTHING = Figure(value=0.0, low=0.0, high=0.0)


def matrix(versions: Sequence[Any], *, confidence: float = 0.95, memory: str | None = None, **options: Any) -> Matrix:
    """The pairwise negative flip rates of a chain of versions, and ΣNF over its consecutive updates.

    `versions`, oldest first, and the further options are as in `compare` (labels, class_map, on_missing, split). The
    rate in row i and column j is that of an update from version i to version j; one join serves both directions.

    >>> v = [{"id": [1, 2], "label": [0, 1], "prediction": p} for p in ([0, 1], [0, 0], [1, 1])]
    >>> m = matrix(v)
    >>> m.negative_flips, m.sum_negative_flips
    ([[0, 1, 1], [0, 0, 1], [0, 1, 0]], 2)
    """
    if len(versions) < 2:
        raise InputError(f"a matrix needs at least two versions, {len(versions)} came.")
    files = [
        read_predictions(v, name=None if isinstance(v, str | Path) else f"version {i + 1}")
        for i, v in enumerate(versions)
    ]
    settings = Options(confidence=confidence, by=(), memory=memory, **options)
    found = {(i, j): _pair(files[i], files[j], settings) for i in range(len(files)) for j in range(i + 1, len(files))}
    pairs = {place: pair for place, (pair, _) in found.items()}
    sizes = {pair.labelled for pair in pairs.values()}
    if not all(sizes):
        raise InputError("a matrix needs labels: without them no flip is negative.")
    notes = list(dict.fromkeys(note for _, theirs in found.values() for note in theirs))
    if len(sizes) > 1:
        notes.append("the pairs share different numbers of samples; rates are over each pair's own.")
    updates = [pairs[i, i + 1] for i in range(len(files) - 1)]
    total = sum(pair.negative_flips for pair in updates)
    older_to_newer = [float(pair.negative_flip_rate) for pair in pairs.values() if pair.negative_flip_rate]
    places = range(len(files))
    return Matrix(
        versions=[_title(file) for file in files],
        n=updates[0].labelled,
        error_rate=[_error(pairs, i, len(files)) for i in places],
        negative_flip_rate=[[_rate(pairs, i, j) for j in places] for i in places],
        churn=[[_NOTHING if i == j else _known(pairs[min(i, j), max(i, j)].churn) for j in places] for i in places],
        negative_flips=[[_flips(pairs, i, j) for j in places] for i in places],
        sum_negative_flips=total,
        mean_negative_flip_rate=total / sum(pair.labelled for pair in updates),
        mean_pairwise_negative_flip_rate=sum(older_to_newer) / len(older_to_newer),
        confidence=settings.confidence,
        notes=notes,
    )


def _pair(old: Predictions, new: Predictions, options: Options) -> tuple[Figures, list[str]]:
    with engine(options.memory) as connection:
        prepared = prepare(connection, old, new, options)
        for predictions, view in ((old, "old_rows"), (new, "new_rows")):
            check_scores(connection, predictions, view)
        counted = prepared.count(on_missing=options.on_missing)
        one = counted.outcome * 0
        return measured(counted.tally(one, 1).total(), confidence=options.confidence), whose_labels(prepared)


def _title(file: Predictions) -> str:
    return " ".join(part for part in (file.model, file.version) if part) or file.name


def _known(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def _error(pairs: dict[tuple[int, int], Figures], i: int, count: int) -> Figure:
    return _known(pairs[i, i + 1].error_rate_old if i + 1 < count else pairs[i - 1, i].error_rate_new)


def _rate(pairs: dict[tuple[int, int], Figures], i: int, j: int) -> Figure:
    if i == j:
        return _NOTHING
    return _known(pairs[i, j].negative_flip_rate if i < j else pairs[j, i].positive_flip_rate)


def _flips(pairs: dict[tuple[int, int], Figures], i: int, j: int) -> int:
    if i == j:
        return 0
    return pairs[i, j].negative_flips if i < j else pairs[j, i].positive_flips
