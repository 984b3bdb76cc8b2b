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
    spelled, stray = _stray_predictions(sides, vocabulary.renamed)
    vocabulary = replace(vocabulary, notes=(*spelled, *vocabulary.notes, *strange, *stray))
    _check_width(old, new, vocabulary)
    return vocabulary


def _stray_predictions(sides: list[Side], renamed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Predicted names that nothing else knows: no label, no class list, not the other model. Perhaps misspelt.

    Where there are labels and every name is such a one, nothing could be right. The first of the lists is of those
    that differ from a label in their spelling alone, also where both models have them: all of them count as wrong.
    """
    old, new = _renamed(sides[0], renamed), sides[1]
    labels = {*(old.labels or ()), *(new.labels or ())}
    twins = {_spelled_alike(label): label for label in sorted(labels, reverse=True)}
    spelled, notes = [], []
    for side, other in ((old, new), (new, old)):
        if side.classes is not None or side.predictions is None:
            continue
        unknown = sorted(set(side.predictions) - labels - set(other.classes or ()))
        stray = [name for name in unknown if name not in (other.predictions or ())]
        if stray and len(stray) == len(set(side.predictions)) and labels:
            label = twins.get(_spelled_alike(stray[0]), min(labels))
            raise InputError(
                f"{side.name} predicts '{stray[0]}'{_and_others(len(stray) - 1)}, and none of that is a label (such as "
                f"'{label}') or a class of the other model: write predictions as the labels are written."
            )
        alike = [name for name in unknown if _spelled_alike(name) in twins]
        spelled += _note_on_spelling(side.name, alike, twins, old=side is old)
        stray = [name for name in stray if name not in alike]
        if stray and (labels or other.predictions or other.classes):
            notes.append(f"{side.name} predicts '{stray[0]}', which is no label and no class of the other model.")
    return spelled, notes


def _renamed(side: Side, names: Mapping[str, str]) -> Side:
    """As the class map has it."""

    def through(values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if values is None else tuple(names.get(value, value) for value in values)

    return replace(
        side, classes=through(side.classes), labels=through(side.labels), predictions=through(side.predictions)
    )


def _spelled_alike(name: str) -> str:
    """One text for all that differ in case and blanks alone."""
    return " ".join(name.split()).casefold()


def _note_on_spelling(file: str, names: list[str], twins: Mapping[str, str], *, old: bool) -> list[str]:
    """A class map leads from the old file's names to the new one's, and cannot rename the latter.

    >>> _note_on_spelling("old.csv", ["Fish"], {"fish": "fish"}, old=True)
    ["old.csv: 'Fish' differs from the label 'fish' only in its spelling: --class-map renames it."]
    """
    if not names:
        return []
    label = twins[_spelled_alike(names[0])]
    more = f", and {len(names) - 1:,} more likewise" if len(names) > 1 else ""
    remedy = "--class-map renames it" if old else "write it as the label is written"
    return [f"{file}: '{names[0]}' differs from the label '{label}' only in its spelling{more}: {remedy}."]


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
                    f"unknown. Give each class a column of its own (p_{name}, …), write it by "
                    "Predictions.from_arrays(classes=…), use class indices, or leave the scores out."
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
