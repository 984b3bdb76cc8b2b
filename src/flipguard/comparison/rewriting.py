"""A chain of versions rewritten by a Bayesian rule: prediction files in, the last one out with fewer flips."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flipguard._version import __version__
from flipguard.comparison.aligned import Chain, align, label_codes, prediction_codes
from flipguard.comparison.bayesian import Codes, Floats, Likelihood, Rule, Update, flips, likelihood, update
from flipguard.predictions import Predictions, read_predictions
from flipguard.predictions.columns import to_arrow
from flipguard.types import InputError


@dataclass(frozen=True)
class ChainFigures:
    """A chain of T updates over N labelled samples: ΣNF, ΣPF, ΣNF / (N·T), PF / NF, and the last version's error."""

    negative_flips: int
    positive_flips: int
    negative_flip_rate: float
    positive_per_negative: float | None
    error_rate: float


@dataclass(frozen=True, eq=False)
class Rewritten:
    """The last version's predictions as the rule stores them, and what that changed.

    `before` are the figures of the versions as they came, `after` those of what the rule stores after each of them;
    None without labels. `overruled` counts the rows in which the rule keeps to something else than the last version.
    """

    predictions: Predictions
    versions: tuple[str, ...]
    rule: Rule
    cost_ratio: float | None
    likelihood: Likelihood
    estimated_on: str
    rows: int
    overruled: int
    before: ChainFigures | None
    after: ChainFigures | None
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Everything but the predictions."""
        facts = {name: value for name, value in vars(self).items() if name != "predictions"}
        figures = {name: None if facts[name] is None else asdict(facts[name]) for name in ("before", "after")}
        return json.dumps({**facts, **figures, "flipguard_version": __version__}, indent=2)


def rewrite(
    versions: Sequence[Any],
    *,
    rule: Rule = "cr",
    cost_ratio: float = 5.0,
    likelihood: Likelihood = "auto",
    calibrate_on: Sequence[Any] = (),
    split: str | None = None,
    same_rows: bool = False,
    posteriors: bool = False,
) -> Rewritten:
    """What to store for each sample after a chain of versions, oldest first (Träuble et al. 2021).

    How far each version is to be believed is estimated on labelled rows, which are not rewritten: those of the split
    named `split`; those whose ids stand in the one file of `calibrate_on`; or, given a file per version, other data.
    With `same_rows` the rewritten rows' own labels are used: the figures then flatter the rule. The result holds the
    rewritten rows only. `posteriors` adds the final belief as `logits`.

    >>> ids, label = list(range(8)), [0, 1] * 4
    >>> v0, v1 = [0, 1, 0, 1, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1, 0, 0]
    >>> chain = [{"id": ids, "label": label, "prediction": v} for v in (v0, v1)]
    >>> found = rewrite(chain, cost_ratio=2, same_rows=True)
    >>> found.before.negative_flips, found.after.negative_flips, found.overruled
    (1, 0, 2)
    """
    if len(versions) < 2:
        raise InputError(f"rewriting needs a chain of at least two versions, {len(versions)} came.")
    files = [_read(v, f"version {i + 1}") for i, v in enumerate(versions)]
    aside = [_read(v, f"calibrate_on {i + 1}", ids_alone=len(calibrate_on) == 1) for i, v in enumerate(calibrate_on)]
    _check_choice(files, aside, split, same_rows)
    apart = aside if len(aside) > 1 else []
    chain = align(files, apart)
    calibrating = _calibrating(chain, files[-1], aside, split)
    rows = np.ones(len(chain.label), bool) if same_rows else ~calibrating
    pis = _likelihoods(chain, apart, np.ones_like(rows) if same_rows else calibrating, likelihood)
    done = update(chain.predictions[:, rows], pis, rule=rule, cost_ratio=cost_ratio, posteriors=posteriors)
    facts: dict[str, Any] = {
        "versions": tuple(_title(file) for file in files),
        "rule": rule,
        "cost_ratio": float(cost_ratio) if rule == "cr" else None,
        "likelihood": likelihood,
        "estimated_on": _estimated_on(aside, split, calibrating),
    }
    return Rewritten(
        predictions=_rewritten(files[-1], chain, rows, done, facts),
        rows=int(rows.sum()),
        overruled=int((done.stored[-1] != chain.predictions[-1, rows]).sum()),
        before=_figures(chain.predictions[:, rows], chain.label[rows]),
        after=_figures(done.stored, chain.label[rows]),
        notes=_notes(chain.label[rows], same_rows=same_rows),
        **facts,
    )


def _read(source: Any, name: str, *, ids_alone: bool = False) -> Predictions:
    path = isinstance(source, str | Path)
    return read_predictions(source, name=None if path else name, need="id" if ids_alone else "prediction")


def _title(file: Predictions) -> str:
    return " ".join(part for part in (file.model, file.version) if part) or file.name


def _check_choice(files: list[Predictions], aside: list[Predictions], split: str | None, same_rows: bool) -> None:
    if sum((bool(aside), split is not None, same_rows)) != 1:
        raise InputError(
            "each version's reliability is estimated on labelled rows that are not rewritten: choose one of "
            "--calibrate-on FILE…, --split NAME, or --same-rows, which uses the rewritten rows' own labels."
        )
    if len(aside) > 1 and len(aside) != len(files):
        raise InputError(
            f"--calibrate-on takes one file of ids, or a prediction file for each of the {len(files)} versions; "
            f"{len(aside)} came."
        )


def _calibrating(chain: Chain, last: Predictions, aside: list[Predictions], split: str | None) -> npt.NDArray[np.bool_]:
    """(N,) the rows that are set aside to estimate on."""
    if split is not None:
        if "split" not in last.columns:
            raise InputError(f"--split needs a column 'split' in {last.name}, and it has none.")
        found = np.asarray(pc.fill_null(pc.equal(last.table(["split"])["split"], split), False))
        what = f"of the split '{split}'"
    elif len(aside) == 1:
        found, what = chain.ids_in(aside[0].table(["id"])["id"]), f"that {aside[0].name} lists"
    else:
        found = np.zeros(len(chain.label), bool)
        for file in aside:
            if chain.ids_in(file.table(["id"])["id"]).any():
                raise InputError(f"{file.name} holds rows that are to be rewritten: calibrate on other samples.")
        return found
    if not found.any() or found.all():
        raise InputError(f"{'all' if found.all() else 'none'} of the {len(found):,} rows are those {what}.")
    return found


def _likelihoods(chain: Chain, apart: list[Predictions], rows: npt.NDArray[np.bool_], form: Likelihood) -> list[Floats]:
    pairs: list[tuple[Codes, Codes]] = [(said[rows], chain.label[rows]) for said in chain.predictions]
    if apart:
        for file in apart:
            if "label" not in file.columns:
                raise InputError(f"{file.name} cannot calibrate: it has no column 'label'.")
        pairs = [(prediction_codes(file, chain.names), label_codes(file, chain.names)) for file in apart]
    if any(not (label >= 0).any() for _, label in pairs):
        raise InputError("the rows to calibrate on have no labels.")
    return [likelihood(said[label >= 0], label[label >= 0], len(chain.names), form) for said, label in pairs]


def _estimated_on(aside: list[Predictions], split: str | None, calibrating: npt.NDArray[np.bool_]) -> str:
    if len(aside) > 1:
        return "other data: " + ", ".join(file.name for file in aside)
    if aside or split is not None:
        place = f"the split '{split}'" if split is not None else aside[0].name
        return f"{int(calibrating.sum()):,} rows of {place}, which are not rewritten"
    return "the rewritten rows themselves"


def _figures(stored: Codes, label: Codes) -> ChainFigures | None:
    if not (label >= 0).any():
        return None
    found, there = flips(stored, label), label >= 0
    return ChainFigures(
        negative_flips=found.negative,
        positive_flips=found.positive,
        negative_flip_rate=found.negative_flip_rate,
        positive_per_negative=found.positive_per_negative,
        error_rate=float((stored[-1, there] != label[there]).mean()),
    )


def _notes(label: Codes, *, same_rows: bool) -> tuple[str, ...]:
    notes = []
    if same_rows:
        notes.append("reliability was estimated on the rows that were rewritten, with their labels: too good a figure.")
    unlabelled = int((label < 0).sum())
    if unlabelled:
        notes.append(f"{unlabelled:,} of the {len(label):,} rewritten rows have no label and count in no figure.")
    return tuple(notes)


def _rewritten(
    last: Predictions, chain: Chain, rows: npt.NDArray[np.bool_], done: Update, facts: dict[str, Any]
) -> Predictions:
    """The last version's rows with the stored predictions; its scores and features, which are another's, left out."""
    kept = [name for name in last.columns if name not in ("prediction", "logits", "probabilities", "features")]
    table = last.table(kept).filter(pa.array(rows)).replace_schema_metadata(None)
    stored = done.stored[-1]
    missing = stored < 0
    names = pa.array(chain.names, pa.string())
    column = pa.array(stored, mask=missing) if chain.indexed else pc.take(names, pa.array(stored, mask=missing))
    table = table.append_column("prediction", column)
    if done.log_posterior is not None:
        table = table.append_column("logits", to_arrow(done.log_posterior.astype(np.float32), "log posterior"))
    rule = f"{facts['rule']} {facts['cost_ratio']:g}" if facts["cost_ratio"] is not None else facts["rule"]
    return Predictions.from_table(
        table,
        name=f"{last.name}, rewritten",
        classes=chain.names if chain.listed else None,
        model=last.model,
        version=f"{last.version or ''} rewritten ({rule})".strip(),
        metadata={**last.metadata, "rewritten": {**facts, "versions": list(facts["versions"])}},
    )
