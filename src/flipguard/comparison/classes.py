"""Two models' classes, matched by name: one vocabulary, and the way from each file's values to its codes."""

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import numpy.typing as npt

from flipguard.metrics import ClassMatch
from flipguard.types import InputError

Value = int | str


@dataclass(frozen=True)
class Side:
    """What one file says of classes: its list of names, if it has one, and the distinct values of its text columns.

    `labels` and `predictions` are None for a column of class indices (or one that is not there).
    """

    name: str
    classes: tuple[str, ...] | None
    labels: tuple[str, ...] | None = None
    predictions: tuple[str, ...] | None = None
    has_indices: bool = True


@dataclass(frozen=True)
class Vocabulary:
    """The union of the classes. A class's code is its index in `names`; without names a class is its own code.

    `old` and `new` lead from the values in a file (class index or name) to codes; None where values are codes already.
    """

    names: tuple[str, ...] | None
    old: Mapping[Value, int] | None
    new: Mapping[Value, int] | None
    old_classes: tuple[int, ...] | None
    new_classes: tuple[int, ...] | None
    notes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)

    def name(self, code: int) -> str:
        if self.names is None:
            return str(code)
        if not 0 <= code < len(self.names):
            # Ranges are checked by the statistics in a Parquet footer, which a damaged file can contradict.
            raise InputError(f"a row has class {code}, outside the {len(self.names)} classes: write the file again.")
        return self.names[code]

    @property
    def only_new(self) -> frozenset[int]:
        """Codes that the new model knows and the old one does not."""
        if self.old_classes is None or self.new_classes is None:
            return frozenset()
        return frozenset(self.new_classes) - frozenset(self.old_classes)

    def match(self) -> ClassMatch | None:
        """Columns of the logits for each code; None when a code is its own column in every file that has a class list.

        A file without a class list has no columns: it has no scores, or its classes are not matched by name.
        """
        listed = [codes for codes in (self.old_classes, self.new_classes) if codes is not None]
        if self.names is None or all(codes == tuple(range(len(self.names))) for codes in listed):
            return None
        old, new = (_columns(codes or (), len(self.names)) for codes in (self.old_classes, self.new_classes))
        shared = np.flatnonzero((old >= 0) & (new >= 0))
        return ClassMatch(old_column=old, new_column=new, old_shared=old[shared], new_shared=new[shared])


def _columns(codes: tuple[int, ...], size: int) -> npt.NDArray[np.int64]:
    columns = np.full(size, -1, np.int64)
    columns[list(codes)] = np.arange(len(codes))
    return columns


def match_classes(old: Side, new: Side, class_map: Mapping[str, str] | None = None) -> Vocabulary:
    """One vocabulary for both files.

    Class indices with the same list of names (or with none) are codes already. Everything else goes by name: an index
    through its file's list, or, without one, as its decimal text. `class_map` renames the old file's classes.

    >>> v = match_classes(Side("old", ("cat", "dog")), Side("new", ("ant", "cat", "dog")))
    >>> v.names, v.old, v.only_new
    (('ant', 'cat', 'dog'), {0: 1, 1: 2}, frozenset({0}))
    """
    texts = (old.labels, old.predictions, new.labels, new.predictions)
    by_index = all(values is None for values in texts) and not class_map
    if by_index and (old.classes == new.classes or old.classes is None or new.classes is None):
        return _same_indices(old, new)
    renamed = dict(class_map or {})
    old_names = _known_names(old, renamed)
    new_names = _known_names(new, {})
    _check_class_map(renamed, old, new_names)
    if old_names and new_names and not set(old_names) & set(new_names):
        raise InputError(
            f"{old.name} and {new.name} share no class name (old: {_some(old_names)}; new: {_some(new_names)}). "
            "Renamed classes can be matched with --class-map FILE."
        )
    names = tuple(dict.fromkeys((*new_names, *old_names)))
    code = {name: i for i, name in enumerate(names)}
    return Vocabulary(
        names=names,
        old=_values(old, code, renamed),
        new=_values(new, code, {}),
        old_classes=_class_codes(old, code, renamed),
        new_classes=_class_codes(new, code, {}),
        renamed=renamed,
    )


