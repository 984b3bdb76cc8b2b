"""The classes of two files, settled before a row is counted: whose names hold, and what can only be a mistake."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

import duckdb

from flipguard.comparison.classes import Side, Vocabulary, match_classes, read_class_map
from flipguard.comparison.engine import describe
from flipguard.predictions import Predictions
from flipguard.predictions.columns import is_text
from flipguard.types import InputError


def settled_vocabulary(
    connection: duckdb.DuckDBPyConnection,
    old: Predictions,
    new: Predictions,
    class_map: Mapping[str, str] | str | Path | None,
) -> Vocabulary:
    """One vocabulary for the views `old_rows` and `new_rows`, with notes on what is odd about it."""
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
    """Predicted names that nothing else knows: no label, no class list, not the other model. Perhaps misspelt.

    Where there are labels and every name is such a one, nothing could be right.
    """
    notes = []
    for side, other in (sides, sides[::-1]):
        if side.classes is not None or side.predictions is None:
            continue
        known = {*(side.labels or ()), *(other.labels or ()), *(other.predictions or ()), *(other.classes or ())}
        stray = sorted(set(side.predictions) - known)
        if stray and len(stray) == len(set(side.predictions)) and (side.labels or other.labels):
            label = sorted({*(side.labels or ()), *(other.labels or ())})[0]
            raise InputError(
                f"{side.name} predicts '{stray[0]}'{_and_others(len(stray) - 1)}, and none of that is a label (such as "
                f"'{label}') or a class of the other model: write predictions as the labels are written."
            )
        if stray and known:
            notes.append(f"{side.name} predicts '{stray[0]}', which is no label and no class of the other model.")
    return notes


def _and_others(number: int) -> str:
    return f" and {number} other class{'es' if number > 1 else ''}" if number else ""


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
