"""Scored rows: different class sets against a plain loop, one model's logits, large batches, refused input."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flipguard.metrics import OUTCOMES, ClassMatch, Rows, score_rows, tally
from flipguard.types import InputError

N = 211
OLD_CLASSES = ["ant", "bee", "cat", "dog", "eel"]
NEW_CLASSES = ["dog", "fox", "cat", "ant", "gnu", "hen", "bee"]
VOCABULARY = ["fox", "ant", "bee", "cat", "yak", "dog", "eel", "gnu", "hen"]
Kind = Callable[[np.ndarray], Any]
KINDS: list[Kind] = [np.asarray, torch.from_numpy]


def column(classes: list[str]) -> np.ndarray:
    return np.array([classes.index(name) if name in classes else -1 for name in VOCABULARY])


def match() -> ClassMatch:
    shared = [name for name in VOCABULARY if name in OLD_CLASSES and name in NEW_CLASSES]
    return ClassMatch(
        old_column=column(OLD_CLASSES),
        new_column=column(NEW_CLASSES),
        old_shared=np.array([OLD_CLASSES.index(name) for name in shared]),
        new_shared=np.array([NEW_CLASSES.index(name) for name in shared]),
    )


@pytest.fixture
def words() -> tuple[list[str | None], np.ndarray, np.ndarray]:
    """Labels as names (None for no label), and both models' logits. The old model is often right."""
    rng = np.random.default_rng(4)
    label = [None if rng.random() < 0.1 else str(rng.choice(VOCABULARY)) for _ in range(N)]
    old, new = rng.normal(size=(N, len(OLD_CLASSES))), rng.normal(size=(N, len(NEW_CLASSES)))
    for row, name in enumerate(label):
        if name in OLD_CLASSES:
            old[row, OLD_CLASSES.index(name)] += 2
        if name in NEW_CLASSES:
            new[row, NEW_CLASSES.index(name)] += 1
    return label, old, new


def scored(words: Any, kind: Kind) -> Rows:
    label, old, new = words
    codes = np.array([-1 if name is None else VOCABULARY.index(name) for name in label])
    return score_rows(kind(codes), None, None, old_logits=kind(old), new_logits=kind(new), classes=match(), alpha=2.0)


def by_name(classes: list[str], row: np.ndarray) -> dict[str, float]:
    return dict(zip(classes, row.tolist(), strict=True))


def likelihood(logits: dict[str, float], name: str | None) -> float:
    if name not in logits:
        return math.nan
    return math.log(sum(math.exp(z) for z in logits.values())) - logits[name]


@pytest.mark.parametrize("kind", KINDS)
def test_models_with_different_classes_equal_a_plain_loop(words: Any, kind: Kind) -> None:
    rows = scored(words, kind)
    assert rows.nll is not None
    assert rows.displacement is not None
    assert rows.surrogate_churn is not None
    assert rows.rank is not None
    seen = set()
    for row, (name, old_row, new_row) in enumerate(zip(*words, strict=True)):
        old, new = by_name(OLD_CLASSES, old_row), by_name(NEW_CLASSES, new_row)
        shared = old.keys() & new.keys()
        said_old, said_new = max(old, key=old.__getitem__), max(new, key=new.__getitem__)
        flip = name is not None and said_old == name != said_new
        assert (OUTCOMES[int(rows.outcome[row])] == "negative_flip") == flip
        rank = 1 + sum(old[c] > old[said_new] for c in shared) if flip and said_new in old else 0
        seen.add((flip, said_new in old, rank))
        assert int(rows.rank[row]) == rank
        np.testing.assert_allclose(rows.nll[row], [likelihood(old, name), likelihood(new, name)])
        np.testing.assert_allclose(
            rows.displacement[row], math.dist(*zip(*((old[c], new[c]) for c in shared), strict=True))
        )
        top_old, top_new = (max(z[c] for c in shared) for z in (old, new))
        gaps = [abs(math.exp(old[c] - top_old) ** 2 - math.exp(new[c] - top_new) ** 2) for c in shared]
        np.testing.assert_allclose(rows.surrogate_churn[row], sum(gaps) / 2)
    assert {(True, True, 2), (True, True, 3), (True, False, 0), (False, True, 0)} <= seen


