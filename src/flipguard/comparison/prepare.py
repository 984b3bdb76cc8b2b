"""Everything that is settled before a row is counted: classes, columns, labels, splits, who overrules whom."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard import statistics
from flipguard.comparison.classes import Side, Vocabulary, match_classes, read_class_map
from flipguard.comparison.corrected import relabelled
from flipguard.comparison.counted import Counted, as_codes
from flipguard.comparison.dense import dense_counts
from flipguard.comparison.engine import Sources, coded_table, count, describe, quoted, register
from flipguard.comparison.expression import Plan
from flipguard.comparison.gate import GateSettings
from flipguard.comparison.scores import as_logits, row_scores
from flipguard.comparison.stream import Block, aligned_blocks, joined_blocks, same_order
from flipguard.metrics import fit_temperature
from flipguard.predictions import Predictions, read_predictions
from flipguard.predictions.columns import is_text, plain_type
from flipguard.types import InputError

MOST_SLICE_VALUES = 100


@dataclass(frozen=True)
class Options:
    """What a comparison is asked for; the arguments of `compare`."""

    by: tuple[str, ...] | None = None
    confidence: float = 0.95
    labels: Any = "agree"
    class_map: Mapping[str, str] | str | Path | None = None
    on_missing: str = "error"
    cluster: str | None = None
    noise: tuple[Any, ...] = ()
    calibrate_on: tuple[Any, ...] = ()
    split: str | None = None
    correction: statistics.Correction = "holm"
    alpha: float = 1.0
    cost_ratio: float | None = None
    gate: GateSettings = field(default_factory=GateSettings)
    flips: str | Path | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.confidence < 1:
            raise InputError(f"the confidence must lie between 0 and 1, it is {self.confidence:g}.")
        if self.on_missing not in ("error", "drop"):
            raise InputError(f"on_missing must be error or drop, not '{self.on_missing}'.")
        if self.correction not in ("holm", "bh"):
            raise InputError(f"the correction must be holm or bh, not '{self.correction}'.")
        if not 0 < self.alpha < math.inf:
            raise InputError(f"alpha, the exponent of surrogate churn, must be above 0, it is {self.alpha:g}.")
        if self.cost_ratio is not None and not 0 <= self.cost_ratio < math.inf:
            raise InputError(f"the cost ratio must not be negative, it is {self.cost_ratio:g}.")
        if len(self.calibrate_on) > 2:
            raise InputError(
                "calibrate_on takes one file of ids, or two prediction files: the old model's, the new one's."
            )


@dataclass(frozen=True)
class Prepared:
    """Two files, ready to be counted and streamed."""

    old: Predictions
    new: Predictions
    sources: Sources
    vocabulary: Vocabulary
    slices: tuple[str, ...]
    aligned: bool
    id_as_text: bool
    relabelled: bool
    notes: tuple[str, ...]

    @property
    def has_scores(self) -> bool:
        return bool(self.old.scores or self.new.scores)

    def count(self, *, on_missing: str) -> Counted:
        """Count by address where the ids allow it, else by the expression on DuckDB: the same counts."""
        plan = self.sources.plan
        found = None if self.relabelled else dense_counts(self.old, self.new, plan, self.vocabulary)
        if found is not None:
            return found
        return count(self.sources, self.old, self.new, on_missing=on_missing, vocabulary=self.vocabulary)

    def blocks(self) -> Iterator[Block]:
        """The rows of both files side by side, with their scores."""
        plan = self.sources.plan
        if self.aligned:
            return aligned_blocks(self.old, self.new, plan, tuple(self.sources.slices), self.vocabulary)
        return joined_blocks(self.sources.old, self.sources.new, plan, self.sources.slices)


def prepare(connection: duckdb.DuckDBPyConnection, old: Predictions, new: Predictions, options: Options) -> Prepared:
    corrected, aside = _overruling(old, new, options)
    named = [p for p in (old, new, corrected, aside) if p is not None]
    whole = [pa.types.is_integer(plain_type(p.schema.field("id").type)) for p in named]
    id_as_text = any(whole) and not all(whole)
    has_scores = bool(old.scores or new.scores)
    aligned = has_scores and corrected is None and aside is None and same_order(old, new)
    joins_scores = has_scores and not aligned
    for predictions, view in ((old, "old_rows"), (new, "new_rows")):
        register(connection, predictions, view, scores=joins_scores)
        _check_weight(connection, predictions, view)
    vocabulary = _vocabulary(connection, old, new, options)
    slices, notes = _slices(connection, old, new, options)
    grouped = dict.fromkeys((*slices, *([options.cluster] if options.cluster else [])))
    shared: dict[str, Any] = {
        "id_as_text": id_as_text,
        "slices": {name: f"by_{i}" for i, name in enumerate(grouped)},
        "relabelled": relabelled(connection, corrected, vocabulary, id_as_text) if corrected is not None else None,
        "aside": _aside(connection, aside, id_as_text) if aside is not None else None,
        "scores": joins_scores,
    }
    left, left_columns = coded_table(connection, old, "old_rows", vocabulary.old, **shared)
    right, right_columns = coded_table(connection, new, "new_rows", vocabulary.new, **shared)
    plan = Plan(
        old_columns=left_columns,
        new_columns=right_columns,
        labels="agree" if corrected is not None else options.labels,
        by=tuple(shared["slices"].values()),
        split=options.split,
        scores=joins_scores,
    )
    if options.split is not None and not plan.has("split"):
        raise InputError("--split needs a column 'split' in one of the files, and neither has one.")
    sources = Sources(connection, left, right, plan, shared["slices"])
    return Prepared(
        old,
        new,
        sources,
        vocabulary,
        slices,
        aligned,
        id_as_text=id_as_text,
        relabelled=corrected is not None,
        notes=(*vocabulary.notes, *notes),
    )


def _overruling(old: Predictions, new: Predictions, options: Options) -> tuple[Predictions | None, Predictions | None]:
    """The file of corrected labels and that of ids to calibrate on, where there are any."""
    corrected = aside = None
    if not isinstance(options.labels, str) or options.labels not in ("agree", "old", "new"):
        path = isinstance(options.labels, str | Path)
        corrected = read_predictions(options.labels, name=None if path else "labels", need="label")
    for side, predictions in (("old", old), ("new", new)):
        if corrected is None and options.labels == side and "label" not in predictions.columns:
            raise InputError(f"--labels {side}: {predictions.name} has no column 'label'.")
    if len(options.calibrate_on) == 1:
        if not (old.scores and new.scores):
            raise InputError("--calibrate-on needs logits or probabilities in both files.")
        path = isinstance(options.calibrate_on[0], str | Path)
        aside = read_predictions(options.calibrate_on[0], name=None if path else "calibrate_on", need="id")
    return corrected, aside


def _check_weight(connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str) -> None:
    if "weight" not in predictions.columns:
        return
    # A comparison alone would pass over NaN: the bounds that a Parquet file states leave it out.
    bad = f"FROM {view} WHERE weight IS NULL OR NOT isfinite(weight::DOUBLE) OR weight < 0 LIMIT 1"
    for id_, weight in connection.sql(f"SELECT id, weight {bad}").fetchall():
        came = "none" if weight is None else f"{weight:g}"
        raise InputError(f"{predictions.name}: the weight of id {id_} must be a number of at least 0, it is {came}.")


def _vocabulary(
    connection: duckdb.DuckDBPyConnection, old: Predictions, new: Predictions, options: Options
) -> Vocabulary:
    class_map = options.class_map
    if isinstance(class_map, str | Path):
        class_map = read_class_map(class_map)
    class_map = {str(before): str(after) for before, after in (class_map or {}).items()}
    sides = [describe(connection, old, "old_rows"), describe(connection, new, "new_rows")]
    named = any(side.classes is not None or side.labels or side.predictions for side in sides) or class_map
    by_name = class_map or any(side.labels is not None or side.predictions is not None for side in sides)
    if named and by_name:
        pairs = ((old, "old_rows"), (new, "new_rows"))
        sides = [_observed(connection, p, view, side) for (p, view), side in zip(pairs, sides, strict=True)]
        sides = [_by_score(p, side) for (p, _), side in zip(pairs, sides, strict=True)]
    vocabulary = match_classes(sides[0], sides[1], class_map)
    strange = _strange_labels(sides, vocabulary)
    vocabulary = replace(vocabulary, notes=(*vocabulary.notes, *strange, *_stray_predictions(sides)))
    _check_width(old, new, vocabulary)
    return vocabulary


def _stray_predictions(sides: list[Side]) -> list[str]:
    """Predicted names that nothing else knows: no label, no class list, not the other model. Perhaps misspelt."""
    notes = []
    for side, other in (sides, sides[::-1]):
        if side.classes is not None or side.predictions is None:
            continue
        known = {*(side.labels or ()), *(other.labels or ()), *(other.predictions or ()), *(other.classes or ())}
        stray = sorted(set(side.predictions) - known)
        if stray and known:
            notes.append(f"{side.name} predicts '{stray[0]}', which is no label and no class of the other model.")
    return notes


def _observed(connection: duckdb.DuckDBPyConnection, predictions: Predictions, view: str, side: Side) -> Side:
    if side.classes is not None or not side.has_indices:
        return side
    return describe(connection, predictions, view, observe=True)


def _by_score(predictions: Predictions, side: Side) -> Side:
    """Without a list of classes a number is its own name, and score i is that of class i: names then lead nowhere."""
    if side.classes is not None:
        return side
    labels, predicted = side.labels or (), side.predictions or ()
    if predictions.scores:
        for name in (*labels, *predicted):
            if not name.isdecimal():
                raise InputError(
                    f"{side.name} has scores and the class '{name}', but no list of classes: which score is whose is "
                    "unknown. Write it by Predictions.from_arrays(classes=…), use class indices, or leave the scores "
                    "out."
                )
        return replace(side, classes=tuple(str(i) for i in range(predictions.score_width)))
    text = [c in predictions.columns and is_text(predictions.schema.field(c).type) for c in ("label", "prediction")]
    if labels and predicted and text[0] != text[1] and not set(labels) & set(predicted):
        raise InputError(
            f"{side.name} has labels such as '{labels[0]}' and predictions such as '{predicted[0]}', and no list of "
            "classes that says which is which. Write it with its classes."
        )
    return side


def _strange_labels(sides: list[Side], vocabulary: Vocabulary) -> list[str]:
    """Labels that no model has as a class, once both say what their classes are.

    Where both files have such a label it is a class of the data that neither model knows, and both are wrong about it;
    in one file alone it can only be a mistake.
    """
    if vocabulary.names is None or any(side.classes is None for side in sides):
        return []
    known = {
        vocabulary.names[code] for codes in (vocabulary.old_classes, vocabulary.new_classes) for code in codes or ()
    }
    labels = [
        {vocabulary.names[mapping[name]] if mapping is not None else name: name for name in side.labels or ()}
        for side, mapping in zip(sides, (vocabulary.old, vocabulary.new), strict=True)
    ]
    strange = sorted(name for name in labels[0].keys() & labels[1].keys() if name not in known)
    for side, names in zip(sides, labels, strict=True):
        for name in sorted(names.keys() - known - set(strange)):
            raise InputError(
                f"{side.name}: the label '{names[name]}' is no class of either model{_nearest(name, known)}."
            )
    if not strange:
        return []
    more = f" and {len(strange) - 1:,} more" if len(strange) > 1 else ""
    return [
        f"the label '{strange[0]}'{more}: no class of either model{_nearest(strange[0], known)}; its samples count as "
        "wrong for both."
    ]


def _nearest(name: str, known: set[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _check_width(old: Predictions, new: Predictions, vocabulary: Vocabulary) -> None:
    """Scores must have one column per class name; two files without names must agree on the number of columns."""
    widths = {}
    for predictions in (old, new):
        if predictions.scores:
            widths[predictions.name] = predictions.score_width
            if predictions.classes is not None and widths[predictions.name] != len(predictions.classes):
                raise InputError(
                    f"{predictions.name}: its rows hold {widths[predictions.name]} scores, "
                    f"but it names {len(predictions.classes)} classes."
                )
    if old.scores and vocabulary.old_classes and len(set(vocabulary.old_classes)) < len(vocabulary.old_classes):
        raise InputError(
            f"the class map makes one class of several of {old.name}'s, and their scores cannot be made one: leave the "
            "scores out."
        )
    if old.scores and new.scores and vocabulary.match() is None and old.score_width != new.score_width:
        raise InputError(
            f"{old.name} has {old.score_width} scores per row and {new.name} {new.score_width}: class names in both "
            "files are needed to tell which classes are the same."
        )


def _slices(
    connection: duckdb.DuckDBPyConnection, old: Predictions, new: Predictions, options: Options
) -> tuple[tuple[str, ...], list[str]]:
    """The slice columns to group by: those asked for, or every one with few values."""
    known = {name: p for p in (old, new) for name in p.slices}
    for name in (*(options.by or ()), *([options.cluster] if options.cluster else ())):
        if name == options.cluster == "label":
            raise InputError("samples of one class are not one cluster: --cluster needs a column such as customer.")
        if name not in known and name != "label":
            close = get_close_matches(name, known, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else f" Columns to slice by: {', '.join(known) or 'none'}."
            raise InputError(f"neither file has a column '{name}'.{hint}")
        for predictions in (old, new):
            if name in predictions.slices and pa.types.is_nested(predictions.schema.field(name).type):
                raise InputError(
                    f"{predictions.name}: column '{name}' holds a list or struct per row: no value to slice by."
                )
    if options.by is not None:
        asked = tuple(dict.fromkeys(name for name in options.by if name != "label"))
        _check_kinds(old, new, (*asked, *([options.cluster] if options.cluster else [])))
        return asked, []
    chosen: list[str] = []
    many: list[str] = []
    for name, predictions in known.items():
        kind = plain_type(predictions.schema.field(name).type)
        if name == options.cluster or pa.types.is_nested(kind) or pa.types.is_floating(kind):
            continue
        view = "new_rows" if predictions is new else "old_rows"
        few = f"SELECT DISTINCT {quoted(name)} FROM {view} LIMIT {MOST_SLICE_VALUES + 1}"
        distinct = connection.sql(f"SELECT count(*) FROM ({few})").fetchall()[0][0]
        (chosen if distinct <= MOST_SLICE_VALUES else many).append(name)
    _check_kinds(old, new, (*chosen, *([options.cluster] if options.cluster else [])))
    notes = [f"not sliced by {name}: it has over {MOST_SLICE_VALUES} values (--by {name} does it)." for name in many]
    return tuple(chosen), notes


def _check_kinds(old: Predictions, new: Predictions, columns: Iterable[str]) -> None:
    """A value that is a number in one file and a text in the other is two values."""
    for name in columns:
        if name in old.slices and name in new.slices:
            kinds = [plain_type(p.schema.field(name).type) for p in (old, new)]
            if is_text(kinds[0]) != is_text(kinds[1]) and not any(pa.types.is_null(kind) for kind in kinds):
                raise InputError(
                    f"column '{name}' holds {kinds[0]} in {old.name} and {kinds[1]} in {new.name}: write it alike."
                )


def _aside(connection: duckdb.DuckDBPyConnection, source: Predictions, id_as_text: bool) -> str:
    """A view of the ids to calibrate on."""
    ids = pc.unique(source.table(["id"])["id"])
    connection.register("aside", pa.table({"id": ids.cast(pa.string()) if id_as_text else ids}))
    return "aside"


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
