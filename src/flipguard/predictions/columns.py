"""The columns of a prediction file: which there are, what they may hold, and one type for each meaning."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flipguard.types import InputError

RESERVED = ("id", "label", "prediction", "logits", "probabilities", "weight", "split", "features")
Need = Literal["prediction", "label", "id"]


def label_names(values: pa.ChunkedArray, classes: tuple[str, ...] | None) -> pa.ChunkedArray:
    """Class names for indices; names stay as they are, and indices without names count as their decimal text."""
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), pa.string())])
    if pa.types.is_floating(values.type):
        values = pc.cast(values, pa.int64())
    if classes is not None and pa.types.is_integer(values.type):
        inside = pc.and_(pc.greater_equal(values, 0), pc.less(values, len(classes)))
        if pc.all(inside).as_py() is False:
            raise InputError(
                f"a label lies outside the {len(classes)} classes (indices run from 0 to {len(classes) - 1})."
            )
        return pc.take(pa.array(classes, pa.string()), values)
    return pc.cast(values, pa.string())


def check_columns(schema: pa.Schema, name: str, need: Need) -> None:
    """The columns that cannot be done without, and the types that can be read.

    A file of predictions needs predictions or scores, a file of labels only labels, a list of ids only ids.
    """
    names = schema.names
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"{name} has two columns named '{twice}': rename one of them.")
    if "" in names:
        raise InputError(f"{name}: its column {names.index('') + 1} has no name: give it one, or leave it out.")
    for first, second in _differ_in_case(names):
        raise InputError(f"{name}: its columns '{first}' and '{second}' differ only in case: rename one of them.")
    if "id" not in names:
        raise InputError(f"{name} has no column 'id' (its columns: {_shortened(names)}). Name the sample's id 'id'.")
    if need == "label" and "label" not in names:
        raise InputError(f"{name} has no column 'label' (its columns: {_shortened(names)}).")
    if need == "prediction" and not {"prediction", "logits", "probabilities"} & set(names):
        raise InputError(
            f"{name} has neither 'prediction' nor 'logits' nor 'probabilities' (its columns: {_shortened(names)})."
        )
    for column, wanted, fits in _EXPECTED:
        if column in names and not fits(plain_type(schema.field(column).type)):
            raise InputError(f"{name}: column '{column}' must hold {wanted}, it holds {schema.field(column).type}.")


def _differ_in_case(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs that SQL, in which the columns are joined, cannot tell apart."""
    seen: dict[str, str] = {}
    for name in names:
        if name.casefold() in seen:
            yield seen[name.casefold()], name
        seen[name.casefold()] = name


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the values behind a dictionary encoding, which is a way of storing and not a meaning."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    kind = plain_type(kind)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_class(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or is_text(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_null(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_scores(kind: pa.DataType) -> bool:
    return is_list(kind) and bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))


_EXPECTED: tuple[tuple[str, str, Callable[[pa.DataType], bool]], ...] = (
    ("id", "integers or strings", lambda t: bool(pa.types.is_integer(t)) or is_text(t)),
    ("label", "class indices or class names", _is_class),
    ("prediction", "class indices or class names", _is_class),
    ("logits", "a list of numbers per row", _is_scores),
    ("probabilities", "a list of numbers per row", _is_scores),
    ("weight", "numbers", lambda t: bool(pa.types.is_integer(t) or pa.types.is_floating(t))),
    ("split", "names such as test or validation", is_text),
)


def plain_columns(table: pa.Table, name: str) -> pa.Table:
    """Dictionary columns decoded, booleans and whole floats as integers, lists out of text: one type per meaning."""
    for i, column in enumerate(table.schema):
        values = table.column(i)
        if pa.types.is_dictionary(column.type):
            values = pc.cast(values, column.type.value_type)
        if column.name in ("label", "prediction", "id"):
            values = _whole_numbers(values, column.name, name)
        if column.name in ("logits", "probabilities", "features") and is_text(values.type):
            values = _lists_from_text(values, column.name, name)
        if values is not table.column(i):
            table = table.set_column(i, column.name, values)
    return table


def _whole_numbers(values: pa.ChunkedArray, column: str, name: str) -> pa.ChunkedArray:
    """A column of class indices that passed through a data frame with gaps comes as 3.0: it is 3."""
    if pa.types.is_boolean(values.type):
        return pc.cast(values, pa.int8())
    if pa.types.is_null(values.type) and column != "id":
        return pc.cast(values, pa.int64())
    if not pa.types.is_floating(values.type):
        return values
    gaps = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    try:
        return pc.cast(gaps, pa.int64())
    except pa.ArrowInvalid as error:
        raise InputError(f"{name}: column '{column}' must hold whole numbers or names ({error}).") from error


def _lists_from_text(values: pa.ChunkedArray, column: str, name: str) -> pa.ChunkedArray:
    """`[0.1, 2.5]` or `0.1 2.5`, as CSV files carry a list."""
    rows: list[list[float] | None] = []
    for row, text in enumerate(values.to_pylist()):
        words = text.strip().strip("[]()").replace(",", " ").replace(";", " ").split() if text else None
        try:
            rows.append([float(word) for word in words] if words is not None else None)
        except ValueError:
            where = f"{name}: row {row + 1} of column '{column}'"
            raise InputError(f"{where} is no list of numbers: {_no_number(words or [])}") from None
    return pa.chunked_array([pa.array(rows, pa.list_(pa.float32()))])


def _no_number(words: Sequence[str]) -> str:
    """What of a row is no number, and how to write it.

    >>> _no_number(["0.5", "10.1%"])
    "it holds '10.1%'. Write shares: 10.1% is 0.101."
    """
    word = next(word for word in words if not _is_number(word))
    shown = word if len(word) <= 40 else f"{word[:40]}…"
    if word.endswith("%") and _is_number(word[:-1]):
        return f"it holds '{shown}'. Write shares: {shown} is {float(word[:-1]) / 100:.6g}."
    return f"it holds '{shown}'. Write one number per class, such as [0.2, 0.8]."


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def class_names(classes: Sequence[str], name: str) -> tuple[str, ...]:
    names = tuple(str(c) for c in classes)
    if not names:
        raise InputError(f"{name}: its list of classes is empty. Leave it out, or name every class.")
    if len(set(names)) < len(names):
        twice = next(c for c in names if names.count(c) > 1)
        raise InputError(f"{name}: the class name '{twice}' stands twice in its list of classes.")
    return names


def to_arrow(values: Any, what: str) -> pa.Array | pa.ChunkedArray:
    """A list, a NumPy array of one or two axes, a torch tensor or an Arrow array, as an Arrow array."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "detach"):
        tensor = values.detach().cpu()
        values = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    try:
        array = values if isinstance(values, list | tuple) else np.asarray(values)
        if isinstance(array, np.ndarray) and array.ndim == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
        if isinstance(array, np.ndarray) and array.ndim != 1:
            raise InputError(f"{what} must have one axis (or two: a list per row), it has shape {array.shape}.")
        return pa.array(array, from_pandas=True)
    except OverflowError as error:
        raise InputError(f"{what} holds whole numbers beyond 64 bits: pass them as text.") from error
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{what} cannot be read as a column: {str(error).splitlines()[0]}.") from error


def _shortened(names: Sequence[str], most: int = 8) -> str:
    shown = ", ".join(str(n) for n in names[:most])
    return f"{shown}, and {len(names) - most} more" if len(names) > most else shown
