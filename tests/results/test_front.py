"""The front and how its points were chosen, in words, are what the records give."""

import json
import re
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest
from held import ROOT, check_lines, percent, rows_of, section

from flipguard.bench.read import read_bench
from flipguard.bench.tables import Row, paired_p, read_table


def test_the_search_in_words_is_its_record() -> None:
    rows = json.loads((ROOT / "results" / "graft_search.json").read_text())["rows"]
    text = (ROOT / "results" / "README.md").read_text().split("## GRAFT")[1].split("## ")[0]
    none, elodi = (row["relative_negative_flip_rate"] for row in rows[:2])
    made = []
    for row in rows:
        flips = row["relative_negative_flip_rate"]
        share = "" if row is rows[0] else f"{100 * (none - flips) / (none - elodi):.0f} %"
        figures = f"{row['trainings']:.1f} | {100 * row['error_rate_new']:.2f} | {100 * flips:.2f} | {share}"
        made.append(f"| {row['network']} | {figures} |")
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == made
    for row in json.loads((ROOT / "results" / "graft_search.json").read_text())["agnews"]["rows"]:
        flips, error = 100 * row["relative_negative_flip_rate"], 100 * row["error_rate_new"]
        assert f"{flips:.1f} and {error:.1f}" in text, row


FRONTS = {
    "What branches give on five seeds": ("cifar100_front", ("none", "elodi", "paragon_8", "graft_low", "again_2")),
    "What an old release leaves behind": ("cifar100_front", ("none", "elodi", "treated", "line", "line_mean")),
    "Held to the old release's ensemble for longer": (
        "cifar100_front",
        (
            "none",
            "elodi",
            "patient_5",
            "patient_3",
            "patient_2",
            "patient_low",
            "patient_branch",
            "patient_branch_5",
        ),
    ),
    "New images, and branches: the point that was wanted": (
        "cifar100_front",
        (
            "none",
            "elodi",
            "dealt_5",
            "dealt_3",
            "dealt_branch",
            "dealt_branch_5",
            "small_5",
            "small_3",
            "small_branch",
        ),
    ),
    "The same on texts, on seeds of their own": (
        "agnews_heirs",
        ("none", "elodi", "patient_5", "dealt_branch", "dealt_branch_30"),
    ),
    "Twins: two networks side by side, and no ensemble at any time": (
        "agnews_heirs",
        ("none", "elodi", "twins_0", "twins_mean", "twins"),
    ),
    "Twins on CLINC-150": ("clinc_heirs", ("none", "elodi", "patient_5", "twins_mean", "twins_mean_4")),
    "CLINC-150, on seeds of its own": (
        "clinc_heirs",
        ("none", "elodi", "patient_5", "dealt_branch", "dealt_branch_30"),
    ),
    "The same on CLINC-150, with small transformers": (
        "clinc_small",
        (
            "none",
            "elodi",
            "paragon_8",
            "fd_5",
            "graft_low",
            "line",
            "treated",
            "heir_branch",
            "heir_branch_10",
            "heir_5",
            "patient_5",
            "patient_3",
            "patient_branch",
        ),
    ),
}


@pytest.mark.parametrize("heading", FRONTS)
def test_a_front_in_words_is_its_runs(heading: str) -> None:
    name, rows = FRONTS[heading]
    text = (ROOT / "results" / "README.md").read_text().split(f"## {heading}\n")[1].split("## ")[0]
    runs = pq.read_table(ROOT / "results" / "bench" / name / "runs.parquet").to_pandas()
    seeds = runs[runs["part"] == "test"].groupby(["row", "seed"]).mean(numeric_only=True)
    mean, spread = seeds.groupby("row").mean(), seeds.groupby("row").std()
    flips = 100 * mean["relative_negative_flip_rate"]
    made = []
    for row in rows:
        rates = (
            f"{100 * mean[rate][row]:.2f} ± {100 * spread[rate][row]:.2f}"
            for rate in ("error_rate_new", "relative_negative_flip_rate")
        )
        share = f"{100 * (flips['none'] - flips[row]) / (flips['none'] - flips['elodi']):.0f} %"
        made.append(f"{mean['training_cost'][row]:.1f} | {' | '.join(rates)} | {'' if row == 'none' else share} |")
    assert [line.split(" | ", 1)[1] for line in text.splitlines() if line.startswith("|") and "±" in line] == made


