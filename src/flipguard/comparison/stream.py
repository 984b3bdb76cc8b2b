"""The pass over the scores: both files' logits side by side, a block at a time, into tallies.

Files that hold the same ids in the same order are read in step, with no join at all. Others are joined by DuckDB,
which spills to disk when memory runs out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.comparison.classes import Value, Vocabulary
from flipguard.comparison.contrary import Contrary, contrary_in
from flipguard.comparison.counted import as_codes
from flipguard.comparison.detail import displacement_counts
from flipguard.comparison.engine import not_finite
from flipguard.comparison.expression import CALIBRATION, ONLY_OLD, OTHER_SPLIT, VALIDATION, Plan, joined
from flipguard.comparison.groups import Codes, Family, group_codes
from flipguard.comparison.scores import Matrix, as_logits, row_scores
from flipguard.metrics import OUTCOMES, Rows, Tally, score_rows
from flipguard.predictions import Predictions

_READ_ROWS = 16_384
# `score_rows` cuts its rows to what stays in the cache; this bounds what a block of wide rows takes beside that.
_BLOCK_VALUES = 2_000_000
_WORKERS = 2

FLIP_COLUMNS = (
    "id",
    "label",
    "old",
    "new",
    "outcome",
    "old_confidence",
    "new_confidence",
    "old_margin",
    "new_margin",
    "displacement",
    "rank",
)


@dataclass(frozen=True)
class Block:
    """Rows of both files, aligned. Codes are -1 where a label or prediction is missing."""

    id: pa.Array
    label: Codes
    old: Codes
    new: Codes
    compared: npt.NDArray[np.bool_]
    calibration: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float64] | None
    by: Mapping[str, pa.Array]
    old_scores: pa.Array | None
    new_scores: pa.Array | None


@dataclass(frozen=True)
class Streamed:
    """A tally per family; the worst negative flips; and, when asked for, every changed prediction and a histogram.

    Flips are tables with the columns of `FLIP_COLUMNS`; displacements are counts as `displacement_counts` gives them.
    """

    tallies: tuple[Tally, ...]
    worst: pa.Table
    flips: tuple[pa.Table, ...]
    displacements: npt.NDArray[np.int64] | int = 0
    contrary: tuple[Contrary, Contrary] = (Contrary(), Contrary())
    """Predictions of the old model, and of the new one, that are not its highest score."""


def same_order(old: Predictions, new: Predictions) -> bool:
    """Whether both hold the same ids in the same order; stops at the first difference."""
    if old.rows != new.rows:
        return False
    pairs = in_step(old.batches(["id"], size=1 << 18), new.batches(["id"], size=1 << 18))
    return all(_equal(a.column(0), b.column(0)) for a, b in pairs)


def _equal(a: pa.Array, b: pa.Array) -> bool:
    if a.type != b.type:
        a, b = pc.cast(a, pa.string()), pc.cast(b, pa.string())
    return bool(a.equals(b))


def in_step(
    left: Iterable[pa.RecordBatch], right: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Slices of equal length from two streams whose batches may end at different rows. Nothing is copied."""
    left, right = iter(left), iter(right)
    a, b = next(left, None), next(right, None)
    while a is not None and b is not None:
        rows = min(a.num_rows, b.num_rows)
        if rows:
            yield a.slice(0, rows), b.slice(0, rows)
        a = a.slice(rows) if a.num_rows > rows else next(left, None)
        b = b.slice(rows) if b.num_rows > rows else next(right, None)


