"""The fingerprint depends on which ids have which labels, and on nothing else."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from flipguard.predictions import Predictions, fingerprint

pairs = st.lists(
    st.tuples(st.text(max_size=7), st.one_of(st.none(), st.text(max_size=5))),
    min_size=2,
    max_size=23,
    unique_by=lambda pair: pair[0],
)


def of(rows: list[tuple[Any, str | None]]) -> str:
    return fingerprint(pa.array([r[0] for r in rows]), pa.array([r[1] for r in rows], pa.string()))


def total(text: str) -> tuple[int, int]:
    _, rows, digits = text.split("-")
    return int(rows), int(digits, 16)


@given(pairs, st.randoms())
def test_order_is_no_matter_and_parts_add_up(rows: list[tuple[str, str | None]], random: Any) -> None:
    whole = of(rows)
    other = list(rows)
    random.shuffle(other)
    assert of(other) == whole
    cut = random.randrange(len(rows) + 1)
    parts = [total(of(part)) for part in (rows[:cut], rows[cut:]) if part]
    assert total(whole) == (sum(p[0] for p in parts), sum(p[1] for p in parts) % 2**64)


@given(pairs, st.data())
def test_one_other_label_or_id_shows(rows: list[tuple[str, str | None]], data: Any) -> None:
    place = data.draw(st.integers(0, len(rows) - 1))
    id_, label = rows[place]
    for changed in ((id_, (label or "") + "x"), (id_ + "\0", label), (id_, None if label is not None else "")):
        assert of([*rows[:place], changed, *rows[place + 1 :]]) != of(rows)


@given(pairs)
def test_labels_that_change_places_show(rows: list[tuple[str, str | None]]) -> None:
    (a, first), (b, second), *rest = rows
    swapped = [(a, second), (b, first), *rest]
    assert (of(swapped) == of(rows)) == (first == second)


def test_the_type_of_ids_and_labels_is_no_matter() -> None:
    names = ["cat", "dog"]
    expected = of([("5", "dog"), ("-7", "cat"), ("9", None)])
    for ids in ([5, -7, 9], ["5", "-7", "9"], np.array([5, -7, 9], np.int8)):
        for label in ([1, 0, None], ["dog", "cat", None], [1.0, 0.0, None]):
            assert (
                Predictions.from_arrays(id=ids, label=label, prediction=[0] * 3, classes=names).data_fingerprint()
                == expected
            )
    sliced = pa.array(["x", "5", "-7", "9", "y"]).slice(1, 3)
    assert fingerprint(sliced, pa.array(["dog", "cat", None])) == expected
    chunked = pa.chunked_array([["5"], ["-7", "9"]])
    assert fingerprint(chunked, pa.array(["dog", "cat", None])) == expected


def test_no_labels_and_long_ids() -> None:
    ids = ["x" * 1_009, "", "ü" * 503]
    assert Predictions.from_arrays(id=ids, prediction=[0] * 3).data_fingerprint() == of([(i, None) for i in ids])
    assert of([("x" * 1_009, None)]) != of([("x" * 1_008, None)])
