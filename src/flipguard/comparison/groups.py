"""Classes and slices: a tally each, and the figures that make them comparable with one another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard import statistics
from flipguard.comparison.classes import Vocabulary
from flipguard.comparison.counted import Counted
from flipguard.comparison.measure import NEGATIVE, PairedIntervals, figures, measured, rate_figure
from flipguard.comparison.options import Options
from flipguard.comparison.result import Figures, Group
from flipguard.metrics import OUTCOMES, RATES, Tally
from flipguard.types import InputError

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """A group with the counts behind it: (7,) by outcome, and (K, 7) by cluster where there are clusters."""

    group: Group
    tally_count: Codes
    clusters: Codes | None


@dataclass(frozen=True)
class Family:
    """One way to group rows: its values in the order of the group codes. One group more takes what is in none."""

    name: str
    values: pa.Array


def families(counted: Counted, slices: Sequence[str]) -> tuple[Family, ...]:
    """By label first, then by each slice column."""
    labels = np.unique(counted.label[counted.label >= 0])
    found = [Family("label", pa.array(labels, pa.int64()))]
    for name in slices:
        values = pc.unique(counted.by[name]).drop_null()
        found.append(Family(name, values.take(pc.array_sort_indices(values))))
    return tuple(found)


def group_codes(family: Family, values: pa.Array | pa.ChunkedArray) -> Codes:
    """The group of each value; what is not among the family's values goes to the last."""
    place = pc.index_in(values, value_set=family.values)
    return np.asarray(pc.fill_null(place, len(family.values)), np.int64)


def counted_codes(family: Family, counted: Counted) -> Codes:
    return group_codes(family, pa.array(counted.label) if family.name == "label" else counted.by[family.name])


def counted_tally(family: Family, counted: Counted) -> Tally:
    return counted.tally(counted_codes(family, counted), len(family.values) + 1)


def with_scores(tally: Tally, scored: Tally | None) -> Tally:
    """The counts of all rows with the score sums of the rows that have scores."""
    if scored is None:
        return tally
    return replace(tally, models=scored.models, pair=scored.pair, calibrated=scored.calibrated)


def per_cluster(counted: Counted, cluster: str, rows: npt.NDArray[np.bool_] | None = None) -> Codes:
    """(K, 7) counts by cluster, over all counted rows or some."""
    codes = pc.dictionary_encode(counted.by[cluster]).combine_chunks().indices.to_numpy(zero_copy_only=False)
    chosen = slice(None) if rows is None else rows
    clusters = np.zeros((int(codes.max()) + 1, len(OUTCOMES)), np.int64)
    np.add.at(clusters, (codes[chosen], counted.outcome[chosen]), counted.count[chosen])
    occupied: Codes = clusters[clusters.sum(axis=1) > 0]
    return occupied


def grouped(
    family: Family,
    tally: Tally,
    counted: Counted,
    names: Sequence[str],
    *,
    cluster: str | None,
    **options: Any,
) -> list[Part]:
    """A group for each value that occurs, not yet adjusted for how many there are. `names` are the values' names."""
    codes = counted_codes(family, counted)
    paired = PairedIntervals.of(tally.count, options["confidence"]) if cluster is None else None
    groups = []
    for i, name in enumerate([*names, None]):
        part = tally[i]
        if not part.count.sum() or (family.name == "label" and name is None):
            continue
        rows = codes == i
        clusters = per_cluster(counted, cluster, rows) if cluster is not None else None
        known = paired[i] if paired is not None else None
        found = figures(part, clusters=clusters, ece_intervals=False, paired=known, **options)
        groups.append(Part(Group(value=name, example=_example(counted, rows), **found), part.count, clusters))
    return groups


def _example(counted: Counted, rows: npt.NDArray[np.bool_]) -> int | str | None:
    """The smallest: the order in which the counts come is a matter of threads."""
    flipped = counted.example.filter(pa.array(rows & (counted.outcome == NEGATIVE)))
    return pc.min(flipped).as_py() if len(flipped) else None


def adjusted(parts: Sequence[Part], *, confidence: float, correction: statistics.Correction) -> list[Group]:
    """The groups, in the same order, with adjusted p-values and with intervals that hold together.

    The intervals are Bonferroni's whatever adjusts the p-values: the gate takes the worst of all groups, and intervals
    that control the false coverage of selected ones alone would not hold for it.
    """
    p_values = np.array([np.nan if p.group.mcnemar_p is None else p.group.mcnemar_p for p in parts], np.float64)
    adjusted_p = statistics.adjust(p_values, method=correction)
    level = statistics.simultaneous_confidence(confidence, tests=max(len(parts), 1), method="holm")
    return [
        part.group.model_copy(
            update={
                "adjusted_p": None if np.isnan(p) else float(p),
                "simultaneous_negative_flip_rate": rate_figure(
                    part.tally_count, RATES["negative_flip_rate"], part.clusters, level
                ),
            }
        )
        for part, p in zip(parts, adjusted_p, strict=True)
    ]


def most_harmed_first(groups: Sequence[Group]) -> list[Group]:
    """By the lower end of the negative flip rate's interval: large rates that the data bear out come first."""
    return sorted(groups, key=_harm)


def _harm(group: Group) -> tuple[float, float, str]:
    rate = group.negative_flip_rate
    if rate is None:
        return (0.0, 0.0, str(group.value))
    return (-(rate.low or 0.0), -float(rate), str(group.value))


def clusters_of(counted: Counted, options: Options) -> Any:
    """(K, 7) counts by cluster, or None without clusters."""
    if options.cluster is None:
        return None
    if counted.by[options.cluster].null_count:
        raise InputError(f"the column '{options.cluster}' has missing values: every sample must belong to a cluster.")
    return per_cluster(counted, options.cluster)


def groups_of(
    vocabulary: Vocabulary,
    counted: Counted,
    groupings: tuple[Family, ...],
    tallies: list[Tally],
    options: Options,
    settings: Mapping[str, Any],
) -> tuple[list[Group], dict[str, list[Group]]]:
    """Classes, adjusted among themselves, and slices, adjusted over all columns together."""
    parts: dict[str, list[Part]] = {}
    for family, tally in zip(groupings, tallies, strict=True):
        names = [
            vocabulary.name(value) if family.name == "label" else str(value) for value in family.values.to_pylist()
        ]
        parts[family.name] = grouped(family, tally, counted, names, cluster=options.cluster, **settings)
    rule: dict[str, Any] = {"confidence": options.confidence, "correction": options.correction}
    classes = most_harmed_first(adjusted(parts.pop("label"), **rule))
    together = iter(adjusted([part for column in parts.values() for part in column], **rule))
    slices = {name: most_harmed_first([next(together) for _ in column]) for name, column in parts.items()}
    return classes, slices


def old_classes(
    vocabulary: Vocabulary,
    counted: Counted,
    family: Family,
    tally: Tally,
    options: Options,
    settings: Mapping[str, Any],
) -> Figures | None:
    """The same figures over the samples whose class the old model knows, where it does not know them all."""
    unknown = vocabulary.only_new
    if not unknown:
        return None
    kept = [i for i, code in enumerate(family.values.to_pylist()) if code not in unknown]
    if not kept:
        return None
    clusters = None
    if options.cluster is not None:
        known = (counted.label >= 0) & ~np.isin(counted.label, list(unknown))
        clusters = per_cluster(counted, options.cluster, known)
    return measured(tally[np.array(kept)].total(), clusters=clusters, **settings)
