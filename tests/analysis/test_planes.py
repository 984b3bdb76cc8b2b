"""Logits and features in a plane: where they are drawn, and what the facts say of them."""

import numpy as np
import pytest
import torch

from flipguard import InputError
from flipguard.analysis.density import displacement_density
from flipguard.analysis.members import Members
from flipguard.analysis.planes import Embedded, feature_arrows, logit_arrows, logit_members
from flipguard.analysis.trained import digit_embeddings

M, N = 3, 7


def pair(seed: int, classes: int) -> Members:
    rng = np.random.default_rng(seed)
    label = np.arange(N) % classes
    logits = rng.normal(size=(M, N, classes)) + 2 * np.eye(classes)[label]
    return Members(tuple("abc"), tuple(range(N)), label, logits)


def test_arrows_run_from_old_to_new_by_what_became_of_the_sample() -> None:
    old, new = pair(0, 2), pair(1, 2)
    plot = logit_arrows(old, new, sizes=(1, 3))
    single, whole = plot.panels
    right = [side.logits.mean(axis=0).argmax(axis=1) == side.label for side in (old, new)]
    flipped = right[0] & ~right[1]
    found = {series.name: series for series in whole.series}
    assert len(found.get("negative flips", found["consistent"]).x) == flipped.sum() or not flipped.any()
    assert sum(len(series.x) for series in whole.series) == N
    assert sum(len(series.x) for series in single.series) == N
    consistent = right[0] == right[1]
    assert found["consistent"].x2 == pytest.approx(new.logits.mean(axis=0)[consistent, 0])
    apart = np.linalg.norm(old.logits - new.logits, axis=2).mean()
    assert plot.facts["mean displacement, 1×"] == pytest.approx(apart)


def test_members_lie_around_their_ensemble() -> None:
    old, new = pair(0, 2), pair(1, 2)
    plot = logit_members(old, new, size=3, most=2)
    each, mean = plot.panels[0].series[:2]
    assert (len(each.x), len(mean.x)) == (6, 2)
    assert np.reshape(each.x, (3, 2)).mean(axis=0) == pytest.approx(mean.x)
    together = np.concatenate([old.logits, new.logits]).mean(axis=0)
    nearest = np.argsort(np.abs(together[:, 0] - together[:, 1]))[:2]
    assert mean.x == pytest.approx(old.logits.mean(axis=0)[nearest, 0])
    moved = (old.logits.mean(axis=0) - new.logits.mean(axis=0))[nearest]
    assert plot.facts["mean distance between the ensembles"] == pytest.approx(np.linalg.norm(moved, axis=1).mean())
    with pytest.raises(InputError, match="ensemble of 5 needs"):
        logit_members(old, new, size=5)


def test_features_need_two_numbers() -> None:
    wide = Embedded(pair(0, 3), np.zeros((M, N, 5)))
    with pytest.raises(InputError, match="features of 2 numbers, these have 5"):
        feature_arrows(wide, wide)
    with pytest.raises(InputError, match="no reference's head"):
        wide.judged(1)


def test_features_aligned_by_bct_are_the_ensembles_own() -> None:
    """Eq. 13 and 14: members' mean logits choose as the reference's head does of their mean feature."""
    torch.set_num_threads(1)
    chosen = {"digits": ("3", "5", "8"), "per_class": 20, "epochs": 60}
    old, new = (digit_embeddings(3, seed=seed, **chosen) for seed in (0, 1000))
    assert old.features.shape == (3, 162, 2)
    assert old.head is not None
    assert new.head is not None
    assert (old.head[0] == new.head[0]).all(), "both are aligned with the same reference"
    plot = feature_arrows(old, new)
    for size in (1, 3):
        assert plot.facts[f"Eq. 14 chooses as Eq. 13, {size}×"] > 0.9
    assert [panel.title for panel in plot.panels] == ["1×", "3×", "3× and members"]
    moved = new.features.mean(axis=0) - old.features.mean(axis=0)
    assert plot.facts["mean displacement, 3×"] == pytest.approx(np.linalg.norm(moved, axis=1).mean())
    facts = displacement_density(old.as_members(), new.as_members(), sizes=(1, 2), of="feature").facts
    assert facts["spread, 2×"] < facts["spread, 1×"]
