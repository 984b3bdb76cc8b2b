"""What a reader should know of a comparison: rows that were dropped, missing, set aside or overruled."""

import pyarrow as pa

from flipguard.comparison.counted import Codes, Counted
from flipguard.comparison.groups import per_cluster
from flipguard.comparison.measure import LABELLED
from flipguard.comparison.options import Options
from flipguard.comparison.prepare import Prepared
from flipguard.comparison.sources import contradictions, has_labels
from flipguard.metrics import Tally

FEW_CLUSTERS = 20
"""Below it an interval leans on Student's quantile for a variance that hardly anything is known of."""


def notes_on(
    prepared: Prepared, counted: Counted, whole: Tally, options: Options, temperatures: tuple[float, float] | None
) -> list[str]:
    notes = list(prepared.notes)
    if prepared.old.source == prepared.new.source and not isinstance(prepared.old.source, pa.Table):
        notes.append("old and new are the same file.")
    return [*notes, *whose_labels(prepared), *notes_on_counts(counted, whole, options, temperatures)]


def whose_labels(prepared: Prepared) -> list[str]:
    """Where the two files' own labels do not both hold."""
    labels, names = prepared.sources.plan.labels, (prepared.old.name, prepared.new.name)
    if labels in ("old", "new"):
        overruled = contradictions(prepared.sources)
        holding, other = names if labels == "old" else reversed(names)
        return [f"{overruled:,} samples have other labels in {other}: those of {holding} hold."] if overruled else []
    return [] if prepared.relabelled else notes_on_labels(names, has_labels(prepared.sources))


def notes_on_labels(names: tuple[str, str], labelled: tuple[bool, bool]) -> list[str]:
    """Whose labels hold where one side has none at all.

    >>> notes_on_labels(("old.csv", "new.csv"), (False, True))
    ['old.csv has no labels: those of new.csv hold for both.']
    """
    if labelled[0] == labelled[1]:
        return []
    having, without = names if labelled[0] else reversed(names)
    return [f"{without} has no labels: those of {having} hold for both."]


def notes_on_counts(
    counted: Counted, whole: Tally, options: Options, temperatures: tuple[float, float] | None = None
) -> list[str]:
    """What the counts alone tell."""
    notes = []
    if counted.dropped_old or counted.dropped_new:
        notes.append(
            f"{counted.dropped_old:,} ids that only old has and {counted.dropped_new:,} that only new has were dropped."
        )
    notes.extend(
        f"{column} differs between the files in {number:,} {'rows' if number > 1 else 'row'}: the new file's value is "
        "used."
        for column, number in counted.differing.items()
        if number
    )
    for side, number in zip(("old", "new"), whole.missing, strict=True):
        if number:
            notes.append(f"{int(number):,} samples have no prediction of the {side} model: they count as wrong.")
    unlabelled = int(whole.count[5:].sum())
    if unlabelled:
        notes.append(f"{unlabelled:,} samples have no label: only churn counts them.")
    if counted.calibration:
        use = "set aside to fit the temperatures" if temperatures else "left out"
        notes.append(f"{counted.calibration:,} validation samples were {use}.")
    if counted.other_splits:
        notes.append(f"{counted.other_splits:,} samples of other splits than '{options.split}' were left out.")
    rows = int(whole.count.sum())
    scored = rows if whole.models is None else int(whole.models.n.max())
    if scored < rows:
        notes.append(f"{rows - scored:,} samples lack scores: NLL, ECE and the like leave them out.")
    notes.extend(
        f"{rule} 1 is 100%, so this rule never refuses. Write a share as 0.01 or 1%."
        for rule, limit in options.gate.model_dump(exclude_none=True).items()
        if rule.startswith("max_") and rule != "max_relative_nfr" and limit == 1
    )
    if whole.models is not None and whole.models.n[0] != whole.models.n[1]:
        old, new = (f"{int(n):,}" for n in whole.models.n)
        notes.append(
            f"NLL, ECE and the like are over the {old} samples that the old model scores and the {new} that the new "
            "one does; NLL's change is over those that both do."
        )
    if options.cluster is not None:
        notes.append(_note_on_clusters(per_cluster(counted, options.cluster)))
    return notes


def _note_on_clusters(clusters: Codes) -> str:
    """Of (K, 7) counts by cluster. Most intervals rest on labelled samples, and so on the clusters that have some."""
    labelled = int((clusters[:, :LABELLED].sum(axis=1) > 0).sum())
    number = labelled or len(clusters)
    what = f"{number:,} {'clusters' if number > 1 else 'cluster'}"
    if labelled and labelled < len(clusters):
        what += f" with labels, of {len(clusters):,},"
    if number == 1:
        said = "cannot tell how clusters differ: intervals of rates, differences and relative NFR are as wide as can be"
    else:
        few = ", and so few say little of how clusters differ" if number < FEW_CLUSTERS else ""
        said = f"widen the intervals of rates, differences and relative NFR{few}"
    if number < len(clusters):
        said += f"; that of churn rests on all {len(clusters):,}"
    rest = "those of churn_bound, of weighted figures, flip_cost, the noise floor and the scores"
    return f"{what} {said}; {rest} take samples as independent."
