"""The displacement law on members that were really trained, and against what is known of normals."""

import numpy as np
import pytest

from flipguard import InputError
from flipguard.analysis.displacement import (
    displacement_cloud,
    displacement_norms,
    drawn_norms,
    law_distance,
    simulated_norms,
)
from flipguard.analysis.ensembles import ensemble_size, logit_arrows, uncertainty_of_flips, wrong_class_ranks
from flipguard.analysis.members import Members
from flipguard.analysis.trained import digit_members

BOUND = 0.2
"""The Kolmogorov–Smirnov distance below which the law is said to hold; the law of singles for ensembles is at 0.8."""
SAMPLES = slice(0, 101)


@pytest.fixture(scope="module")
def small() -> tuple[Members, Members]:
    return digit_members(24, width=16, seed=0), digit_members(24, width=16, seed=500)


@pytest.fixture(scope="module")
def large() -> Members:
    return digit_members(24, width=41, seed=900)


def test_the_members_have_learnt(small: tuple[Members, Members], large: Members) -> None:
    for members in (*small, large):
        assert max(members.errors(logits).mean() for logits in members.logits) < 0.12
        assert len({tuple(logits[0]) for logits in members.logits}) == 24


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_law_extrapolates_to_ensembles_of_one_architecture(small: tuple[Members, Members], size: int) -> None:
    old, new = (members.logits[:, SAMPLES] for members in small)
    assert law_distance(old, new, size, centred=True) < BOUND


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_law_extrapolates_to_ensembles_of_two_architectures(
    small: tuple[Members, Members], large: Members, size: int
) -> None:
    old, new = small[0].logits[:, SAMPLES], large.logits[:, SAMPLES]
    assert law_distance(old, new, size, centred=False) < BOUND


def test_a_law_that_does_not_shrink_with_the_ensemble_is_refuted(small: tuple[Members, Members]) -> None:
    """Ensembles of 4 handed over as if they were singles with the spread of singles."""
    old, new = (members.logits[:, SAMPLES] for members in small)
    wide = [half.reshape(6, 4, *half.shape[1:]).mean(axis=1) for half in (old, new)]
    means = [half.mean(axis=0) for half in (old, new)]
    stretched = [mean + 2 * (ensembles - mean) for mean, ensembles in zip(means, wide, strict=True)]
    assert law_distance(*stretched, 1, centred=True) < 0.3
    places = []
    for sample in range(old.shape[1]):
        law = simulated_norms(old[:, sample], new[:, sample], 1, centred=True, draws=499)
        norms = np.linalg.norm(wide[0][:, sample] - wide[1][:, sample], axis=1)
        places.append((law[None] < norms[:, None]).mean(axis=1))
    assert np.concatenate(places).mean() < 0.15


def test_the_simulated_norms_have_the_moments_of_the_normal() -> None:
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(31, 5)) * [1, 2, 3, 4, 5], rng.normal(size=(37, 5)) + 3
    found = simulated_norms(old, new, 4, centred=True, draws=200_000)
    expected = (old.var(axis=0, ddof=1) + new.var(axis=0, ddof=1)).sum() / 4
    assert (found**2).mean() == pytest.approx(expected, rel=0.02)
    shift = ((old.mean(axis=0) - new.mean(axis=0)) ** 2).sum()
    spread = old.var(axis=0, ddof=1).sum() / 4 * (1 - 4 / 31) + new.var(axis=0, ddof=1).sum() / 4 * (1 - 4 / 37)
    found = simulated_norms(old, new, 4, centred=False, draws=200_000)
    assert (found**2).mean() == pytest.approx(shift + spread, rel=0.02)
    drawn = drawn_norms(old, new, 4, 20_000)
    assert (drawn**2).mean() == pytest.approx(shift + spread, rel=0.03)


def test_the_figure_holds_a_histogram_and_a_law_per_size(small: tuple[Members, Members]) -> None:
    plot = displacement_norms(*small, sample=3, sizes=(1, 4), centred=True)
    (panel,) = plot.panels
    assert [series.name for series in panel.series] == ["1× drawn", "1× fitted", "4× drawn", "4× extrapolated"]
    assert all(sum(series.y) == pytest.approx(1) for series in panel.series)
    assert plot.facts["mean norm, 4× drawn"] < 0.7 * plot.facts["mean norm, 1× drawn"]
    cloud = displacement_cloud(*small, sizes=(1, 3))
    assert cloud.facts["spread, 3×"] == pytest.approx(cloud.facts["spread, 1×"] / 3**0.5, rel=0.25)


def test_ensembles_flip_less_and_arrows_are_shorter(small: tuple[Members, Members], large: Members) -> None:
    sizes = ensemble_size(small[0], large, sizes=(1, 4, 12))
    rates = sizes.panels[1].series[0]
    assert rates.y[0] > rates.y[1] >= rates.y[2]
    naive = np.mean([[(~small[0].errors(a) & large.errors(b)).mean() for b in large.logits] for a in small[0].logits])
    assert rates.y[0] == pytest.approx(naive)
    arrows = logit_arrows(*small, sizes=(1, 3))
    assert arrows.facts["mean displacement, 3×"] < arrows.facts["mean displacement, 1×"]


def test_flips_go_to_high_ranks_and_are_uncertain(small: tuple[Members, Members]) -> None:
    ranks = wrong_class_ranks(*small, sizes=(1, 4), most=10)
    (panel,) = ranks.panels
    assert panel.series[0].y[0] == max(panel.series[0].y) > 0.5
    assert sum(panel.series[0].y) == pytest.approx(1)
    uncertain = uncertainty_of_flips(*small).facts
    assert uncertain["mean, negative flips"] > uncertain["mean, other samples"]


def test_too_large_an_ensemble_is_an_error(small: tuple[Members, Members]) -> None:
    for wrong in (
        lambda: displacement_norms(*small, sizes=(25,)),
        lambda: ensemble_size(*small, sizes=(25,)),
        lambda: law_distance(small[0].logits, small[1].logits, 25, centred=True),
    ):
        with pytest.raises(InputError, match=r"25"):
            wrong()