def test_each_way_is_its_row() -> None:
    rows = {row.name: row for row in rows_of("cifar100_ways")}
    text = section("Every way at 16 epochs, on CIFAR-100")
    assert f"{len(rows)} of {len(read_bench(ROOT / 'recipes' / 'bench' / 'cifar100_ways.yaml').every_row)} rows" in text
    relative = {name: 100 * row.cells["relative_negative_flip_rate"].mean for name, row in rows.items()}
    error = {name: 100 * row.cells["error_rate_new"].mean for name, row in rows.items()}

    def share(name: str) -> str:
        return f"{100 * (relative['none'] - relative[name]) / (relative['none'] - relative['m_8']):.0f}"

    def made(row: Row) -> list[str]:
        old, new, flips = percent(row, "error_rate_old", "error_rate_new", "negative_flip_rate")
        cut = "" if row.name == "none" else f"{share(row.name)} %"
        figures = [f"{row.training_cost:.1f}", f"{old:.2f}", f"{new:.2f}", f"{flips:.2f}"]
        return [*figures, f"{relative[row.name]:.1f}", cut]

    check_lines("cifar100_ways", "Every way at 16 epochs, on CIFAR-100", made)
    assert f"({share('by_halves')} and {share('by_quarters')} %)" in text
    assert f"two {share('m_2')} % of the cut of eight, one {share('m_1')} %" in text
    assert f"{share('by_pair')} % of the cut for 3.7 trainings at {error['by_pair'] - error['m_8']:.1f} points" in text
    assert f"{share('codistill_skl_1')} % for 2.0, at {error['codistill_skl_1'] - error['m_8']:.1f}." in text
    assert f"takes {relative['none'] - relative['average']:.1f} points of relative NFR" in text
    assert abs(error["average"] - error["none"] - 0.25) < 0.05
    assert f"({share('by_snapshots')} % of the cut for 2.7 trainings)" in text
    assert abs(error["by_snapshots"] - error["none"] - 3) < 0.1
    single = [name for name, row in rows.items() if row.inference_cost < 1.5]
    assert sorted(single, key=error.__getitem__)[:2] == ["dealt_5", "twice"]
    assert sorted(single, key=relative.__getitem__)[-3:] == ["twice", "by_soup", "soup"]
    assert f"sixteen have {share('m_16')} % at {error['m_8'] - error['m_16']:.1f} points less error" in text
    flips = {name: 100 * row.cells["negative_flip_rate"].mean for name, row in rows.items()}
    assert min(single, key=flips.__getitem__) == "dealt_5"

    def has(name: str) -> str:
        return f"{error[name]:.2f} and {relative[name]:.1f}"

    lowest = f"{error['dealt_5']:.2f} and {flips['dealt_5']:.2f}"
    assert f"({lowest}, {share('dealt_5')} % of the cut, for 3.0 trainings)" in text
    assert f"`dealt_branch` {share('dealt_branch')} % of the cut at {error['dealt_branch']:.2f}" in text
    assert f"has {share('graft_low')} % of the cut at {error['graft_low']:.2f}" in text
    assert f"{share('kd')} and {share('fd_lm')} % of the cut" in text
    longer = {row.name: row for row in rows_of("cifar100")}
    none, elodi, kd, lm = (
        percent(longer[name], "relative_negative_flip_rate")[0] for name in ("none", "elodi", "kd", "fd_lm")
    )
    cuts = [f"{100 * (none - each) / (none - elodi):.0f}" for each in (kd, lm)]
    assert f"three seeds, {cuts[0]} and {cuts[1]} %." in text
    price = f"{rows['latent_be'].training_cost:.1f} trainings"
    assert f"({error['latent_be']:.2f}, {share('latent_be')} %, {price})" in text
    ways, growth = (
        read_table(ROOT / "results" / "bench" / f"cifar100_{name}", "predictions.parquet").to_pandas().set_index("id")
        for name in ("ways", "growth")
    )
    growth = growth.loc[ways.index]
    label, old, other = ways["label"], ways["m_8.1.0.old"], ways["dealt_5.1.0.old"]
    assert (other == ways["dealt_branch.1.0.old"]).all()
    errors = [f"{100 * (one != label).mean():.2f}" for one in (old, other)]
    assert f"({' and '.join(errors)} % error; they differ on {(old != other).sum():,} images)" in text

    def against(new: "pd.Series[int]") -> tuple[float, float, str]:
        """NFR and relative NFR against the old release that `m_8` was compared with, and the share of the cut."""
        broken, wrong = ((old == label) & (new != label)).mean(), (new != label).mean()
        flipped = 100 * broken / (wrong * (old == label).mean())
        cut = f"{100 * (relative['none'] - flipped) / (relative['none'] - relative['m_8']):.0f}"
        return 100 * broken, flipped, cut

    assert f"they have {against(ways['dealt_5.1.0.new'])[2]} and {against(ways['dealt_branch.1.0.new'])[2]} %." in text
    draw = growth["samples_elodi.1.0.new"]
    broken, flipped, cut = against(draw)
    wrong = f"{100 * (draw != label).mean():.2f}"
    assert f"Its error is {wrong}, and against `m_8`'s old release it has an NFR of {broken:.2f}" in text
    assert f"a relative NFR of {flipped:.1f} ({cut} % of the cut)" in text
    assert f"where `m_8` has {error['m_8']:.2f}, {flips['m_8']:.2f} and {relative['m_8']:.1f}" in text
    draws = f"two draws of ELODI {has('m_8')}, {wrong} and {flipped:.1f})"
    assert f"({error['twins']:.2f} and a relative NFR of {relative['twins']:.1f}; {draws}" in text


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("100 101 --rows graft_low graft_low_3 graft_deep graft_near graft_three --at-most 23.0", "graft_low"),
        ("100 101 --rows again_2 again_3 --at-most 23.0", "again_2"),
        ("100 101 --rows again_2 again_3 --at-most 27.3", "again_2"),
        ("100 101 --rows graft_low graft_three --at-most 28", "graft_three"),
        ("100 --rows heir_5 heir_branch heir_branch_1 treated line line_1 --at-most 24.4", "treated"),
    ],
)
def test_the_choices_follow_from_the_rule(rule: str, expected: str) -> None:
    """Those that the results tell of, and two by the lowest error."""
    done = _choose(rule)
    assert (done.returncode, done.stdout) == (0, f"{expected}\n")


