"""Files in, a file out: which rows are believed, which are rewritten, and in whose words."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flipguard
from flipguard.comparison.bayesian import flips, likelihood, update
from flipguard.predictions import Predictions, read_predictions
from flipguard.types import InputError

C, N, HELD = 5, 401, 101
NAMES = ("ant", "bee", "cat", "dog", "eel")


def versions(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    label = np.arange(N) % C
    said = [np.where(rng.random(N) < right, label, (label + rng.integers(1, C, N)) % C) for right in (0.7, 0.75, 0.8)]
    return np.stack(said), label


def columns(said: np.ndarray, label: np.ndarray, **further: Any) -> dict[str, Any]:
    split = np.where(np.arange(len(label)) < HELD, "validation", "test")
    ids = np.array([f"img_{i:03d}" for i in range(len(label))])
    return {"id": ids, "label": label, "prediction": said, "split": split, "classes": NAMES, **further}


def expected(said: np.ndarray, label: np.ndarray, ratio: float = 5.0) -> np.ndarray:
    pis = [likelihood(v[:HELD], label[:HELD], C) for v in said]
    return update(said[:, HELD:], pis, rule="cr", cost_ratio=ratio).stored


def test_a_split_is_believed_and_the_rest_rewritten() -> None:
    said, label = versions()
    found = flipguard.rewrite([columns(v, label) for v in said], split="validation")
    stored = expected(said, label)
    table = found.predictions.table(["id", "prediction", "label", "split"])
    assert table["id"].to_pylist() == [f"img_{i:03d}" for i in range(HELD, N)]
    assert table["prediction"].to_pylist() == stored[-1].tolist()
    assert set(table["split"].to_pylist()) == {"test"}
    assert found.overruled == int((stored[-1] != said[-1, HELD:]).sum()) > 0
    assert found.rows == N - HELD
    before, after = flips(said[:, HELD:], label[HELD:]), flips(stored, label[HELD:])
    assert found.before is not None
    assert found.after is not None
    assert (found.before.negative_flips, found.after.negative_flips) == (before.negative, after.negative)
    assert found.after.negative_flips < found.before.negative_flips
    assert found.before.negative_flip_rate == before.negative / (2 * (N - HELD))
    assert found.after.error_rate == pytest.approx(float((stored[-1] != label[HELD:]).mean()))
    assert "101 rows of the split 'validation', which are not rewritten" in found.estimated_on
    assert json.loads(found.to_json())["after"]["negative_flips"] == after.negative


def test_the_files_order_names_and_indices_do_not_matter(tmp_path: Path) -> None:
    said, label = versions()
    rng = np.random.default_rng(1)
    plain = flipguard.rewrite([columns(v, label) for v in said], split="validation")
    order = rng.permutation(N)
    first = columns(said[0], label)
    mixed = {k: v[order] if isinstance(v, np.ndarray) else v for k, v in first.items()}
    Predictions.from_arrays(**mixed).write(tmp_path / "v0.parquet")
    turned = tuple(reversed(NAMES))
    backwards = columns(C - 1 - said[1], C - 1 - label, classes=turned)
    texts = columns(np.array(NAMES)[said[2]], np.array(NAMES)[label])
    found = flipguard.rewrite([tmp_path / "v0.parquet", backwards, texts], split="validation")
    words = [NAMES[code] for code in plain.predictions.table(["prediction"])["prediction"].to_pylist()]
    assert found.predictions.table(["prediction"])["prediction"].to_pylist() == words
    assert found.before == plain.before
    assert found.after == plain.after


def test_scores_stand_for_predictions_and_are_not_kept() -> None:
    said, label = versions()
    plain = flipguard.rewrite([columns(v, label) for v in said], split="validation")
    scored = [columns(v, label, logits=np.eye(C)[v] * 3) for v in said]
    for side in scored:
        del side["prediction"]
    found = flipguard.rewrite(scored, split="validation")
    assert found.after == plain.after
    assert "logits" not in found.predictions.columns
    with_belief = flipguard.rewrite(scored, split="validation", posteriors=True)
    belief = np.array(with_belief.predictions.table(["logits"])["logits"].to_pylist())
    assert np.exp(belief).sum(axis=1) == pytest.approx(np.ones(N - HELD), abs=1e-5)


def test_ids_and_other_data_to_calibrate_on() -> None:
    said, label = versions()
    chain = [columns(v, label) for v in said]
    plain = flipguard.rewrite(chain, split="validation")
    ids = {"id": chain[0]["id"][:HELD]}
    listed = flipguard.rewrite(chain, calibrate_on=[ids])
    cut = [{k: v[HELD:] if isinstance(v, np.ndarray) else v for k, v in side.items()} for side in chain]
    held = [{k: v[:HELD] if isinstance(v, np.ndarray) else v for k, v in side.items()} for side in chain]
    apart = flipguard.rewrite(cut, calibrate_on=held)
    for found in (listed, apart):
        assert found.after == plain.after
        assert found.predictions.table(["prediction"]) == plain.predictions.table(["prediction"])
    with pytest.raises(InputError, match="calibrate_on 1 holds rows that are to be rewritten"):
        flipguard.rewrite(chain, calibrate_on=held)


def test_the_same_rows_only_when_asked_and_it_is_said() -> None:
    said, label = versions()
    chain = [columns(v, label) for v in said]
    with pytest.raises(InputError, match="choose one of --calibrate-on"):
        flipguard.rewrite(chain)
    with pytest.raises(InputError, match="choose one of --calibrate-on"):
        flipguard.rewrite(chain, same_rows=True, split="validation")
    found = flipguard.rewrite(chain, same_rows=True)
    assert found.rows == N
    assert found.estimated_on == "the rewritten rows themselves"
    assert "too good a figure" in found.notes[0]


def test_rows_without_labels_are_rewritten_and_not_counted() -> None:
    said, label = versions()
    chain = [columns(v, label) for v in said]
    full = flipguard.rewrite(chain, split="validation")
    for side in chain:
        side["label"] = [int(value) if i < HELD else None for i, value in enumerate(label)]
    found = flipguard.rewrite(chain, split="validation")
    assert found.before is None
    assert found.after is None
    assert found.predictions.table(["prediction"]) == full.predictions.table(["prediction"])
    assert "300 of the 300 rewritten rows have no label" in found.notes[0]


def test_indices_without_names() -> None:
    said, label = versions()
    chain = [{k: v for k, v in columns(v, label).items() if k != "classes"} for v in said]
    found = flipguard.rewrite(chain, split="validation", posteriors=True)
    assert found.predictions.table(["prediction"])["prediction"].to_pylist() == expected(said, label)[-1].tolist()
    assert found.predictions.classes is None
    assert found.predictions.score_width == C


def test_the_file_says_how_it_came_about_and_can_be_compared(tmp_path: Path) -> None:
    said, label = versions()
    chain = [columns(v, label) for v in said]
    found = flipguard.rewrite(chain, split="validation", cost_ratio=10)
    found.predictions.write(tmp_path / "stored.parquet")
    back = read_predictions(tmp_path / "stored.parquet")
    assert back.metadata["rewritten"]["rule"] == "cr"
    assert back.metadata["rewritten"]["cost_ratio"] == 10
    assert back.version == "rewritten (cr 10)"
    last = flipguard.compare(chain[-1], back, on_missing="drop")
    assert last.n == N - HELD


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"id": np.arange(N)}, "lacks 401 of the 401 ids of version 3"),
        ({"id": np.zeros(N, int)}, "id 0 stands in more than one row"),
        ({"label": (np.arange(N) + 1) % C}, "labels 401 samples otherwise"),
        ({"prediction": np.full(N, C)}, "class index 5 is outside its 5 classes"),
        ({"prediction": np.full(N, -1)}, "class index -1 is below 0"),
    ],
)
def test_bad_versions(change: dict[str, Any], message: str) -> None:
    said, label = versions()
    chain = [columns(v, label) for v in said]
    chain[1] |= change
    with pytest.raises(InputError, match=message):
        flipguard.rewrite(chain, split="validation")


def test_bad_choices() -> None:
    said, label = versions()
    chain = [columns(v, label) for v in said]
    with pytest.raises(InputError, match="at least two versions, 1 came"):
        flipguard.rewrite(chain[:1], split="validation")
    with pytest.raises(InputError, match="none of the 401 rows are those of the split 'dev'"):
        flipguard.rewrite(chain, split="dev")
    with pytest.raises(InputError, match="a prediction file for each of the 3 versions; 2 came"):
        flipguard.rewrite(chain, calibrate_on=chain[:2])
    for side in chain:
        side["label"] = [None if i < HELD else int(value) for i, value in enumerate(label)]
    with pytest.raises(InputError, match="the rows to calibrate on have no labels"):
        flipguard.rewrite(chain, split="validation")
    for side in chain:
        del side["split"]
    with pytest.raises(InputError, match="needs a column 'split' in version 3"):
        flipguard.rewrite(chain, split="validation")
