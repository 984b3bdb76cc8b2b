"""`compare` and `matrix`: prediction files in, comparisons out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flipguard import statistics
from flipguard.comparison.contrary import note_on_contrary
from flipguard.comparison.counted import Counted
from flipguard.comparison.detail import Detail
from flipguard.comparison.engine import engine
from flipguard.comparison.flips import (
    changed_rows,
    find_negative_flips,
    flipped_samples,
    named,
    slice_columns,
    write_flips,
)
from flipguard.comparison.gate import GateSettings, judge
from flipguard.comparison.groups import (
    Family,
    clusters_of,
    counted_tally,
    families,
    groups_of,
    old_classes,
    with_scores,
)
from flipguard.comparison.measure import figures, measured
from flipguard.comparison.noise import noise_floor, refuse_itself
from flipguard.comparison.notes import notes_on
from flipguard.comparison.options import Options, options_of
from flipguard.comparison.prepare import Prepared, prepare
from flipguard.comparison.result import Comparison, Figures, File, FlippedSample, Group
from flipguard.comparison.stream import Scorer, Streamed, stream
from flipguard.comparison.temperatures import fit_temperatures, temperature_on
from flipguard.metrics import Tally
from flipguard.predictions import Predictions, read_predictions
from flipguard.types import InputError

WORST_FLIPS = 10


def compare(
    old: Any,
    new: Any,
    *,
    by: Sequence[str] | None = None,
    confidence: float = 0.95,
    labels: Any = "agree",
    class_map: Mapping[str, str] | str | Path | None = None,
    on_missing: str = "error",
    cluster: str | None = None,
    noise: Sequence[Any] = (),
    calibrate_on: Sequence[Any] = (),
    split: str | None = None,
    correction: statistics.Correction = "holm",
    alpha: float = 1.0,
    cost_ratio: float | None = None,
    gate: GateSettings | Mapping[str, Any] | None = None,
    flips: str | Path | None = None,
    memory: str | None = None,
) -> Comparison:
    """Compare two models by what they said about the same samples.

    `old` and `new`: a path (Parquet, CSV, NPZ, Arrow, a folder or glob of parts), a data frame, a dict of arrays, or
    `Predictions`. Rows are aligned by id.

    by            slice columns; by default every further column with at most 100 values
    labels        whose labels hold: "agree" (a contradiction is an error), "old", "new", or a source with id and label
    class_map     the old file's class names to the new one's: a dict, or a JSON or CSV file
    on_missing    "error", or "drop" ids that only one file has
    cluster       a column whose equal values are not independent samples (one video, one customer)
    noise         predictions of retrained copies of the old model: the flips that retraining alone causes
    calibrate_on  a source of ids to fit temperatures on, or the two models' own validation predictions; without it the
                  rows whose `split` is validation
    split         compare only rows of this split
    correction    "holm" or "bh" over classes and over slices
    alpha         the exponent of surrogate churn
    cost_ratio    what a negative flip costs, in positive flips, for `flip_cost`
    gate          thresholds, see GateSettings
    flips         where to write every changed prediction (.parquet, .csv, .jsonl)
    memory        what DuckDB may use before it spills to disk, such as "4GB"

    >>> old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]}
    >>> new = {"id": [4, 3, 2, 1], "label": [0, 1, 1, 0], "prediction": [0, 0, 1, 0]}
    >>> result = compare(old, new)
    >>> result.negative_flips, result.positive_flips, result.negative_flip_rate.value
    (1, 1, 0.25)
    """
    options = options_of(
        by=by,
        confidence=confidence,
        labels=labels,
        class_map=class_map,
        on_missing=on_missing,
        cluster=cluster,
        noise=noise,
        calibrate_on=calibrate_on,
        split=split,
        correction=correction,
        alpha=alpha,
        cost_ratio=cost_ratio,
        gate=gate,
        flips=flips,
        memory=memory,
    )
    with engine(memory) as connection:
        prepared = prepare(connection, _named(old, "old"), _named(new, "new"), options)
        return _compare(prepared, options)[0]


def compare_in_detail(old: Any, new: Any, **options: Any) -> Detail:
    """The comparison of `compare`, whose options it takes, with its flips, calibration bins and displacements.

    >>> old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]}
    >>> detail = compare_in_detail(old, {**old, "prediction": [0, 1, 0, 0]})
    >>> detail.comparison.negative_flips, detail.flips["id"].to_pylist()
    (1, [3, 4])
    """
    settings = options_of(**options)
    with engine(settings.memory) as connection:
        prepared = prepare(connection, _named(old, "old"), _named(new, "new"), settings)
        comparison, streamed, bins = _compare(prepared, settings, detail=True)
        flips = _all_flips(prepared, streamed)
    displacements = streamed.displacements if streamed is not None and comparison.logit_displacement else None
    return Detail(
        comparison=comparison,
        flips=flips,
        slices=slice_columns(prepared.slices),
        bins=bins,
        displacements=displacements if isinstance(displacements, np.ndarray) else None,
    )


def compare_all(old: Any, new: Any, **options: Any) -> Figures:
    """What `compare`, whose options it takes, says of all samples together, and nothing of classes, slices or flips.

    Each class costs as much as the whole; calibration errors are without intervals, which cost most of the rest.

    >>> old = {"id": [1, 2, 3, 4], "label": [0, 1, 1, 0], "prediction": [0, 1, 1, 1]}
    >>> found = compare_all(old, {**old, "prediction": [0, 1, 0, 0]})
    >>> found.negative_flips, found.positive_flips, found.churn.value
    (1, 1, 0.5)
    """
    settings = options_of(**options)
    with engine(settings.memory) as connection:
        prepared = prepare(connection, _named(old, "old"), _named(new, "new"), settings)
        tallied = _tallied(prepared, settings, keep_flips=False)
    clusters = clusters_of(tallied.counted, settings)
    return measured(tallied.whole, clusters=clusters, ece_intervals=False, **tallied.settings)


@dataclass(frozen=True)
class _Tallied:
    """Everything counted and scored, by label and by each slice, and how figures are made of it."""

    counted: Counted
    groupings: tuple[Family, ...]
    tallies: list[Tally]
    whole: Tally
    streamed: Streamed | None
    temperatures: tuple[float, float] | None
    settings: dict[str, Any]


def _tallied(prepared: Prepared, options: Options, *, keep_flips: bool) -> _Tallied:
    counted = prepared.count(on_missing=options.on_missing)
    groupings = families(counted, prepared.slices)
    temperatures = _temperatures(prepared, options)
    streamed = _stream(prepared, options, groupings, temperatures, keep_flips=keep_flips)
    scored = streamed.tallies if streamed is not None else (None,) * len(groupings)
    tallies = [
        with_scores(counted_tally(family, counted), scores) for family, scores in zip(groupings, scored, strict=True)
    ]
    settings: dict[str, Any] = {
        "confidence": options.confidence,
        "cost_ratio": options.cost_ratio,
        "displacement": prepared.old.scores == prepared.new.scores == "logits",
    }
    return _Tallied(counted, groupings, tallies, tallies[0].total(), streamed, temperatures, settings)


def _compare(
    prepared: Prepared, options: Options, *, detail: bool = False
) -> tuple[Comparison, Streamed | None, npt.NDArray[np.float64] | None]:
    """The comparison, what the pass over the scores kept, and the whole set's calibration bins."""
    tallied = _tallied(prepared, options, keep_flips=detail or options.flips is not None)
    counted, groupings, tallies, whole = tallied.counted, tallied.groupings, tallied.tallies, tallied.whole
    streamed, temperatures, settings = tallied.streamed, tallied.temperatures, tallied.settings
    clusters = clusters_of(counted, options)
    classes, slices = groups_of(prepared.vocabulary, counted, groupings, tallies, options, settings)
    found = figures(whole, clusters=clusters, **settings)
    comparison = Comparison(
        **found,
        old=_file(prepared.old),
        new=_file(prepared.new),
        confidence=options.confidence,
        cluster=options.cluster,
        surrogate_churn_alpha=options.alpha,
        cost_ratio=options.cost_ratio,
        temperature_old=temperatures[0] if temperatures else None,
        temperature_new=temperatures[1] if temperatures else None,
        correction=options.correction,
        old_classes=old_classes(prepared.vocabulary, counted, groupings[0], tallies[0], options, settings),
        classes=classes,
        slices=slices,
        worst_flips=_worst_flips(prepared, counted, classes, streamed),
        noise=_noise(prepared, options, found["labelled"]),
        samples_to_significance=samples_to_significance(found, options),
        notes=[*notes_on(prepared, counted, whole, options, temperatures), *_notes_on_scores(prepared, streamed)],
    )
    comparison = comparison.model_copy(update={"gate": judge(comparison, options.gate)})
    if options.flips is not None:
        write_flips(_all_flips(prepared, streamed), options.flips)
    return comparison, streamed, None if whole.models is None else whole.models.bins