def test_five_seeds_chose_by_the_same_rule() -> None:
    rows = "patient_5 patient_3 patient_2 patient_low patient_branch patient_branch_5"
    done = _choose(f"1 2 3 4 5 --rows {rows} --at-most 24.4", "cifar100_front")
    assert (done.returncode, done.stdout) == (0, "patient_branch_5\n")
    assert "patient_branch_5: error 25.68, relative NFR 23.83\n" in done.stderr


def test_the_choice_of_branches_reaches_the_point() -> None:
    """At most three trainings, nine tenths of ELODI's cut, no more error: on the test set, as its own rule chose it."""
    rows = "dealt_5 dealt_3 dealt_branch dealt_branch_5 small_5 small_3 small_branch"
    done = _choose(f"1 2 3 4 5 --rows {rows} --at-most 22.9", "cifar100_front")
    assert (done.returncode, done.stdout) == (0, "small_branch\n")
    assert "small_branch: error 25.38, relative NFR 21.74\n" in done.stderr
    assert (
        "elodi: error 25.65, relative NFR 22.89\n"
        in _choose("1 2 3 4 5 --rows elodi --at-most 0", "cifar100_front").stderr
    )
    runs = pq.read_table(ROOT / "results" / "bench" / "cifar100_front" / "runs.parquet").to_pandas()
    seeds = runs[runs["part"] == "test"].groupby(["row", "seed"]).mean(numeric_only=True)
    mean, flips = seeds.groupby("row").mean(), "relative_negative_flip_rate"
    assert set(seeds.loc["small_branch"].index) == set(seeds.loc["elodi"].index) == {1, 2, 3, 4, 5}
    assert mean["training_cost"]["small_branch"] <= 3
    assert mean["error_rate_new"]["small_branch"] <= mean["error_rate_new"]["elodi"]
    cut, wanted = (mean[flips]["none"] - mean[flips][row] for row in ("small_branch", "elodi"))
    assert cut >= 0.9 * wanted
    text = (ROOT / "results" / "README.md").read_text()
    by_chance = [
        paired_p(dict(seeds.loc["small_branch"][figure]), dict(seeds.loc["elodi"][figure]))
        for figure in ("error_rate_new", flips)
    ]
    assert None not in by_chance
    assert "neither its error (p = {:.2f}) nor its relative NFR (p = {:.2f})".format(*by_chance) in text
    apart = 100 * (seeds.loc["small_branch"]["error_rate_new"] - seeds.loc["elodi"]["error_rate_new"])
    # Student's t with four degrees of freedom.
    wide = 2.776 * apart.std() / len(apart) ** 0.5
    assert f"{wide - apart.mean():.2f} points below ELODI's and {wide + apart.mean():.2f} above" in text