def aligned_blocks(
    old: Predictions, new: Predictions, plan: Plan, slices: Iterable[str], vocabulary: Vocabulary
) -> Iterator[Block]:
    """Both files in step, which `same_order` has found to be possible; `slices` are the columns to group by."""
    wanted = ("label", "prediction", "weight", "split", *slices)
    old_columns, new_columns = (
        list(dict.fromkeys(["id", *(c for c in wanted if c in p.columns), *([p.scores] if p.scores else [])]))
        for p in (old, new)
    )
    both = (p.batches_ahead(c, size=_READ_ROWS) for p, c in ((old, old_columns), (new, new_columns)))
    for a, b in in_step(*both):
        sides = {"old": _columns(a), "new": _columns(b)}
        calibration, compared = _splits(_either(sides, "split"), plan, a.num_rows)
        yield Block(
            id=sides["old"]["id"],
            label=_label(sides, plan, vocabulary),
            old=_codes(sides["old"].get("prediction"), vocabulary.old, a.num_rows),
            new=_codes(sides["new"].get("prediction"), vocabulary.new, b.num_rows),
            compared=compared,
            calibration=calibration,
            weight=_weight(_either(sides, "weight")),
            by={name: _either(sides, name) for name in slices},
            old_scores=sides["old"][old.scores] if old.scores else None,
            new_scores=sides["new"][new.scores] if new.scores else None,
        )


def joined_blocks(old: Any, new: Any, plan: Plan, slices: Mapping[str, str]) -> Iterator[Block]:
    """The rows as DuckDB joins them; `old` and `new` are tables of codes, `slices` as in engine.Sources."""
    reader = joined(old, new, plan).to_native().to_arrow_reader(_READ_ROWS)
    for batch in reader:
        columns = _columns(batch)
        outcome = columns["cell"].to_numpy().astype(np.int64) & 15
        shared = (outcome < ONLY_OLD) | (outcome == CALIBRATION) | (outcome == OTHER_SPLIT)
        if not shared.all():
            keep = pa.array(shared)
            columns = {name: column.filter(keep) for name, column in columns.items()}
            outcome = outcome[shared]
        yield Block(
            id=columns["id"],
            label=_codes(columns["label"], None, len(outcome)),
            old=_codes(columns["old"], None, len(outcome)),
            new=_codes(columns["new"], None, len(outcome)),
            compared=outcome < ONLY_OLD,
            calibration=outcome == CALIBRATION,
            weight=_weight(columns.get("weight")),
            by={name: columns[column] for name, column in slices.items()},
            old_scores=columns.get("old_scores"),
            new_scores=columns.get("new_scores"),
        )


def _columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _either(sides: Mapping[str, Mapping[str, pa.Array]], name: str) -> pa.Array | None:
    old, new = sides["old"].get(name), sides["new"].get(name)
    if old is None or new is None:
        return old if new is None else new
    return pc.coalesce(new, old)


def _label(sides: Mapping[str, Mapping[str, pa.Array]], plan: Plan, vocabulary: Vocabulary) -> Codes:
    rows = len(sides["old"]["id"])
    old = _codes(sides["old"].get("label"), vocabulary.old, rows)
    new = _codes(sides["new"].get("label"), vocabulary.new, rows)
    first, second = (new, old) if plan.labels == "new" else (old, new)
    return np.where(first >= 0, first, second)


def _codes(column: pa.Array | None, mapping: Mapping[Value, int] | None, rows: int) -> Codes:
    if column is None:
        return np.full(rows, -1, np.int64)
    if mapping is None:
        return as_codes(column)
    text = not pa.types.is_integer(column.type)
    chosen = {value: code for value, code in mapping.items() if isinstance(value, str) == text}
    # An index column may be too narrow for the indices of classes that it never names.
    column = column if text else pc.cast(column, pa.int64())
    place = pc.index_in(column, value_set=pa.array(list(chosen), column.type))
    lookup = np.array([*chosen.values(), -1], np.int64)
    codes: Codes = lookup[pc.fill_null(place, len(chosen)).to_numpy(zero_copy_only=False)]
    return codes