def _notes_on_scores(prepared: Prepared, streamed: Streamed | None) -> list[str]:
    if streamed is None:
        return []
    sides = zip((prepared.old, prepared.new), streamed.contrary, strict=True)
    return [note for predictions, found in sides for note in note_on_contrary(predictions.name, found)]


def _all_flips(prepared: Prepared, streamed: Streamed | None) -> pa.Table:
    measures = streamed.flips if streamed is not None else ()
    return named(changed_rows(prepared.sources), prepared.vocabulary, measures)


def _stream(
    prepared: Prepared,
    options: Options,
    groupings: tuple[Family, ...],
    temperatures: tuple[float, float] | None,
    *,
    keep_flips: bool,
) -> Streamed | None:
    if not prepared.has_scores:
        return None
    scorer = Scorer(
        old=prepared.old,
        new=prepared.new,
        vocabulary=prepared.vocabulary,
        families=groupings,
        alpha=options.alpha,
        temperature=temperatures,
        keep_flips=keep_flips,
        worst=WORST_FLIPS,
    )
    return stream(prepared.blocks(), scorer)


def _temperatures(prepared: Prepared, options: Options) -> tuple[float, float] | None:
    if len(options.calibrate_on) == 2:
        sides = zip(("calibrate_on (old)", "calibrate_on (new)"), options.calibrate_on, strict=True)
        first, second = (_named(source, name) for name, source in sides)
        return temperature_on(first), temperature_on(second)
    if not (prepared.old.scores and prepared.new.scores and prepared.sources.plan.has("split")):
        return None
    found = fit_temperatures(prepared.blocks(), prepared.old, prepared.new, prepared.vocabulary)
    if found is None and options.calibrate_on:
        raise InputError("none of the ids to calibrate on is a labelled row of both files.")
    return found


