"""The displacement law on members that were really trained, and against what is known of normals."""

import numpy as np
import pytest

from flipguard import InputError
from flipguard.analysis.density import displacement_density, kernel_density
from flipguard.analysis.displacement import (
    displacement_norms,
    drawn_norms,
    law_distance,
    simulated_norms,
)
from flipguard.analysis.ensembles import ensemble_size, uncertainty_of_flips, wrong_class_ranks
from flipguard.analysis.members import Members, mixed
from flipguard.analysis.planes import logit_arrows
from flipguard.analysis.trained import digit_members

BOUND = 0.2
"""The Kolmogorov–Smirnov distance below which the law is said to hold.

24 members that follow the law exactly, drawn from a normal with the real members' mean and covariance, stay below it in
19 of 20 draws (95 % quantiles between 0.08 and 0.19 for ensembles of 1 to 4): the places of one pair on the 101 samples
go together, so that the distance is that of few pairs. A law that does not shrink is at 0.44 for ensembles of 2 and at
0.80 for those of 4; one that shrinks by half as much is at 0.51.
"""
REFUTED = 0.4
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


@pytest.mark.parametrize(("size", "law_size"), [(2, 1), (4, 1), (4, 2)])
def test_a_law_that_shrinks_too_little_is_refuted(
    small: tuple[Members, Members], large: Members, size: int, law_size: int
) -> None:
    for new, centred in ((small[1], True), (large, False)):
        halves = small[0].logits[:, SAMPLES], new.logits[:, SAMPLES]
        assert law_distance(*halves, size, centred=centred, law_size=law_size) > REFUTED


def test_members_that_follow_the_law_are_within_the_bound(small: tuple[Members, Members]) -> None:
    """The bound's reason, on one draw: normal members with the real ones' mean and covariance."""
    rng = np.random.default_rng(0)
    flat = small[0].logits[:, SAMPLES].reshape(24, -1)
    deviation = flat - flat.mean(axis=0)
    halves = (flat.mean(axis=0) + rng.normal(size=(24, 24)) @ deviation / np.sqrt(23) for _ in range(2))
    old, new = (half.reshape(24, 101, 10) for half in halves)
    assert 0.02 < law_distance(old, new, 4, centred=True) < BOUND
    assert law_distance(old, new, 4, centred=True, law_size=1) > REFUTED


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
    plot = displacement_norms(*small, samples=(3,), sizes=(1, 4), centred=True)
    (panel,) = plot.panels
    assert [series.name for series in panel.series] == ["1× drawn", "1× fitted", "4× drawn", "4× extrapolated"]
    assert all(sum(series.y) == pytest.approx(1) for series in panel.series)
    assert plot.facts["mean norm, 4× drawn"] < 0.7 * plot.facts["mean norm, 1× drawn"]
    density = displacement_density(*small, sizes=(1, 3))
    assert density.facts["spread, 3×"] == pytest.approx(density.facts["spread, 1×"] / 3**0.5, rel=0.25)


def test_between_two_architectures_a_line_stands_at_the_means_displacement(
    small: tuple[Members, Members], large: Members
) -> None:
    plot = displacement_norms(small[0], large, samples=(0, 5), sizes=(1, 4))
    assert [panel.title for panel in plot.panels] == [str(small[0].ids[place]) for place in (0, 5)]
    moved = small[0].logits[:, 5].mean(axis=0) - large.logits[:, 5].mean(axis=0)
    line = plot.panels[1].series[-1]
    assert line.x == pytest.approx((np.linalg.norm(moved),) * 2)


def test_ensembles_flip_less_and_arrows_are_shorter(small: tuple[Members, Members], large: Members) -> None:
    sizes = ensemble_size({"": (small[0], large)}, sizes=(1, 4, 12))
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
    plot = uncertainty_of_flips(*small, treated=small[0])
    assert plot.facts["mean, negative flips"] > plot.facts["mean, other samples"]
    wrong = [members.errors(members.logits) for members in small]
    assert plot.facts["flips per pair, negative flips"] == pytest.approx((~wrong[0] & wrong[1]).sum(axis=1).mean())
    # The old models themselves as the treated ones: nothing flips.
    assert plot.facts["flips per pair, treated"] == 0
    without, treated = plot.panels[1].series
    assert sum(without.y) == pytest.approx(plot.facts["flips per pair, negative flips"])
    assert sum(treated.y) == 0


def test_too_large_an_ensemble_is_an_error(small: tuple[Members, Members]) -> None:
    for wrong in (
        lambda: displacement_norms(*small, sizes=(25,)),
        lambda: ensemble_size({"": small}, sizes=(25,)),
        lambda: law_distance(small[0].logits, small[1].logits, 25, centred=True),
    ):
        with pytest.raises(InputError, match=r"25"):
            wrong()


def test_a_density_is_that_of_its_points() -> None:
    from scipy.stats import gaussian_kde

    rng = np.random.default_rng(0)
    points = rng.normal(size=(503, 2)) @ [[2.0, 0.5], [0.0, 1.0]] + [3.0, -1.0]
    across, up = np.linspace(-6, 12, 61), np.linspace(-7, 5, 53)
    found = kernel_density(points, across, up)
    assert found.shape == (53, 61)
    plane = np.stack(np.meshgrid(across, up)).reshape(2, -1)
    assert found.reshape(-1) == pytest.approx(gaussian_kde(points.T)(plane), rel=0.05, abs=1e-4)
    assert found.sum() * (across[1] - across[0]) * (up[1] - up[0]) == pytest.approx(1, rel=0.01)


def test_points_on_a_line_have_a_density_too() -> None:
    line = np.linspace(-1, 1, 101)[:, None] * [1.0, -1.0]
    found = kernel_density(line, np.linspace(-2, 2, 41), np.linspace(-2, 2, 41))
    assert np.isfinite(found).all()
    assert found[20, 20] > 100 * found[30, 30]


def test_the_density_of_ensembles_is_narrower_over_the_same_plane(small: tuple[Members, Members]) -> None:
    plot = displacement_density(*small, samples=(0, 7), sizes=(1, 4))
    assert [panel.title.rpartition(", ")[2] for panel in plot.panels] == ["1×", "4×", "1×", "4×"]
    for one, four in (plot.panels[:2], plot.panels[2:]):
        (single,), (ensemble,) = one.series, four.series
        assert (single.x, single.y) == (ensemble.x, ensemble.y)
        assert single.z is not None
        assert ensemble.z is not None
        cell = (single.x[1] - single.x[0]) * (single.y[1] - single.y[0])
        assert sum(single.z) * cell == pytest.approx(1, rel=0.05)
        assert sum(ensemble.z) * cell == pytest.approx(1, rel=0.05)
        # Half the spread in both directions is four times the height.
        assert max(ensemble.z) == pytest.approx(4 * max(single.z), rel=0.5)
    with pytest.raises(InputError, match="25"):
        displacement_density(*small, sizes=(25,))


def test_mixed_members_take_turns(small: tuple[Members, Members], large: Members) -> None:
    both = mixed([small[0], large])
    assert both.logits.shape[0] == 48
    assert (both.logits[0] == small[0].logits[0]).all()
    assert (both.logits[1] == large.logits[0]).all()
    assert both.dealt(2)[0] == pytest.approx((small[0].logits[0] + large.logits[0]) / 2)
    with pytest.raises(InputError, match="same samples"):
        mixed([small[0], Members(large.names, large.ids[::-1], large.label, large.logits)])