def _splits(split: pa.Array | None, plan: Plan, rows: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which rows calibrate, and which are compared: the rules of expression.py, on arrays."""
    if split is None:
        return np.zeros(rows, bool), np.ones(rows, bool)
    calibration = np.asarray(pc.is_in(split, value_set=pa.array(VALIDATION)))
    if plan.split in VALIDATION:
        calibration = np.zeros(rows, bool)
    if plan.split is None:
        return calibration, ~calibration
    return calibration, np.asarray(pc.fill_null(pc.equal(split, plan.split), False))


def _weight(column: pa.Array | None) -> npt.NDArray[np.float64] | None:
    return None if column is None else pc.fill_null(pc.cast(column, pa.float64()), 0.0).to_numpy(zero_copy_only=False)


@dataclass(frozen=True)
class Scorer:
    """Turns a block into tallies and flips; the same object serves every block, from several threads."""

    old: Predictions
    new: Predictions
    vocabulary: Vocabulary
    families: tuple[Family, ...]
    alpha: float
    temperature: tuple[float, float] | None
    keep_flips: bool
    worst: int

    def __call__(self, block: Block) -> Streamed | None:
        old, old_there = self._scores(block.old_scores, self.old, block.id)
        new, new_there = self._scores(block.new_scores, self.new, block.id)
        keep = block.compared & old_there & new_there
        if not keep.any():
            return None
        whole = bool(keep.all())
        index = slice(None) if whole else np.flatnonzero(keep)
        groups = [self._groups(family, block)[index] for family in self.families]
        chosen = block if whole else _filtered(block, keep)
        return self._score(chosen, None if old is None else old[index], None if new is None else new[index], groups)

    def _score(self, block: Block, old: Matrix | None, new: Matrix | None, groups: list[Codes]) -> Streamed:
        width = max(s.shape[1] for s in (old, new) if s is not None)
        size = max(1, _BLOCK_VALUES // width)
        match = self.vocabulary.match()
        totals: list[Tally] | None = None
        displacements: npt.NDArray[np.int64] | int = 0
        # Flips are picked out of each part and made a table once per block: a table has a price however few its rows.
        chosen = np.isin(np.arange(len(OUTCOMES)), (1, 2, 4, 6) if self.keep_flips else (1,))
        changed, tops = [], []
        for start in range(0, len(block.label), size):
            part = slice(start, start + size)
            rows = score_rows(
                block.label[part],
                block.old[part] if "prediction" in self.old.columns or old is None else None,
                block.new[part] if "prediction" in self.new.columns or new is None else None,
                weight=None if block.weight is None else block.weight[part],
                old_logits=None if old is None else as_logits(old[part], str(self.old.scores), self.old.name),
                new_logits=None if new is None else as_logits(new[part], str(self.new.scores), self.new.name),
                classes=match,
                alpha=self.alpha,
                temperature=self.temperature,
            )
            self._check_finite(rows, block.id[part])
            tallies = [
                rows.tally(group[part], len(family.values) + 1)
                for group, family in zip(groups, self.families, strict=True)
            ]
            totals = tallies if totals is None else [a + b for a, b in zip(totals, tallies, strict=True)]
            changed.append(_flips(rows, start, chosen))
            assert rows.models is not None
            tops.append(rows.models.top)
            if self.keep_flips and rows.pair is not None:
                displacements = displacements + displacement_counts(rows.pair.displacement, rows.outcome)
        assert totals is not None
        flips = _flip_table(changed, block)
        kept = (flips,) if self.keep_flips else ()
        return Streamed(
            tuple(totals),
            _worst(flips, self.worst),
            kept,
            displacements,
            self._contrary(block, (old, new), np.concatenate(tops)),
        )

    def _contrary(
        self, block: Block, scores: tuple[Matrix | None, Matrix | None], tops: npt.NDArray[np.int64]
    ) -> tuple[Contrary, Contrary]:
        """`tops` (B, 2) are the columns of both models' highest scores. What follows from scores cannot contradict."""
        match = self.vocabulary.match()
        columns = (None, None) if match is None else (match.old_column, match.new_column)
        said = (block.old, block.new)
        old, new = (
            contrary_in(said[side], matrix, tops[:, side], columns[side], block.id)
            if matrix is not None and "prediction" in predictions.columns
            else Contrary()
            for side, (predictions, matrix) in enumerate(zip((self.old, self.new), scores, strict=True))
        )
        return old, new

    def _scores(self, column: pa.Array | None, predictions: Predictions, ids: pa.Array) -> tuple[Matrix | None, Any]:
        if column is None:
            return None, True
        return row_scores(column, predictions.score_width, predictions.name, ids)

    def _groups(self, family: Family, block: Block) -> Codes:
        return group_codes(family, pa.array(block.label) if family.name == "label" else block.by[family.name])

    def _check_finite(self, rows: Rows, ids: pa.Array) -> None:
        assert rows.models is not None
        for side, predictions in enumerate((self.old, self.new)):
            scored = rows.models.scored[:, side]
            if predictions.scores and not scored.all():
                raise not_finite(predictions, ids[int(np.flatnonzero(~scored)[0])])


def _flips(rows: Rows, start: int, chosen: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], ...]:
    """Where in the block the rows with a `chosen` (7,) outcome are, and the columns from FLIP_COLUMNS' `old` on."""
    index = np.flatnonzero(chosen[rows.outcome])
    models, pair = rows.models, rows.pair
    assert models is not None
    assert rows.old is not None
    assert rows.new is not None
    return (
        start + index,
        rows.old[index],
        rows.new[index],
        rows.outcome[index],
        *models.top_probability[index].T,
        *models.confidence[index].T,
        pair.displacement[index] if pair is not None else np.full(len(index), np.nan),
        pair.rank[index] if pair is not None else np.zeros(len(index), np.int64),
    )