@pytest.mark.parametrize(
    ("name", "seeds", "chosen", "apart"),
    [
        (
            "agnews_heirs",
            "3 4 5 6 7",
            "(validation error {} and relative NFR {}; ELODI {} and {};",
            "at {:.2f} points more error, which five seeds do not tell from none (paired p = {:.2f})",
        ),
        (
            "clinc_heirs",
            "4 5 6",
            "chooses `patient_5` (error {} and relative NFR {}; ELODI {} and {})",
            "at {:.2f} points more error (paired p = {:.2f})",
        ),
    ],
)
def test_texts_choose_one_network(name: str, seeds: str, chosen: str, apart: str) -> None:
    """By the rule that was fixed before, with ELODI's own relative NFR on their validation part as the bar."""
    figures = r"{}: error ([\d.]+), relative NFR ([\d.]+)"
    done = _choose(f"{seeds} --rows elodi --at-most 0", name)
    [(error, bar)] = re.findall(figures.format("elodi"), done.stderr)
    done = _choose(f"{seeds} --rows patient_5 dealt_branch dealt_branch_30 --at-most {bar}", name)
    assert done.stdout == "patient_5\n"
    [(own, flips)] = re.findall(figures.format("patient_5"), done.stderr)
    text = (ROOT / "results" / "README.md").read_text()
    assert chosen.format(own, flips, error, bar) in text
    runs = pq.read_table(ROOT / "results" / "bench" / name / "runs.parquet").to_pandas()
    error_of = runs[runs["part"] == "test"].groupby(["row", "seed"])["error_rate_new"].mean()
    by_chance = paired_p(dict(error_of["patient_5"]), dict(error_of["elodi"]))
    more = 100 * (error_of["patient_5"].mean() - error_of["elodi"].mean())
    assert apart.format(more, by_chance) in text


def test_a_choice_needs_every_seed() -> None:
    done = _choose("100 101 --rows heir_5 heir_branch --at-most 24.4")
    assert done.returncode == 1
    assert done.stderr.endswith("has no validation figures of heir_branch for seed 101.\n")


def _choose(rule: str, name: str = "cifar100_front_search") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "recipes/choose.py", f"results/bench/{name}", "--seeds", *rule.split()]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_what_the_search_s_networks_did_on_the_test_set_is_its_record() -> None:
    text = (ROOT / "results" / "README.md").read_text().split("## What branches give on five seeds")[1].split("## ")[0]
    record = json.loads((ROOT / "results" / "graft_search.json").read_text())["test"]["rows"]
    elodi, long, averaged, graft = (100 * row["relative_negative_flip_rate"] for row in record)
    assert f"({long:.1f} and {averaged:.1f} against {elodi:.1f} on the test set)" in text
    assert f"on the test set that same network has {graft:.1f}" in text
    more = sorted(100 * (row["error_rate_new"] - record[0]["error_rate_new"]) for row in record[1:3])
    assert f"with {more[0]:.1f} to {more[1]:.1f} points more error" in text
