"""LatentBE's tables in words are their runs."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from held import ROOT, check_lines, percent, rows_of, section, told

from flipguard.bench.tables import Cell, Row, paired_p

LATENT = {
    "cifar100_latent": "Four teachers into one network, on CIFAR-100",
    "cifar100_latent_few": "Four teachers that know their samples by heart",
}


@pytest.mark.parametrize("name", LATENT)
def test_each_line_of_distilled_ensembles_is_its_row(name: str) -> None:
    def made(row: Row) -> list[str]:
        error, ece, calibrated = percent(row, "error_rate_new", "ece_new", "cece_new")
        nll, cnll = (row.cells[cell].mean for cell in ("nll_new", "cnll_new"))
        figures = [f"{error:.2f}", f"{nll:.3f}", f"{ece:.2f}", f"{cnll:.3f}", f"{calibrated:.2f}"]
        return [*figures, f"{row.training_cost:.1f}"]

    check_lines(name, LATENT[name], made)


def test_the_best_students_in_words_are_their_rows() -> None:
    rows = {row.name: row for row in rows_of("cifar100_latent")}
    students = [row for name, row in rows.items() if not name.startswith(("ensemble", "none"))]
    cells = ("error_rate_new", "nll_new", "ece_new")

    def told_of(found: list[float]) -> tuple[str, str, str]:
        return f"{100 * found[0]:.2f}", f"{found[1]:.3f}", f"{100 * found[2]:.1f}"

    four = told_of([rows["ensemble_4"].cells[cell].mean for cell in cells])
    best = told_of([min(row.cells[cell].mean for row in students) for cell in cells])
    assert f"error {four[0]}, NLL {four[1]} and ECE {four[2]} of four, the best students {best[0]}, {best[1]} and" in (
        section(LATENT["cifar100_latent"])
    )
    assert f"and {best[2]} (two of them)" in section(LATENT["cifar100_latent"])


def test_what_a_perturbation_gives_in_words_is_its_runs() -> None:
    rows = {row.name: row.cells for row in rows_of("cifar100_latent_few")}
    ours, without, plain = (rows[name] for name in ("latent_be_tdiv_sdiv", "latent_be", "kd"))
    figures, text = ("nll_new", "ece_new", "error_rate_new"), section(LATENT["cifar100_latent_few"])
    assert all(ours[figure].values[seed] < without[figure].values[seed] for figure in figures for seed in (1, 2, 3))

    def said(cells: Mapping[str, Cell], figure: str) -> str:
        return f"{cells[figure].mean:.3f}" if figure == "nll_new" else f"{100 * cells[figure].mean:.1f}"

    def p(other: Mapping[str, Cell], figure: str) -> str:
        chance = paired_p(ours[figure].values, other[figure].values) or 1.0
        return f"{chance:.3f}" if chance < 0.01 else f"{chance:.2f}"

    nll, ece, error = ((said(ours, figure), said(without, figure), p(without, figure)) for figure in figures)
    assert f"NLL {nll[0]} against {nll[1]}, paired p = {nll[2]}; ECE {ece[0]} and {ece[1]}, p = {ece[2]}" in text
    assert f"error {error[0]} and {error[1]}, p = {error[2]}" in text
    more = 100 * (ours["error_rate_new"].mean - plain["error_rate_new"].mean)
    chances = " and ".join([", ".join(p(plain, figure) for figure in figures[:2]), p(plain, "error_rate_new")])
    assert (
        f"NLL {said(ours, 'nll_new')} and {said(plain, 'nll_new')}, ECE {said(ours, 'ece_new')} and "
        f"{said(plain, 'ece_new')}, at {more:.1f} points more error (p = {chances})"
    ) in text


def test_corrupted_images_in_words_are_their_runs() -> None:
    figures = ["error_rate_new", "nll_new", "ece_new"]

    def means(name: str, part: str) -> pd.DataFrame:
        runs = pq.read_table(ROOT / "results" / "bench" / name / "runs.parquet").to_pandas()
        return runs[runs["part"] == part].groupby(["row", "seed"])[[*figures, "training_cost"]].mean()

    whole, corrupted, before = (
        means(name, part)
        for name, part in (
            ("cifar100_few_corrupted", "test"),
            ("cifar100_few_corrupted", "corrupted"),
            ("cifar100_latent_few", "test"),
        )
    )
    text = section("Distilled ensembles on corrupted images")
    ours, without, plain = "latent_be_tdiv_sdiv", "latent_be", "kd"

    def three(found: pd.DataFrame, row: str) -> list[str]:
        error, nll, ece = found.loc[row][figures].mean()
        return [f"{100 * error:.2f}", f"{nll:.3f}", f"{100 * ece:.2f}"]

    lines = told(text)
    assert list(lines) == ["none", plain, without, ours, "paragon"]
    for row, cells in lines.items():
        cost = f"{whole.loc[row]['training_cost'].mean():.1f}"
        assert cells[:7] == [*three(whole, row), *three(corrupted, row), cost]

    def p(one: pd.Series, other: pd.Series) -> str:
        return f"{paired_p(one.to_dict(), other.to_dict()):.2f}"

    mine, theirs = (corrupted.loc[row] for row in (ours, plain))
    for figure in ("nll_new", "ece_new"):
        assert (mine[figure] < theirs[figure]).all()
        assert corrupted.loc[without][figure].mean() > theirs[figure].mean()
    chances = {figure: p(mine[figure], theirs[figure]) for figure in figures}
    assert (
        f"({mine['nll_new'].mean():.3f} and {theirs['nll_new'].mean():.3f}, {100 * mine['ece_new'].mean():.1f} and "
        f"{100 * theirs['ece_new'].mean():.1f}; paired p = {chances['nll_new']} and {chances['ece_new']})"
    ) in text
    assert f"p = {chances['error_rate_new']})" in text
    six = {row: {f: {**before.loc[row][f], **whole.loc[row][f]} for f in figures} for row in (ours, without, plain)}
    assert all(len(cells) == 6 for row in six.values() for cells in row.values())

    def mean(row: str, figure: str) -> float:
        return float(np.mean(list(six[row][figure].values())))

    def chance(row: str, figure: str) -> str:
        return f"{paired_p(six[ours][figure], six[row][figure]):.2f}"

    nll, ece, error = "nll_new", "ece_new", "error_rate_new"
    alone = p(whole.loc[ours][nll], whole.loc[without][nll])
    assert f"({mean(ours, nll):.3f} and {mean(without, nll):.3f}, p = {chance(without, nll)}; on these three" in text
    assert f"alone p = {alone}, and one of them has it higher)" in text
    assert (whole.loc[ours][nll] > whole.loc[without][nll]).sum() == 1
    assert f"{mean(ours, nll):.3f} and {mean(plain, nll):.3f} (p = {chance(plain, nll)})" in text
    assert f"({100 * mean(ours, ece):.1f} and {100 * mean(plain, ece):.1f}, p = {chance(plain, ece)})" in text
    more = 100 * (mean(ours, error) - mean(plain, error))
    assert f"{more:.1f} points more error (p = {chance(plain, error)})" in text


def test_ten_further_seeds_in_words_are_their_runs() -> None:
    name, heading = (
        "cifar100_few_confirmed",
        "LatentBE with TDiv-SDiv beside plain distillation, ten seeds of their own",
    )
    runs = pq.read_table(ROOT / "results" / "bench" / name / "runs.parquet").to_pandas()
    error, nll, ece = figures = ["error_rate_new", "nll_new", "ece_new"]
    whole, corrupted = (
        runs[runs["part"] == part].groupby(["row", "seed"])[[*figures, "training_cost"]].mean()
        for part in ("test", "corrupted")
    )
    text, lines = section(heading), told(section(heading))
    assert list(lines) == ["none", "kd", "latent_be_tdiv_sdiv", "paragon"]
    for row, cells in lines.items():
        assert list(whole.loc[row].index) == list(corrupted.loc[row].index) == list(range(7, 17))
        means = [part.loc[row][figures].mean() for part in (whole, corrupted)]
        made = [[f"{100 * mean[error]:.2f}", f"{mean[nll]:.3f}", f"{100 * mean[ece]:.2f}"] for mean in means]
        assert cells[:7] == [*made[0], *made[1], f"{whole.loc[row]['training_cost'].mean():.1f}"]

    def apart(part: pd.DataFrame, figure: str, scale: float = 1.0) -> tuple[float, float, float, float, int]:
        """How much higher than KD: the mean, its 95 % interval by Student's t, p, and in how many seeds it is lower."""
        ours, theirs = (part.loc[row][figure] for row in ("latent_be_tdiv_sdiv", "kd"))
        more = scale * (ours - theirs)
        half = 2.2622 * more.std(ddof=1) / np.sqrt(len(more))
        p = paired_p(ours.to_dict(), theirs.to_dict())
        assert p is not None
        return more.mean(), more.mean() - half, more.mean() + half, p, int((more < 0).sum())

    mean, low, high, p, seeds = apart(corrupted, nll)
    less, least, most, chance, each = apart(corrupted, ece, 100)
    assert seeds == each == 10
    assert max(p, chance) < 0.001
    assert f"(by {-mean:.3f}, 95 %: {-high:.3f} to {-low:.3f}, and by {-less:.1f} points, {-most:.1f} to" in text
    assert f"to {-least:.1f}; p < 0.001 for both)" in text
    mean, _, high, p, _ = apart(corrupted, error, 100)
    assert f"the error is {-mean:.2f} points lower (p = {p:.3f})" in text
    mean, low, high, p, seeds = apart(whole, nll)
    assert f"{-mean:.3f} lower (95 %: {-high:.3f} to {-low:.3f}; p = {p:.2f}), in nine seeds of ten" in text
    assert seeds == 9
    mean, _, _, p, _ = apart(whole, ece, 100)
    assert f"ECE is {-mean:.1f} points lower, which ten seeds do not quite show (p = {p:.2f})" in text
    mean, low, high, p, _ = apart(whole, error, 100)
    assert f"({mean:.1f} points higher, p = {p:.2f}; 95 %: {-low:.1f} lower to {high:.1f} higher)" in text

    ours, theirs, papers = [], [], [lines[row][7] for row in ("kd", "latent_be_tdiv_sdiv")]
    for place, part in enumerate((whole, corrupted)):
        kd, mine = (part.loc[row][nll].mean() for row in ("kd", "latent_be_tdiv_sdiv"))
        ours.append(100 * (kd - mine) / kd)
        kd, mine = (float(each.split(";")[place].split(",")[1]) for each in papers)
        theirs.append(100 * (kd - mine) / kd)
    assert f"NLL is {theirs[0]:.0f} % below KD's, ours {ours[0]:.1f} %" in text
    assert f"on corrupted images {theirs[1]:.0f} and {ours[1]:.1f} %." in text
    costs = [whole.loc[row]["training_cost"].mean() for row in ("latent_be_tdiv_sdiv", "kd")]
    assert f"LatentBE costs {costs[0] / costs[1]:.1f} times as much as KD here." in text
    page = (ROOT / "docs" / "methods" / "latent_be.md").read_text()
    both = [corrupted.loc[row][figures].mean() for row in ("latent_be_tdiv_sdiv", "kd")]
    rates = [f"{100 * one[rate]:.1f}" for rate in (ece, error) for one in both]
    said = (
        f"NLL {both[0][nll]:.3f} and {both[1][nll]:.3f}, ECE {rates[0]} and {rates[1]}, error {rates[2]} and {rates[3]}"
    )
    assert f"(ten seeds: {said})" in page
    both = [whole.loc[row][nll].mean() for row in ("latent_be_tdiv_sdiv", "kd")]
    assert f"in NLL on whole ones ({both[0]:.3f} and {both[1]:.3f})" in page