def _flip_table(parts: Sequence[tuple[npt.NDArray[Any], ...]], block: Block) -> pa.Table:
    """The flips of a block's parts, as FLIP_COLUMNS."""
    index, *measured = (np.concatenate(column) for column in zip(*parts, strict=True))
    columns = (block.id.take(pa.array(index)), block.label[index], *measured)
    return pa.table(dict(zip(FLIP_COLUMNS, columns, strict=True)))


def _filtered(block: Block, keep: npt.NDArray[np.bool_]) -> Block:
    mask = pa.array(keep)
    return Block(
        id=block.id.filter(mask),
        label=block.label[keep],
        old=block.old[keep],
        new=block.new[keep],
        compared=block.compared[keep],
        calibration=block.calibration[keep],
        weight=None if block.weight is None else block.weight[keep],
        by={name: column.filter(mask) for name, column in block.by.items()},
        old_scores=None,
        new_scores=None,
    )


def _worst(flips: pa.Table, number: int) -> pa.Table:
    """The negative flips of which the new model is surest; equals go by id, so that the order of rows is no matter."""
    negative = flips.filter(pc.equal(flips["outcome"], 1))
    sure = np.nan_to_num(negative["new_confidence"].to_numpy(), nan=-1.0)
    if len(sure) > 4 * number:
        # Sorting all flips of a large log by id would cost more than scoring them.
        least = np.partition(sure, -number)[-number]
        negative, sure = negative.filter(pa.array(sure >= least)), sure[sure >= least]
    order = np.lexsort((negative["id"].cast(pa.string()).to_numpy(zero_copy_only=False).astype(str), -sure))
    return negative.take(pa.array(order[:number]))


def stream(blocks: Iterator[Block], scorer: Scorer) -> Streamed | None:
    """Score all blocks on two threads (NumPy lets go of the lock) and add up in the order of the blocks."""
    total: Streamed | None = None
    with ThreadPoolExecutor(_WORKERS) as pool:
        for part in _in_order(pool, scorer, blocks):
            if part is None:
                continue
            if total is None:
                total = part
                continue
            total = Streamed(
                tuple(a + b for a, b in zip(total.tallies, part.tallies, strict=True)),
                _worst(pa.concat_tables([total.worst, part.worst]), scorer.worst),
                (*total.flips, *part.flips),
                total.displacements + part.displacements,
                (total.contrary[0] + part.contrary[0], total.contrary[1] + part.contrary[1]),
            )
    return total


def _in_order(pool: ThreadPoolExecutor, scorer: Scorer, blocks: Iterator[Block]) -> Iterator[Streamed | None]:
    """Results in order, with only a few blocks in memory at a time."""
    waiting: list[Future[Streamed | None]] = [pool.submit(scorer, block) for block in islice(blocks, 2 * _WORKERS)]
    while waiting:
        result = waiting.pop(0).result()
        waiting += [pool.submit(scorer, block) for block in islice(blocks, 1)]
        yield result
