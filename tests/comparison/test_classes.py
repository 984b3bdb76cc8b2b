"""Two models' classes are matched by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flipguard import InputError, compare
from flipguard.comparison.classes import read_class_map


def file_of(label: list[Any], prediction: list[Any], **more: Any) -> dict[str, Any]:
    return {"id": list(range(len(label))), "label": label, "prediction": prediction, **more}


def flips(*sources: Any, **options: Any) -> tuple[int, int, int]:
    result = compare(*sources, **options)
    return result.negative_flips, result.positive_flips, round(float(result.error_rate_old) * result.n)


def test_classes_in_another_order_are_the_same_classes() -> None:
    old = file_of([0, 1, 2, 0], [0, 1, 2, 1], classes=["a", "b", "c"])
    new = file_of([2, 1, 0, 2], [2, 0, 0, 2], classes=["c", "b", "a"])
    assert flips(old, new) == (1, 1, 1)
    worded = file_of(["a", "b", "c", "a"], ["a", "c", "c", "a"])
    assert flips(old, worded) == (1, 1, 1)
    assert flips(worded, old) == (1, 1, 1)


def test_names_that_look_like_numbers_are_names() -> None:
    """1 and 01 are two classes."""
    old, new = file_of(["1", "01"], ["1", "01"]), file_of(["1", "01"], ["01", "01"])
    assert flips(old, new) == (1, 0, 0)
    assert {g.value for g in compare(old, new).classes} == {"1", "01"}


def test_numbers_and_their_text_meet() -> None:
    assert flips(file_of([0, 1, 7], [0, 1, 1]), file_of(["0", "1", "7"], ["1", "1", "7"])) == (1, 1, 1)


def test_indices_are_read_in_the_order_of_the_file_that_has_names() -> None:
    old, new = file_of([0, 1], [0, 1]), file_of([0, 1], [1, 1], classes=["a", "b"])
    result = compare(old, new)
    assert result.negative_flips == 1
    assert {g.value for g in result.classes} == {"a", "b"}
    assert result.notes == ["old names no classes: its indices are read in the order of new's."]


def test_a_label_that_both_files_have_and_neither_model_knows_is_wrong_for_both() -> None:
    """Two versions of half of the classes, on samples of all of them; scores cannot speak of such a class either."""
    label = ["a", "b", "c", "d"]
    old = file_of(label, ["a", "b", "a", "b"], classes=["a", "b"], logits=[[2.0, 1.0], [1.0, 2.0]] * 2)
    new = file_of(label, ["a", "a", "a", "a"], classes=["a", "b"], logits=[[2.0, 1.0]] * 4)
    result = compare(old, new)
    assert (result.n, result.labelled, result.negative_flips) == (4, 4, 1)
    assert (float(result.error_rate_old), float(result.error_rate_new)) == (0.5, 0.75)
    assert "the label 'c' and 1 more: no class of either model; its samples count as wrong for both." in result.notes
    one = compare({**old, "label": ["a", "b", "b", "bb"]}, {**new, "label": ["a", "b", "b", "bb"]})
    assert "the label 'bb': no class of either model (did you mean 'b'?); its samples count as wrong for both." in (
        one.notes
    )


def test_flips_over_the_old_models_classes_are_a_figure_of_their_own() -> None:
    old = file_of(["a", "b", "c", "c"], ["a", "b", "a", "b"], classes=["a", "b"])
    new = file_of(["a", "b", "c", "c"], ["a", "a", "c", "c"], classes=["a", "b", "c"])
    result = compare(old, new)
    assert float(result.negative_flip_rate) == 0.25
    assert result.old_classes is not None
    assert result.old_classes.n == 2
    assert float(result.old_classes.negative_flip_rate) == 0.5
    assert compare(new, new).old_classes is None
    assert compare(new, old, labels="old").old_classes is None
    grouped = compare({**old, "video": [0, 1, 0, 1]}, new, cluster="video")
    assert grouped.old_classes is not None
    assert float(grouped.old_classes.negative_flip_rate) == 0.5


@pytest.mark.parametrize("form", ["dict", "json", "csv"])
def test_renamed_classes(form: str, tmp_path: Path) -> None:
    old = file_of(["cat", "dog", "emu"], ["cat", "dog", "dog"], classes=["dog", "cat", "emu"])
    new = file_of(["Katze", "Hund", "emu"], ["Hund", "Hund", "emu"], classes=["Hund", "emu", "Katze"])
    renamed: Any = {"cat": "Katze", "dog": "Hund"}
    if form == "json":
        (tmp_path / "map.json").write_text(json.dumps(renamed))
        renamed = tmp_path / "map.json"
    elif form == "csv":
        (tmp_path / "map.csv").write_text("old,new\ncat,Katze\ndog,Hund\n")
        renamed = str(tmp_path / "map.csv")
    assert flips(old, new, class_map=renamed) == (1, 1, 1)
    result = compare(old, new, class_map=renamed)
    assert {g.value for g in result.classes} == {"Katze", "Hund", "emu"}
    indexed = {**old, "label": [1, 0, 2], "prediction": [1, 0, 0]}
    assert flips(indexed, new, class_map=renamed) == (1, 1, 1)


def test_indices_without_names_can_be_renamed() -> None:
    old, new = file_of([0, 1, 1], [0, 1, 0]), file_of([1, 0, 0], [1, 1, 0])
    assert flips(old, new, class_map={0: 1, 1: 0}) == (1, 1, 1)  # type: ignore[dict-item]


def test_a_label_beyond_the_scores_is_a_label() -> None:
    """The old model has two scores; the new one, which holds names, knows a third class."""
    old = file_of([0, 1, 2], [0, 1, 1], logits=[[2.0, 1.0], [1.0, 2.0], [1.0, 2.0]])
    new = file_of(["0", "1", "2"], ["0", "0", "2"])
    result = compare(old, new)
    assert (result.labelled, result.negative_flips, result.positive_flips) == (3, 1, 1)


def test_several_old_classes_may_become_one() -> None:
    old = file_of(["poodle", "beagle", "cat"], ["beagle", "beagle", "cat"])
    new = file_of(["dog", "dog", "cat"], ["dog", "cat", "cat"])
    merged = {"poodle": "dog", "beagle": "dog"}
    assert flips(old, new, class_map=merged) == (1, 0, 0)
    scored = {**old, "logits": np.eye(3).tolist(), "classes": ["poodle", "beagle", "cat"]}
    with pytest.raises(InputError, match="their scores cannot be made one"):
        compare(scored, new, class_map=merged)


def test_a_model_that_predicted_nothing_names_no_class() -> None:
    found = compare(file_of(["cat", "dog"], ["cat", "dog"]), file_of(["cat", "dog"], [None, None]))
    assert (found.negative_flips, found.missing_new) == (2, 2)


def test_some_predictions_may_be_what_nothing_else_knows() -> None:
    found = compare(file_of(["cat", "dog"], ["cat", "dog"]), file_of(["cat", "dog"], ["cat", "hog"]))
    assert (found.negative_flips, found.notes) == (
        1,
        ["new predicts 'hog', which is no label and no class of the other model."],
    )


SPELLED = file_of(["cat", "fish", "dog", "dog"], ["cat", "Fish", "dog", "dog"])
WRITTEN = file_of(["cat", "fish", "dog", "dog"], ["cat", "fish", "dog", "cat"])


def test_a_class_that_is_only_spelled_otherwise_is_named_first() -> None:
    note = "'Fish' differs from the label 'fish' only in its spelling"
    of_old, of_new = f"old: {note}: --class-map renames it.", f"new: {note}: write it as the label is written."
    training = {"split": ["train"] * 4}
    for old, new, expected in (
        (SPELLED, WRITTEN, [of_old]),
        (WRITTEN, SPELLED, [of_new]),
        (SPELLED, SPELLED, [of_old, of_new]),
    ):
        assert compare(old, {**new, **training}).notes == [*expected, "split holds train 4: all are compared."]
    assert compare(WRITTEN, WRITTEN).notes == []


def test_what_is_said_of_a_spelling_is_so() -> None:
    """The map makes the names one: nothing is left to tell, and the sample is right."""
    renamed = compare(SPELLED, WRITTEN, class_map={"Fish": "fish"})
    assert (renamed.notes, float(renamed.error_rate_old or 0)) == ([], 0)
    assert float(compare(SPELLED, WRITTEN).error_rate_old or 0) == 0.25


def test_blanks_and_several_names_are_spellings_too() -> None:
    label = ["cat", "sea fish", "dog", "cow"]
    found = compare(file_of(label, label), file_of(label, ["cat", " Sea  fish", "DOG ", "ant"]))
    assert found.notes == [
        "new: ' Sea  fish' differs from the label 'sea fish' only in its spelling, and 1 more likewise: write it "
        "as the label is written.",
        "new predicts 'ant', which is no label and no class of the other model.",
    ]


def test_two_spellings_that_are_both_classes_are_two_classes() -> None:
    assert compare(file_of(["cat", "CAT"], ["cat", "CAT"]), file_of(["cat", "CAT"], ["CAT", "CAT"])).notes == []
    listed = file_of(["cat", "dog"], ["cat", "CAT"], classes=["cat", "dog", "CAT"])
    assert compare(listed, file_of(["cat", "dog"], ["cat", "CAT"])).notes == []


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "index beyond the classes": (
        file_of([0, 1], [0, 2], classes=["a", "b"]),
        file_of([0, 1], [0, 1]),
        {},
        r"old: prediction 2 \(id 1\) is outside its 2 classes \(0 to 1\)",
    ),
    "index below the classes": (
        file_of([0, 1], [0, 1], classes=["a", "b"]),
        file_of([0, -1], [0, 1], classes=["a", "b"]),
        {},
        r"new: label -1 \(id 1\) is outside its 2 classes",
    ),
    "index beyond the scores": (
        file_of([0, 1], [0, 2], logits=[[1.0, 2.0], [2.0, 1.0]]),
        file_of([0, 1], [0, 1]),
        {},
        r"prediction 2 \(id 1\) is outside its 2 classes",
    ),
    "a prediction that is no class": (
        file_of(["cat", "dog"], ["cat", "dgo"], classes=["cat", "dog"]),
        file_of(["cat", "dog"], ["cat", "dog"]),
        {},
        r"old predicts 'dgo', which is not among its classes \(did you mean 'dog'\?\)",
    ),
    "a label that is no class": (
        file_of(["cat", "dgo"], ["cat", "dog"], classes=["cat", "dog"]),
        file_of(["cat", "dog"], ["cat", "dog"], classes=["cat", "dog"]),
        {},
        r"old: the label 'dgo' is no class of either model \(did you mean 'dog'\?\)",
    ),
    "no class in common": (
        file_of(["cat", "dog"], ["cat", "dog"]),
        file_of(["Katze", "Hund"], ["Katze", "Hund"]),
        {},
        r"share no class name \(old: 'cat', 'dog'; new: 'Hund', 'Katze'\).*--class-map FILE",
    ),
    "no prediction that could be right": (
        file_of(["cat", "dog"], ["cat", "dog"]),
        file_of(["cat", "dog"], ["CAT", "DOG"]),
        {},
        r"new predicts 'CAT' and 1 other class, and none of that is a label \(such as 'cat'\) or a class of the other",
    ),
    "no prediction that could be right, but for its spelling": (
        file_of(["ant", "dog"], ["ant", "dog"]),
        file_of(["ant", "dog"], ["DOG", " dog"]),
        {},
        r"new predicts ' dog' and 1 other class, and none of that is a label \(such as 'dog'\) or a class of the other",
    ),
    "no prediction that could be right, of the old model": (
        file_of(["cat", "dog", "cow"], ["Katze", "Hund", "Kuh"]),
        file_of(["cat", "dog", "cow"], ["cat", "cat", "dog"]),
        {},
        r"old predicts 'Hund' and 2 other classes, and none of that is a label",
    ),
    "names and numbers in one file": (
        file_of(["cat", "dog"], ["cat", "dog"]),
        file_of(["cat", "dog"], [0, 1]),
        {},
        "new has labels such as .* and predictions such as .*no list of classes",
    ),
    "a map from nowhere": (
        file_of(["cat", "dog"], ["cat", "dog"]),
        file_of(["cat", "dog"], ["cat", "dog"]),
        {"class_map": {"dgo": "dog"}},
        r"renames 'dgo', which old does not have \(did you mean 'dog'\?\)",
    ),
    "a map to nowhere": (
        file_of(["cat", "dog"], ["cat", "dog"]),
        file_of(["cat", "dog"], ["cat", "dog"]),
        {"class_map": {"dog": "Hund"}},
        "leads to 'Hund', which the new file does not have",
    ),
    "corrected labels of no class": (
        file_of([0, 1], [0, 1], classes=["a", "b"]),
        file_of([0, 1], [0, 1], classes=["a", "b"]),
        {"labels": {"id": [0], "label": ["c"]}},
        "labels: the label 'c' is no class of either model",
    ),
    "corrected labels beyond the classes": (
        file_of([0, 1], [0, 1], classes=["a", "b"]),
        file_of([0, 1], [0, 1], classes=["a", "b"]),
        {"labels": {"id": [0], "label": [2]}},
        "labels: the label '2' is no class of either model",
    ),
    "corrected labels below the classes": (
        file_of([0, 1], [0, 1]),
        file_of([0, 1], [0, 1]),
        {"labels": {"id": [0], "label": [-1]}},
        "labels: the label -1 is no class of either model",
    ),
    "corrected labels by name for indices": (
        file_of([0, 1], [0, 1]),
        file_of([0, 1], [0, 1]),
        {"labels": {"id": [0], "label": ["cat"]}},
        "labels holds class names, the compared files hold class indices",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_classes_that_do_not_match_are_one_line(case: str) -> None:
    old, new, options, message = BAD[case]
    with pytest.raises(InputError, match=message) as caught:
        compare(old, new, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("m.json", "[1]", "must be one JSON object"),
        ("m.json", "{", "is not valid JSON"),
        ("m.csv", "a,b\n1,2\n", "header old,new"),
        ("m.csv", "old,new\n1\n", "two cells a line"),
        ("m.csv", "", "header old,new"),
        ("none.csv", None, "cannot be read"),
    ],
)
def test_class_maps_that_cannot_be_read_are_one_line(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_class_map(tmp_path / name)
    assert "\n" not in str(caught.value)