def _worst_flips(
    prepared: Prepared, counted: Counted, classes: Sequence[Group], streamed: Streamed | None
) -> list[FlippedSample]:
    """With scores, the flips of which the new model is surest; without, one of each of the classes that hurt most."""
    vocabulary = prepared.vocabulary
    if streamed is not None:
        return flipped_samples(streamed.worst, vocabulary)
    code = {vocabulary.name(int(label)): int(label) for label in np.unique(counted.label[counted.label >= 0])}
    chosen = [group for group in classes if group.example is not None][:WORST_FLIPS]
    examples = {g.example: code[g.value] for g in chosen if g.example is not None and g.value is not None}
    return flipped_samples(find_negative_flips(prepared.sources, examples, counted.said), vocabulary)


def _named(source: Any, name: str) -> Predictions:
    return read_predictions(source, name=None if isinstance(source, str | Path) else name)


def _noise(prepared: Prepared, options: Options, labelled: int) -> Any:
    if not options.noise:
        return None
    copies = [_named(source, f"noise {i + 1}") for i, source in enumerate(options.noise)]
    refuse_itself(copies, prepared.old, prepared.new)
    return noise_floor(
        prepared.sources,
        copies,
        prepared.vocabulary,
        id_as_text=prepared.id_as_text,
        labelled=labelled,
        confidence=options.confidence,
    )


def samples_to_significance(found: Mapping[str, Any], options: Options) -> int | None:
    """At how many samples this difference in error would be significant, where it is not."""
    p = found.get("mcnemar_p")
    if p is None or p <= 1 - options.confidence or options.cluster is not None:
        return None
    needed = statistics.samples_for_mcnemar(
        found["negative_flips"], found["positive_flips"], found["labelled"], confidence=options.confidence
    )
    return needed if needed is not None and needed > found["labelled"] else None


def _file(predictions: Predictions) -> File:
    return File(
        name=predictions.name,
        rows=predictions.rows,
        model=predictions.model,
        version=predictions.version,
        fingerprint=predictions.fingerprint,
    )