def test_class_sets_that_are_equal_need_no_match(words: Any) -> None:
    label, old, _ = words
    codes = np.array([OLD_CLASSES.index(name) if name in OLD_CLASSES else -1 for name in label])
    same = np.arange(len(OLD_CLASSES))
    given = {"old_logits": old, "new_logits": old[::-1]}
    matched = tally(codes, None, None, classes=ClassMatch(same, same, same, same), **given)
    for name, leaf in tally(codes, None, None, **given).leaves().items():
        np.testing.assert_allclose(matched.leaves()[name], leaf, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_share_no_class_have_no_scores_of_a_pair(kind: Kind) -> None:
    none = np.array([], dtype=np.int64)
    classes = ClassMatch(np.array([0, 1, -1, -1]), np.array([-1, -1, 0, 1]), none, none)
    z = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    t = tally(kind(np.array([0, 3, 2])), None, None, old_logits=kind(z), new_logits=kind(z), classes=classes)
    assert t.pair is None
    assert t.models is not None
    assert t.count.tolist() == [0, 1, 1, 0, 1, 0, 0]
    assert t.models.labelled.tolist() == [1, 2]


def test_one_model_may_lack_logits(words: Any) -> None:
    label, old, _ = words
    codes = np.array([OLD_CLASSES.index(name) if name in OLD_CLASSES else -1 for name in label])
    both = score_rows(codes, None, None, old_logits=old, new_logits=old)
    for given, model in (
        ({"old": None, "new": codes, "old_logits": old}, 0),
        ({"old": codes, "new": None, "new_logits": old}, 1),
    ):
        rows = score_rows(codes, **given)
        t = rows.tally()
        assert rows.pair is t.pair is None
        assert rows.models is not None
        assert both.models is not None
        assert t.models is not None
        assert t.models.n.tolist() == ([N, 0] if model == 0 else [0, N])
        assert t.models.nll[1 - model] == 0.0
        assert t.models.bins[1 - model].sum() == 0
        np.testing.assert_array_equal(rows.models.nll[:, model], both.models.nll[:, model])
        assert np.isnan(rows.models.nll[:, 1 - model]).all()


def test_given_predictions_outrank_the_logits_but_not_for_calibration() -> None:
    z = np.log([[3.0, 1.0]])
    rows = score_rows([0], [1], None, old_logits=z, new_logits=z)
    assert OUTCOMES[rows.outcome[0]] == "positive_flip"
    assert rows.models is not None
    assert rows.models.correct.tolist() == [[True, True]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flip_without_scores_has_no_rank(kind: Kind) -> None:
    old, codes = np.array([[2.0, 1.0], [2.0, np.nan], [np.nan, 1.0]]), np.zeros(3, dtype=int)
    rows = score_rows(
        kind(codes), kind(codes), kind(codes + 1), old_logits=kind(old), new_logits=kind(np.zeros((3, 2)))
    )
    assert rows.rank is not None
    assert [OUTCOMES[code] for code in rows.outcome.tolist()] == ["negative_flip"] * 3
    assert rows.rank.tolist() == [2, 0, 0]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_batch_in_several_blocks_equals_its_rows_one_by_one(dtype: type) -> None:
    rng = np.random.default_rng(6)
    rows, classes = 547, 1_009
    assert rows * classes > 2 * 2**18
    label = rng.integers(0, classes, rows)
    old, new = (4 * rng.normal(size=(rows, classes)).astype(dtype) for _ in range(2))
    old[np.arange(rows), label] += 12
    before = old.copy(), new.copy()
    given = {"temperature": (1.5, 0.6), "alpha": 2.0}
    whole = score_rows(label, None, None, old_logits=old, new_logits=new, **given)
    np.testing.assert_array_equal(old, before[0])
    np.testing.assert_array_equal(new, before[1])
    for row in (0, 257, 258, 259, 260, 519, 520, 546):
        cut = slice(row, row + 1)
        one = score_rows(label[cut], None, None, old_logits=old[cut], new_logits=new[cut], **given)
        for part in ("models", "calibrated", "pair"):
            for name, value in vars(getattr(one, part)).items():
                np.testing.assert_array_equal(getattr(getattr(whole, part), name)[row], value[0], err_msg=name)


def test_half_precision_is_converted_exactly() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    z = np.stack([every, np.zeros_like(every)], axis=1)
    with np.errstate(invalid="ignore"):
        half = score_rows(np.zeros(2**16, dtype=int), None, None, old_logits=z, new_logits=z)
        full = score_rows(
            np.zeros(2**16, dtype=int), None, None, old_logits=z.astype(np.float32), new_logits=z.astype(np.float32)
        )
    assert half.models is not None
    assert full.models is not None
    assert half.models.scored.sum() == 2 * np.isfinite(every).sum()
    np.testing.assert_array_equal(half.models.nll, full.models.nll)


def test_tensors_with_gradients_give_none() -> None:
    z = torch.zeros(3, 2, requires_grad=True)
    rows = score_rows(torch.tensor([0, 1, 0]), None, None, old_logits=z, new_logits=z)
    assert rows.nll is not None
    assert not rows.nll.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"old": None}, r"old predictions are needed: pass old= or old_logits="),
        ({"label": [0.0, 1.0]}, r"label must be .* integer codes, got float64"),
        ({"new": [0]}, r"one row per sample, got label 2, old 2, new 1"),
        ({"weight": [1.0]}, r"one row per sample, got label 2, weight 1"),
        (
            {"old_logits": np.zeros((2, 3)), "new_logits": np.zeros((2, 5))},
            r"3 classes and new_logits 5; pass classes=",
        ),
        ({"old_logits": np.zeros(2)}, r"old_logits must have the shape \(rows, classes\)"),
        ({"old_logits": torch.zeros(2, 3)}, r"mixture \(numpy, torch\)"),
        ({"group": [0, 1]}, r"group= needs groups="),
        ({"group": [0, 2], "groups": 2}, r"group codes must lie in \[0, 2\), got 0 to 2"),
        ({"group": [-1, 0], "groups": 2}, r"group codes must lie in \[0, 2\), got -1 to 0"),
        ({"group": [0], "groups": 2}, r"one row per sample, got outcome 2, group 1"),
    ],
)
def test_what_cannot_be_scored_is_refused_with_a_reason(arguments: dict[str, Any], message: str) -> None:
    given = {"label": [0, 1], "old": [0, 1], "new": [0, 1], **arguments}
    with pytest.raises(InputError, match=message):
        tally(given.pop("label"), given.pop("old"), given.pop("new"), **given)


def test_arrays_are_scored_without_importing_torch() -> None:
    program = (
        "import sys, numpy as np\n"
        "from flipguard.metrics import figures, tally\n"
        "z = np.eye(3)\n"
        "t = tally([0, 1, 1], None, None, old_logits=z, new_logits=z[::-1], temperature=(1.0, 2.0))\n"
        "assert len(figures(t)) > 20\n"
        "assert not {'torch', 'scipy.stats'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