def _same_indices(old: Side, new: Side) -> Vocabulary:
    names = new.classes if new.classes is not None else old.classes
    notes = []
    for side, other in ((old, new), (new, old)):
        if side.classes is None and other.classes is not None:
            notes.append(f"{side.name} names no classes: its indices are read in the order of {other.name}'s.")
    codes = tuple(range(len(names))) if names is not None else None
    return Vocabulary(names, None, None, codes, codes, tuple(notes))


def _known_names(side: Side, renamed: Mapping[str, str]) -> tuple[str, ...]:
    """The names a side can speak of; a name in the rows that its own list lacks is an error for a prediction."""
    observed = (*(side.predictions or ()), *(side.labels or ()))
    if side.classes is None:
        return tuple(dict.fromkeys(renamed.get(n, n) for n in sorted(observed)))
    for name in side.predictions or ():
        if name not in side.classes:
            raise InputError(
                f"{side.name} predicts '{name}', which is not among its classes{_nearest(name, side.classes)}."
            )
    return tuple(dict.fromkeys(renamed.get(n, n) for n in (*side.classes, *(side.labels or ()))))


def _values(side: Side, code: Mapping[str, int], renamed: Mapping[str, str]) -> dict[Value, int]:
    """Every value a file's columns can hold, as a code. Index and name may both occur, in different columns."""
    values: dict[Value, int] = {}
    if side.has_indices and side.classes is not None:
        values.update({i: code[renamed.get(name, name)] for i, name in enumerate(side.classes)})
    for name in (*(side.predictions or ()), *(side.labels or ())):
        values[name] = code[renamed.get(name, name)]
        # Without a list an index is called by its decimal text; 01 is a name and no index.
        if side.has_indices and re.fullmatch(r"0|-?[1-9][0-9]*", name):
            values.setdefault(int(name), values[name])
    return values


def _class_codes(side: Side, code: Mapping[str, int], renamed: Mapping[str, str]) -> tuple[int, ...] | None:
    if side.classes is None:
        return None
    return tuple(code[renamed.get(name, name)] for name in side.classes)


def _check_class_map(renamed: Mapping[str, str], old: Side, new_names: tuple[str, ...]) -> None:
    known = (*(old.classes or ()), *(old.predictions or ()), *(old.labels or ()))
    for before, after in renamed.items():
        if known and before not in known:
            raise InputError(
                f"the class map renames '{before}', which {old.name} does not have{_nearest(before, known)}."
            )
        if new_names and after not in new_names:
            raise InputError(
                f"the class map leads to '{after}', which the new file does not have{_nearest(after, new_names)}."
            )


def read_class_map(path: str | Path) -> dict[str, str]:
    """`{"old name": "new name"}` as JSON, or a CSV file with the header `old,new`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the class map {path} cannot be read: {error}.") from error
    if path.suffix.lower() == ".json":
        try:
            mapping = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the class map {path} is not valid JSON: {error}.") from error
        if not isinstance(mapping, dict):
            raise InputError(f'the class map {path} must be one JSON object such as {{"old name": "new name"}}.')
        return {str(before): str(after) for before, after in mapping.items()}
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise InputError(f"the class map {path} is not valid CSV: {error}.") from error
    if not rows or [cell.strip() for cell in rows[0]] != ["old", "new"] or any(len(row) != 2 for row in rows):
        raise InputError(
            f"the class map {path} must be JSON, or a CSV file with the header old,new and two cells a line."
        )
    return dict(rows[1:])


def _nearest(name: str, names: tuple[str, ...]) -> str:
    close = get_close_matches(name, names, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def _some(names: tuple[str, ...], most: int = 3) -> str:
    return ", ".join(f"'{name}'" for name in names[:most]) + (", …" if len(names) > most else "")
