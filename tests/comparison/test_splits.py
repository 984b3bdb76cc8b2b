"""The column `split`: what is said where no row of the wanted one is there, and where training rows are compared."""

import re
from typing import Any

import pytest

from flipguard import InputError, compare

NAMES = ["train"] * 11 + ["test"] * 29 + ["val"] * 7 + [None] * 3


def pair(split: list[Any], side: str = "new") -> tuple[dict[str, Any], dict[str, Any]]:
    """Two models on the same samples; one file says which split each is of."""
    rows = len(split)
    plain = {"id": [f"s{i}" for i in range(rows)], "label": [i % 5 for i in range(rows)]}
    old = {**plain, "prediction": [i % 3 for i in range(rows)]}
    new = {**plain, "prediction": [i % 7 for i in range(rows)]}
    (old if side == "old" else new)["split"] = split
    return old, new


def told(result: Any) -> list[str]:
    return [note for note in result.notes if note.startswith("split holds")]


@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize(("wanted", "meant"), [("tset", "'test'"), ("TRAIN", "'train'"), (" test", "'test'")])
def test_a_wrong_name_is_answered_by_those_that_are_there(side: str, wanted: str, meant: str) -> None:
    message = f"no row is of the split '{wanted}': split holds test 29, train 11, val 7, 3 rows without a name. "
    with pytest.raises(InputError, match=re.escape(f"{message}Did you mean {meant}?") + "$"):
        compare(*pair(NAMES, side), split=wanted)
    with pytest.raises(InputError, match=r"3 rows without a name\.$"):
        compare(*pair(NAMES, side), split="xyz")


def test_the_new_files_splits_are_those_that_are_listed() -> None:
    old, new = pair(["a"] * 5 + [None] * 2)
    with pytest.raises(InputError, match=r"split holds a 5, b 2\."):
        compare({**old, "split": ["b"] * 7}, new, split="q")


def test_many_splits_are_not_all_listed() -> None:
    with pytest.raises(InputError, match=r"split holds p0 1, p1 1, .*, p6 1, 4 more\.$"):
        compare(*pair([f"p{i}" for i in (*range(7), *range(70, 74))]), split="x")


def test_validation_rows_alone_leave_nothing_and_that_is_said() -> None:
    old, new = pair(["val"] * 13)
    with pytest.raises(InputError, match=r"all 13 shared ids .* are set aside: split holds val 13. --split val"):
        compare(old, new)
    assert compare(old, new, split="val").n == 13
    scored = {"id": old["id"], "label": old["label"], "logits": [[float(i % 5), 1.0, 0.5, 2.0, 0.0] for i in range(13)]}
    with pytest.raises(InputError, match=r"all 13 shared ids .* are set aside to calibrate on. Leave some out of"):
        compare(scored, scored, calibrate_on=[{"id": old["id"]}])


@pytest.mark.parametrize("side", ["old", "new"])
@pytest.mark.parametrize("trained", ["train", "Train", "TRAINING"])
def test_training_rows_that_are_compared_are_told_of(side: str, trained: str) -> None:
    old, new = pair([trained if name == "train" else name for name in NAMES], side)
    listed = sorted([f"{trained} 11", "test 29"])
    expected = f"split holds {', '.join(listed)}, 3 rows without a name: all are compared; --split test compares those"
    assert told(compare(old, new)) == [f"{expected} alone."]
    assert told(compare(old, new, split=trained)) == []


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["train", "holdout"], "; --split holdout compares those alone"),
        (["train", "a", "Test"], "; --split Test compares those alone"),
        (["train", "a", "b"], ""),
        (["train"], ""),
    ],
)
def test_one_split_is_proposed_where_there_is_no_doubt(names: list[str], hint: str) -> None:
    (note,) = told(compare(*pair(names * 5)))
    assert note.endswith(f"all are compared{hint}.")


def test_other_splits_are_nothing_to_tell_of() -> None:
    assert told(compare(*pair(["test", "val", None, "trainer", "b"]))) == []
    old, new = pair(["train", "test"])
    del new["split"]
    assert told(compare(old, new)) == []


@pytest.mark.parametrize("how", ["by", "cluster"])
def test_a_split_is_not_denied_where_it_cannot_be_sliced_by(how: str) -> None:
    old, new = pair(NAMES)
    with pytest.raises(InputError, match="column 'split' cannot be sliced by: --split NAME compares the rows of one"):
        compare(old, new, **{how: "split"})
    with pytest.raises(InputError, match="column 'prediction' cannot be sliced by: it has a meaning of its own"):
        compare(old, new, **{how: "prediction"})
    del new["split"]
    with pytest.raises(InputError, match="neither file has a column 'split'"):
        compare(old, new, **{how: "split"})


def test_training_rows_that_are_not_compared_are_none_to_tell_of() -> None:
    """Those that only one file has are dropped, some are set aside by a list, and some have their split elsewhere."""
    old, new = pair(["test"] * 19 + ["train"] * 11)
    fewer = {name: column[:19] for name, column in old.items()}
    assert told(compare(fewer, new, on_missing="drop")) == []
    assert told(compare(old, new)) != []
    scores = [[float(place == said) for place in range(7)] for said in new["prediction"]]
    old, new = ({**side, "logits": scores, "prediction": new["prediction"]} for side in (old, new))
    assert told(compare(old, new, calibrate_on=[{"id": old["id"][19:]}])) == []
    old, new = pair(["train"] * 5 + [None] * 8)
    assert told(compare({**old, "split": ["val"] * 5 + ["test"] * 8}, new)) == []
