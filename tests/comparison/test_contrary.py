"""Predictions that are not their scores' highest class: counted on both sides, ties left out, and only said."""

from typing import Any

import numpy as np
import pytest

from flipguard import Predictions, compare

NAMES = np.array(["ant", "bee", "cat", "dog", "eel", "fox", "gnu"])
SAMPLES = 101


def scored(seed: int = 5, *, moved: int = 0) -> dict[str, Any]:
    """A file whose first `moved` predictions are the second class of their scores."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(SAMPLES, 7)).astype(np.float32)
    order = logits.argsort(axis=1)
    prediction = np.where(np.arange(SAMPLES) < moved, order[:, -2], order[:, -1])
    return {"id": np.arange(SAMPLES), "label": np.arange(SAMPLES) % 7, "prediction": prediction, "logits": logits}


def contrary(result: Any) -> list[str]:
    return [note for note in result.notes if "highest score" in note]


@pytest.mark.parametrize("kind", ["logits", "probabilities"])
@pytest.mark.parametrize("order", ["aligned", "shuffled"])
def test_rows_that_contradict_their_scores_are_counted_on_each_side(naive: Any, kind: str, order: str) -> None:
    old, new = scored(3, moved=2), scored(moved=13)
    if kind == "probabilities":
        for side in (old, new):
            raised = np.exp(side.pop("logits").astype(np.float64))
            side["probabilities"] = raised / raised.sum(axis=1, keepdims=True)
    if order == "shuffled":
        new = naive.shuffled(new, np.random.default_rng(11).permutation(SAMPLES))
    first, second = contrary(compare(old, new))
    assert "old: the prediction is not the class of the highest score in 2 of 101 rows (2%; first: 0)" in first
    assert "new: the prediction is not the class of the highest score in 13 of 101 rows (13%; first: 0)" in second
    assert "is the order of its classes right?" in second


def test_scores_in_another_order_of_classes_are_noticed() -> None:
    """The predictions are names and right; the list of classes names the scores' columns wrongly."""
    old = scored()
    columns = {**old, "label": NAMES[old["label"]], "prediction": NAMES[old["prediction"]]}
    right = Predictions.from_arrays(**columns, classes=NAMES.tolist(), name="right")
    turned = Predictions.from_arrays(**columns, classes=np.roll(NAMES, 1).tolist(), name="turned")
    assert contrary(compare(right, right)) == []
    (note,) = contrary(compare(right, turned))
    assert note.startswith("turned: ")
    assert "in 101 of 101 rows (100%" in note


def test_a_class_that_shares_the_highest_score_agrees() -> None:
    columns = scored()
    columns["logits"] = columns["logits"].round()
    highest = columns["logits"] == columns["logits"].max(axis=1, keepdims=True)
    last = 6 - highest[:, ::-1].argmax(axis=1)
    assert (last != highest.argmax(axis=1)).any()
    assert contrary(compare({**columns, "prediction": last}, columns)) == []


def test_only_compared_rows_with_a_prediction_count() -> None:
    """Rows set aside, without scores or without a prediction contradict nothing."""
    columns = scored(moved=7)
    prediction: list[int | None] = columns["prediction"].tolist()
    prediction[2] = None
    logits: list[Any] = columns["logits"].tolist()
    logits[3] = None
    split = np.where(np.arange(SAMPLES) == 0, "validation", "test")
    odd = {**columns, "prediction": prediction, "logits": logits, "split": split}
    (note,) = contrary(compare(scored(3), odd))
    assert "in 4 of 98 rows (4.1%; first: 1)" in note


def test_predictions_that_follow_from_the_scores_cannot_contradict_them() -> None:
    columns = scored(moved=13)
    del columns["prediction"]
    assert contrary(compare(columns, columns)) == []
