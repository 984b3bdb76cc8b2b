"""The committed tables are what the committed records give."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from flipguard.bench.read import read_bench
from flipguard.bench.tables import Cell, Row, paired_p, read_rows, read_table
from flipguard.bench.written import write_tables

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["elodi_cifar100", "elodi_cifar100_long"])
def test_the_cifar_tables_are_made_from_their_records(name: str) -> None:
    command = [sys.executable, "recipes/table.py", f"results/{name}"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert made == (ROOT / "results" / f"{name}.md").read_text()


def test_the_faults_in_words_are_the_records() -> None:
    found = json.loads((ROOT / "results" / "faults.json").read_text())["faults"].values()
    tried, survived = (sum(each[key] for each in found) for key in ("tried", "survived"))
    for page in ("results/README.md", "docs/faults.md"):
        text = " ".join((ROOT / page).read_text().split())
        assert re.search(rf"\b{tried} (faults )?tried(,| and) {survived} survived", text), page
    page = (ROOT / "results" / "README.md").read_text()
    rows = page[page.index("| fault | tried | survived |") :].split("\n\n")[0].splitlines()[2:]
    counts = [[int(cell) for cell in row.split("|")[2:4]] for row in rows]
    assert [sum(column) for column in zip(*counts, strict=True)] == [tried, survived]


def test_the_fuzzing_in_words_is_the_record() -> None:
    found = json.loads((ROOT / "results" / "fuzzing.json").read_text())
    text = (ROOT / "results" / "README.md").read_text().split("## Fuzzing")[1]
    minutes, executions = (sum(each[key] for each in found.values()) for key in ("seconds", "executions"))
    assert f"{len(found)} readers, {minutes / 60:.0f} minutes, {executions / 1e6:.1f} million executions" in text
    assert not any(each["broken"] for each in found.values())
    assert {path.name for path in (ROOT / "fuzz" / "corpus").iterdir()} == {*found}


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


def test_the_table_beside_the_papers_is_its_runs() -> None:
    text = section("ELODI's Table 1 on CLINC-150, with small transformers")
    runs = pq.read_table(ROOT / "results" / "bench" / "clinc_methods" / "runs.parquet").to_pandas()
    runs = runs[runs["part"] == "test"]
    mean = 100 * runs.groupby(["row", "seed"]).mean(numeric_only=True).groupby("row").mean()
    told = re.findall(r"^\| `(\w+)` \| ([\d.]+), ([\d.]+) \|", text, re.MULTILINE)
    assert len(told) == 10
    for row, error, flips in told:
        found = mean["error_rate_new"][row], mean["relative_negative_flip_rate"][row]
        assert (error, flips) == (f"{found[0]:.2f}", f"{found[1]:.1f}"), row


def section(heading: str) -> str:
    return (ROOT / "results" / "README.md").read_text().split(f"\n## {heading}")[1].split("\n## ")[0]


def told(text: str) -> dict[str, list[str]]:
    """The lines of a section's tables that begin with a row's name in code: the name, and the cells after it."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return {line[0].strip("`"): line[1:] for line in lines}


def check_lines(name: str, heading: str, made: Callable[[Row], list[str]]) -> None:
    """A section's lines are the rows of its bench, in their order, and begin with what is made of each."""
    rows, said = read_rows(ROOT / "results" / "bench" / name), told(section(heading))
    assert list(said) == [row.name for row in rows]
    for row in rows:
        cells = made(row)
        assert said[row.name][: len(cells)] == cells, row.name


def percent(row: Row, *cells: str) -> list[float]:
    return [100 * row.cells[cell].mean for cell in cells]


CHURN = {
    "agnews_churn": "What makes two runs agree on AG News",
    "agnews_causes": "What makes two runs differ on AG News",
}


@pytest.mark.parametrize("name", CHURN)
def test_the_table_of_churn_is_its_runs(name: str) -> None:
    rows = read_rows(ROOT / "results" / "bench" / name)
    said, none = told(section(CHURN[name])), rows[0].cells["run_churn"].mean
    assert list(said) == [row.name for row in rows]
    for row in rows:
        churn, error, flips = (
            row.cells[cell].mean for cell in ("run_churn", "error_rate_new", "relative_negative_flip_rate")
        )
        made = [f"{100 * churn:.2f}", f"{churn / none:.2f}", f"{100 * error:.2f}", f"{100 * flips:.1f}"]
        assert said[row.name][: len(made)] == made


ONE_PAIR = {
    "cifar100_churn": "What makes two runs agree on CIFAR-100",
    "cifar100_causes": "What makes two runs differ on CIFAR-100",
}


@pytest.mark.parametrize("name", ONE_PAIR)
def test_the_table_of_one_pair_of_runs_is_its_record(name: str) -> None:
    none = read_rows(ROOT / "results" / "bench" / name)[0].cells["churn"].mean

    def made(row: Row) -> list[str]:
        churn, error, flips, ece = percent(row, "churn", "error_rate_new", "relative_negative_flip_rate", "ece_new")
        return [f"{churn:.2f}", f"{churn / (100 * none):.2f}", f"{error:.2f}", f"{flips:.1f}", f"{ece:.1f}"]

    check_lines(name, ONE_PAIR[name], made)


HELD = (("initialisation", "order"), ("initialisation", "augmentation"), ("order", "augmentation"))


def test_what_is_held_in_words_is_its_record() -> None:
    churn = {row.name: row.cells["churn"].mean for row in read_rows(ROOT / "results" / "bench" / "cifar100_causes")}
    free = churn["nothing"]
    some = [churn[name] / free for name in ("initialisation", "order", "augmentation")]
    some += [churn[f"{one}_{other}"] / free for one, other in HELD]
    text = section(ONE_PAIR["cifar100_causes"])
    assert f"({min(some):.2f} to {max(some):.2f} times)" in text
    assert churn["everything"] == churn["plain_everything"] == 0
    assert f"({churn['plain_nothing'] / free:.2f} times; the paper's {11.08 / 5.81:.2f} times)" in text
    without, ours = churn["none_0"], "codistill_skl_1"
    assert f"two plain runs differ {without / free:.2f} times as often (the paper {32.23 / 26.77:.2f} times)" in text
    assert (
        f"with co-distillation {churn[ours] / free:.2f} times, and {churn[f'{ours}_0'] / without:.2f} times where both "
        f"have no decay ({100 * churn[f'{ours}_0']:.2f} and {100 * without:.2f}; the paper {17.70 / 26.77:.2f} and "
        f"{23.14 / 32.23:.2f})"
    ) in text
    error = {
        row.name: 100 * row.cells["error_rate_new"].mean
        for row in read_rows(ROOT / "results" / "bench" / "cifar100_causes")
    }
    costs = [error[f"{ours}{end}"] - error[f"none{end}"] for end in ("", "_0")]
    assert f"it costs {costs[0]:.1f} and {costs[1]:.1f} points of error" in text
    assert f"({100 * churn[f'{ours}_initialisation']:.2f} and {100 * churn[ours]:.2f})" in text


def test_each_way_is_its_row() -> None:
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_ways")}
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
    longer = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100")}
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


def test_each_line_of_table_1_is_its_row() -> None:
    def made(row: Row) -> list[str]:
        error, flips, relative, ece = percent(
            row, "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "ece_new"
        )
        churn = f"{100 * row.cells['run_churn'].mean:.1f}" if "run_churn" in row.cells else ""
        figures = [f"{row.training_cost:.1f}", f"{error:.2f}", f"{flips:.2f}", f"{relative:.1f}", churn]
        return [*figures, f"{row.cells['nll_new'].mean:.3f}", f"{ece:.1f}", str(len(row.seeds))]

    check_lines("cifar100", "ELODI's Table 1 on CIFAR-100", made)


def test_table_1_in_words_is_its_runs() -> None:
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100")}
    text = section("ELODI's Table 1 on CIFAR-100")
    error, flips, relative, churn = (
        {name: 100 * row.cells[cell].mean for name, row in rows.items() if cell in row.cells}
        for cell in ("error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "run_churn")
    )

    def p(one: str, other: str, cell: str = "negative_flip_rate") -> float:
        return paired_p(rows[one].cells[cell].values, rows[other].cells[cell].values) or 1.0

    targeted = ("kd", "fd_kl", "fd_kl_1", "fd_lm", "ldi", "naive", "bct", "ract", "bu_cr")
    assert error["elodi"] < min(error[name] for name in targeted)
    assert flips["elodi"] < min(flips[name] for name in targeted)
    assert min(targeted, key=flips.__getitem__) == "fd_lm"
    assert min(targeted, key=error.__getitem__) == "kd"
    first = f"{error['elodi']:.2f} and an NFR of {flips['elodi']:.2f}"
    second = f"`fd_lm` with {flips['fd_lm']:.2f} at {error['fd_lm']:.2f}"
    chance = f"(against ELODI p = {p('elodi', 'kd', 'error_rate_new'):.3f} and {p('elodi', 'kd'):.3f})"
    third = f"`kd` with {error['kd']:.2f} at {flips['kd']:.2f} {chance[:-1]}"
    fourth = f"of `fd_lm` {p('elodi', 'fd_lm', 'error_rate_new'):.3f} and {p('elodi', 'fd_lm'):.2f}; unadjusted)"
    assert fourth in text
    assert f"{first}; next in NFR is {second}, next in error {third}" in text
    assert {row.seeds for row in rows.values()} == {(1, 2, 3)}
    for name in targeted:
        assert p("elodi", name, "error_rate_new") < 0.05
        assert (p("elodi", name) < 0.05) == (name != "fd_lm")
        told_apart = p("elodi", name, "relative_negative_flip_rate") < 0.05
        assert told_apart == (name not in ("fd_lm", "fd_kl", "fd_kl_1"))
    said = read_table(ROOT / "results" / "bench" / "cifar100", "predictions.parquet")
    later = ("fd_kl", "fd_kl_1", "fd_lm", "ldi", "bct", "ract", "bu_cr")
    for seed in (1, 2, 3):
        olds = {name: said[f"{name}.{seed}.0.old"].to_pylist() for name in targeted}
        assert all(olds[name] == olds["fd_kl"] for name in later)
        assert (olds["kd"] == olds["fd_kl"]) == (seed != 3)
    of_kd, of_later = (100 * rows[name].cells["error_rate_old"].values[3] for name in ("kd", "fd_kl"))
    assert f"(error {of_later:.1f}, theirs {of_kd:.1f})" in text
    of_eight = ("elodi", "elodi_k10", "ensemble_kd", "ensemble_fd")
    assert {f"{error[name]:.1f}" for name in of_eight} <= {"26.0", "26.1", "26.2", "26.3"}
    assert "NFRs of {}, {}, {} and {}".format(*(f"{flips[name]:.2f}" for name in of_eight)) in text
    of_all = [rows[name].cells["negative_flip_rate"].values for name in of_eight]
    assert all(of_all[0][seed] < min(other[seed] for other in of_all[1:]) for seed in (1, 2, 3))
    top, kd, fd = (p("elodi", name) for name in of_eight[1:])
    assert f"against KD with p = {kd:.2f}, against the other two {top:.2f} and {fd:.2f} (unadjusted, and after" in text
    students, ensembles = ("ensemble_kd_2", "kd_4", "ensemble_kd"), ("paragon_2", "paragon_4", "paragon_8")
    assert "relative NFR {:.1f}, {:.1f} and {:.1f} by KD".format(*(relative[name] for name in students)) in text
    assert "against {:.1f}, {:.1f} and {:.1f} of the ensembles".format(*(relative[name] for name in ensembles)) in text
    for name, called in (("dealt_branch", "scion"), ("dealt_5", "heir")):
        assert f"`{name}` (`{called}`) {error[name]:.2f} and {flips[name]:.2f}" in text
    single = [name for name, row in rows.items() if row.inference_cost < 1.5]
    assert min(single, key=flips.__getitem__) == "dealt_5"
    assert min(single, key=lambda name: rows[name].cells["nll_new"].mean) == "dealt_branch"
    better = [name for name in single if error[name] < error["dealt_branch"]]
    assert all(rows[name].training_cost > 11 for name in better)
    assert "({:.2f} and {:.2f})".format(*sorted(error[name] for name in better)) in text
    assert f"at {error['dealt_5'] - error['elodi']:.1f} points more error" in text
    assert f"and {error['elodi'] - error['paragon_4']:.1f} points more error" in text
    old = {name: f"{100 * rows[name].cells['error_rate_old'].mean:.2f}" for name in of_eight}
    assert f"({old['elodi']}; KD's and focal distillation's {old['ensemble_kd']} and {old['ensemble_fd']})" in text
    nll, ece = ({name: row.cells[cell].mean for name, row in rows.items()} for cell in ("nll_new", "ece_new"))

    def three(name: str) -> str:
        return f"{error[name]:.2f}, {nll[name]:.3f} and {100 * ece[name]:.1f}"

    def chances(one: str, other: str) -> list[str]:
        return [f"{p(one, other, cell):.2f}" for cell in ("error_rate_new", "nll_new", "ece_new")]

    ours, without, kd_4 = "latent_be_tdiv_sdiv", "latent_be", "kd_4"
    assert f"(error {error[kd_4]:.2f}, NLL {nll[kd_4]:.3f}, ECE {100 * ece[kd_4]:.1f}) it has {three(ours)}" in text
    of_error, of_nll, of_ece = chances(ours, kd_4)
    assert f"(p = {of_ece}), the NLL not (p = {of_nll}), the error a hair above (p = {of_error})" in text
    values = {name: rows[name].cells for name in (ours, without, kd_4)}
    for seed in (1, 2, 3):
        assert values[ours]["ece_new"].values[seed] < values[kd_4]["ece_new"].values[seed]
        assert values[ours]["nll_new"].values[seed] > values[without]["nll_new"].values[seed]
    of_error, of_nll, of_ece = chances(without, kd_4)
    assert f"it has {three(without)}, below KD in all three" in text
    assert f"(p = {of_error}, {of_nll} and {of_ece})" in text
    assert (
        f"in each seed (p = {p(ours, without, 'nll_new'):.3f}) and lowers ECE (p = {chances(ours, without)[2]})" in text
    )
    lower = f"(relative NFR {relative[ours]:.1f} and {relative[without]:.1f}, p = "
    assert f"{lower}{p(ours, without, 'relative_negative_flip_rate'):.2f})" in text
    assert f"({three('batch_ensemble')}; ECE against KD p = {chances('batch_ensemble', kd_4)[2]})" in text
    plain = churn["none"]
    forms = (churn[name] / plain for name in ("codistill_ce_1", "codistill_l1_1", "codistill_skl_1_entropy"))
    ce, l1, entropy = (f"{share:.2f}" for share in forms)
    assert f"{ce} times by cross-entropy towards a copy from before, {l1} by L1" in text
    assert f"minimum entropy adds nothing ({entropy})" in text
    skl = f"{churn['codistill_skl_1'] / plain:.2f}"
    assert min(rows, key=ece.__getitem__) == "proxy_end2"
    percents = {name: f"{100 * mean:.1f}" for name, mean in ece.items()}
    pages = {
        "codistill_l1": f"{l1} times as often as plain ones by L1, {skl} times by symmetric KL",
        "codistill_ce": f"{ce} times as often as plain ones by this, {skl} times by that one. Its ECE is the lower of "
        f"the two ({percents['codistill_ce_1']} and {percents['codistill_skl_1']}; no treatment {percents['none']})",
        "proxy_end2": f"the lowest ECE of all rows ({percents['proxy_end2']}; ELODI from eight {percents['elodi']})",
        "ensemble_kd": f"(NFR {flips['elodi']:.2f} and {flips['ensemble_kd']:.2f}, p = {kd:.2f} by three seeds) at "
        f"about the same error of the new model, and the lower ECE ({percents['elodi']} and {percents['ensemble_kd']})",
        "skl": f"(error {error['skl']:.1f})",
    }
    for page, words_of_it in pages.items():
        assert words_of_it in (ROOT / "docs" / "methods" / f"{page}.md").read_text(), page


def test_co_distillation_in_words_is_its_runs() -> None:
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "cifar100")}
    text = section("ELODI's Table 1 on CIFAR-100")
    none, ours, elodi, weak, strong = (
        rows[name] for name in ("none", "codistill_skl_1", "elodi", "codistill_skl", "codistill_skl_5")
    )
    error, flips, churn = "error_rate_new", "relative_negative_flip_rate", "run_churn"
    mine, plain, least = (100 * cells[churn].mean for cells in (ours, none, weak))
    assert f"differ in {mine:.2f} % of the test set, two of `none` in {plain:.2f}: {mine / plain:.2f} times" in text
    chance = f"{100 * ours[error].mean:.2f}; p = {paired_p(ours[error].values, none[error].values):.3f}"
    assert f"gains {100 * (none[error].mean - ours[error].mean):.2f} points of error ({chance})" in text
    assert f"({100 * ours['ece_new'].mean:.1f} against {100 * none['ece_new'].mean:.1f})" in text
    first, second, third = (cells[flips].mean for cells in (none, ours, elodi))
    shares = f"({100 * second:.1f}; `none` {100 * first:.1f}, ELODI {100 * third:.1f})"
    assert (
        f"{100 * (first - second) / (first - third):.0f} % of ELODI's cut in relative NFR {shares}\n  for 2.0 trainings"
    ) in text
    assert f"β = 0.04 it does next to nothing ({least / plain:.2f} times the churn, relative NFR" in text
    more, own = 100 * (strong[error].mean - none[error].mean), 100 * strong["negative_flip_rate"].mean
    assert f"the lowest of the table ({100 * strong[flips].mean:.1f}) because the error is {more:.1f} points" in text
    assert f"its NFR, {own:.2f}, is above ELODI's {100 * elodi['negative_flip_rate'].mean:.2f}" in text
    mixed = _after_plain_models("codistill_skl_1")
    assert f"it is {100 * mixed:.1f}, {100 * (first - mixed) / (first - third):.0f} % of the cut" in text


def test_co_distillation_on_clinc_in_words_is_its_runs() -> None:
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "clinc_small")}
    ours, none = rows["codistill_skl_1"], rows["none"]
    error, plain = (100 * cells["error_rate_new"].mean for cells in (ours, none))
    churn, other = (100 * cells["run_churn"].mean for cells in (ours, none))
    flips = 100 * ours["relative_negative_flip_rate"].mean
    assert (
        f"error {error:.2f} (no treatment {plain:.2f}), relative NFR {flips:.1f}, {churn / other:.2f} times the churn "
        f"({churn:.2f} and {other:.2f})"
    ) in section("The same on CLINC-150, with small transformers")
    weak = rows["codistill_skl_02"]
    error, flips = (100 * weak[cell].mean for cell in ("error_rate_new", "relative_negative_flip_rate"))
    share = 100 * weak["run_churn"].mean / other
    assert f"error {error:.2f}, relative NFR {flips:.1f}, {share:.2f} times the churn." in section(
        "The same on CLINC-150, with small transformers"
    )


def _after_plain_models(row: str) -> float:
    """Relative NFR of a row's new models after each plain old model of their seed."""
    said = pq.read_table(ROOT / "results" / "bench" / "cifar100" / "predictions.parquet").to_pandas()
    found = []
    for seed in (1, 2, 3):
        new = said[f"{row}.{seed}.0.new"]
        for copy in range(8):
            right = said[f"none.{seed}.{copy}.old"] == said["label"]
            flips, wrong = (right & (new != said["label"])).mean(), (new != said["label"]).mean()
            found.append(flips / (wrong * right.mean()))
    return float(np.mean(found))


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
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_latent")}
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
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "cifar100_latent_few")}
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


BESIDE = {
    "agnews_losses": "How an ensemble is distilled, on AG News",
    "agnews_size": "Ensemble size and loss weight on AG News",
    "agnews_guides": "Who guides, on AG News",
    "cifar100_guides": "Who guides, on CIFAR-100",
    "cifar100_size": "Ensemble size and loss weight on CIFAR-100",
    "cifar100_losses": "How an ensemble is distilled, on CIFAR-100",
    "cifar100_architectures": "Other architectures on CIFAR-100",
    "agnews_tuned": "MiniLM fine-tuned on AG News",
    "digits_architectures": "Other architectures on digits",
    "cifar100_focal": "Focal distillation's weights on CIFAR-100",
    "agnews_same": "One network trained twice, on AG News",
    "clinc_tuned": "MiniLM fine-tuned on a fifth of CLINC-150",
}


@pytest.mark.parametrize("name", BESIDE)
def test_each_line_beside_the_papers_is_its_row(name: str) -> None:
    def made(row: Row) -> list[str]:
        error, flips, relative = percent(row, "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")
        return [f"{error:.2f}", f"{flips:.2f}", f"{relative:.1f}"]

    check_lines(name, BESIDE[name], made)


def test_other_architectures_in_words_are_their_runs() -> None:
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "digits_architectures")}
    text, flips, error = section(BESIDE["digits_architectures"]), "negative_flip_rate", "error_rate_new"
    kinds = ("wider", "cnn", "residual")

    def p(kind: str, cell: str, way: str = "elodi") -> str:
        chance = paired_p(rows[f"{kind}_{way}"][cell].values, rows[f"{kind}_none"][cell].values) or 1.0
        return f"{chance:.3f}" if chance < 0.01 else f"{chance:.2f}"

    cuts = [f"{100 * (1 - rows[f'{kind}_elodi'][flips].mean / rows[f'{kind}_none'][flips].mean):.0f}" for kind in kinds]
    chances = [p(kind, flips) for kind in kinds]
    assert f"by {cuts[0]}, {cuts[1]} and {cuts[2]} % (paired over five seeds p = {chances[0]}, {chances[1]} and" in text
    assert f"and {chances[2]}, unadjusted" in text
    assert all(rows[f"{kind}_elodi"][error].mean < rows[f"{kind}_none"][error].mean for kind in kinds)
    assert f"p = {p('cnn', error)} and {p('residual', error)})" in text
    relative = "relative_negative_flip_rate"
    divided = [
        paired_p(rows[f"{kind}_elodi"][relative].values, rows[f"{kind}_none"][relative].values) for kind in kinds
    ]
    assert "p is {:.2f}, {:.2f} and {:.2f}.".format(*divided) in text
    old = 100 * rows["wider_kd"]["error_rate_old"].mean
    lost = {kind: [100 * rows[f"{kind}_{way}"][error].mean for way in ("none", "kd")] for kind in kinds}
    said = " and ".join(f"{lost[kind][0]:.2f} to {lost[kind][1]:.2f}" for kind in ("wider", "residual"))
    assert f"(error {said}, the old one's {old:.1f})" in text
    shares = [(kd - none) / (old - none) for none, kd in lost.values()]
    assert [round(5 * share) for share in shares] == [2, 1, 2]
    assert all(rows[f"{kind}_kd"][relative].mean < rows[f"{kind}_none"][relative].mean for kind in kinds)
    wider, cnn, residual = (
        [f"{100 * rows[f'{kind}_{way}'][flips].mean:.2f}" for way in ("none", "kd")] for kind in kinds
    )
    assert (
        f"({' to '.join(wider)}; the convolutional one {' to '.join(cnn)}, the residual one {' to '.join(residual)})"
    ) in text


def test_the_fine_tuned_heir_in_words_is_its_runs() -> None:
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "clinc_tuned")}
    text = section(BESIDE["clinc_tuned"])
    error, relative, flips = "error_rate_new", "relative_negative_flip_rate", "negative_flip_rate"

    def p(one: str, other: str, cell: str) -> str:
        return f"{paired_p(rows[one][cell].values, rows[other][cell].values):.2f}"

    def mean(row: str, cell: str, digits: int = 2) -> str:
        return f"{100 * rows[row][cell].mean:.{digits}f}"

    heir, longer, plain, none, none_long = (
        (mean(row, error), mean(row, relative, 1)) for row in ("heir", "elodi_long", "elodi", "none", "none_long")
    )
    chance = f"p = {p('heir', 'elodi_long', error)} and {p('heir', 'elodi_long', relative)}"
    assert (
        f"{heir[0]} and a relative NFR of {heir[1]} where `elodi_long` has {' and '.join(longer)} (paired {chance})"
        in text
    )
    assert f"({none[0]} to {none_long[0]} without a treatment, {plain[0]} to {longer[0]} under ELODI)" in text
    assert f"(relative NFR {plain[1]} to {longer[1]} under ELODI, {none[1]} and {none_long[1]} without" in text
    assert f"a third fewer flips (p = {p('heir', 'elodi', error)} and {p('heir', 'elodi', flips)})" in text
    assert f"(NFR 0.77 and 0.90, p = {p('heir', 'paragon', flips)})" in text
    assert f"(NFR 1.14 against 1.72, paired p = {p('elodi', 'none', flips)})" in text


CHAINS = {
    "agnews_chain": "A chain of three models on AG News",
    "agnews_inherit": "How long an inheritance lasts, on AG News",
    "cifar100_chain": "A chain of three models on CIFAR-100",
    "cifar100_untreated": "A first model that was never treated, on CIFAR-100",
}


@pytest.mark.parametrize("name", CHAINS)
def test_each_chain_in_words_is_that_of_its_table(name: str) -> None:
    table = (ROOT / "results" / "bench" / name / "table.md").read_text().split("### Chains")[1].split("\n#")[0]
    made = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")][2:]
    said = told(section(CHAINS[name]))
    assert list(said) == [line[0] for line in made]
    for chain, *cells in made:
        assert said[chain][: len(cells)] == cells


def test_twins_in_words_are_their_runs() -> None:
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "agnews_heirs")}
    ours, theirs = rows["twins"], rows["elodi"]
    text = section("Twins: two networks side by side")
    less = np.array(
        [100 * (theirs["error_rate_new"].values[s] - ours["error_rate_new"].values[s]) for s in range(3, 8)]
    )
    half = 2.7764 * less.std(ddof=1) / np.sqrt(len(less))
    assert f"{less.mean():.2f} points less error (95 %: {less.mean() - half:.2f} to {less.mean() + half:.2f}" in text
    chance = {name: paired_p(ours[name].values, theirs[name].values) or 1.0 for name in ours}
    assert chance["error_rate_new"] < 0.001
    mine, elodi = (100 * side["negative_flip_rate"].mean for side in (ours, theirs))
    relative = "relative_negative_flip_rate"
    assert f"(NFR {mine:.2f} against {elodi:.2f}; paired p = {chance['negative_flip_rate']:.3f})" in text
    assert (
        f"a relative NFR of {100 * ours[relative].mean:.1f} against {100 * theirs[relative].mean:.1f} "
        f"(p = {chance[relative]:.3f})" in text
    )
    churn = [f"{100 * rows[name]['run_churn'].mean:.1f}" for name in ("twins", "elodi", "none")]
    assert (
        f"differ in {churn[0]} % of the test set where ELODI's differ in {churn[1]} and single networks' in {churn[2]}"
        in text
    )
    assert f"(NLL {ours['nll_new'].mean:.2f} against {theirs['nll_new'].mean:.2f})" in text


TWINS = {"AG News": ("agnews_heirs", "twins"), "CLINC-150": ("clinc_heirs", "twins_mean_4")}


def test_the_page_of_twins_says_what_their_runs_do() -> None:
    page = (ROOT / "docs" / "methods" / "twins.md").read_text()
    for data, (name, row) in TWINS.items():
        rows = {found.name: found for found in read_rows(ROOT / "results" / "bench" / name)}
        ours, elodi, none = (
            f"{100 * rows[each].cells['error_rate_new'].mean:.2f}, "
            f"{100 * rows[each].cells['relative_negative_flip_rate'].mean:.1f}"
            for each in (row, "elodi", "none")
        )
        cost, theirs = (f"{rows[each].training_cost:.1f}" for each in (row, "elodi"))
        line = next(line for line in page.splitlines() if line.startswith(f"| [{data}]"))
        assert line.endswith(f"| {ours} | {cost} | {elodi} for {theirs} | {none} |")
        assert f", {len(rows[row].seeds)} " in line


SHORT = {
    "CIFAR-100": ("cifar100_front", ("none", "elodi", "patient_5", "small_branch")),
    "AG News": ("agnews_heirs", ("none", "elodi", "patient_5", "dealt_branch", "twins_0", "twins")),
    "CLINC-150": ("clinc_heirs", ("none", "elodi", "patient_5", "dealt_branch", "twins_mean_4")),
}


def test_in_short_is_what_the_runs_say() -> None:
    made = []
    for data, (name, rows) in SHORT.items():
        found = {row.name: row for row in read_rows(ROOT / "results" / "bench" / name)}
        made.append([data, str(len(found["elodi"].seeds))])
        for row in rows:
            old, new, flips, relative = (
                100 * found[row].cells[cell].mean
                for cell in ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")
            )
            assert found[row].seeds == found["elodi"].seeds
            cost = f"{found[row].training_cost:.1f}"
            made.append([cost, f"{old:.2f} → {new:.2f}", f"{flips:.2f}", f"{relative:.1f}"])
    told = []
    for line in [line for line in section("In short").splitlines() if line.startswith("|")][2:]:
        first, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        told.append(cells if any(cells) else list(re.findall(r"\[(.+?)\].* (\d) seeds", first)[0]))
    assert told == made
    pulled, alone = (
        {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "agnews_heirs")}[name]
        for name in ("twins", "twins_0")
    )
    gain, chance = [], []
    for cell in ("error_rate_new", "negative_flip_rate"):
        gain.append(f"{100 * (alone[cell].mean - pulled[cell].mean):.2f}")
        chance.append(f"{paired_p(alone[cell].values, pulled[cell].values):.3f}")
    assert f"another {gain[0]} points of error and {gain[1]} of NFR" in section("In short")
    assert f"p = {chance[0]} and {chance[1]})" in section("In short")


HEIR = {"AG News": "agnews_small", "CLINC-150": "clinc_small", "CIFAR-100": "cifar100_front"}


@pytest.mark.parametrize("data", HEIR)
def test_the_heir_s_page_says_what_its_runs_do(data: str) -> None:
    page = (ROOT / "docs" / "methods" / "heir.md").read_text()
    runs = pq.read_table(ROOT / "results" / "bench" / HEIR[data] / "runs.parquet").to_pandas()
    seeds = runs[runs["part"] == "test"].groupby(["row", "seed"]).mean(numeric_only=True)
    mean = seeds.groupby("row").mean()

    def figures(row: str) -> str:
        error, flips = (100 * mean[rate][row] for rate in ("error_rate_new", "relative_negative_flip_rate"))
        return f"{error:.2f}, {flips:.1f}"

    heir, elodi = (f"{mean['training_cost'][row]:.1f}" for row in ("patient_5", "elodi"))
    expected = f"{len(seeds.loc['patient_5'])} | {figures('patient_5')} | {heir} | {figures('elodi')} for {elodi} |"
    assert next(line for line in page.splitlines() if line.startswith(f"| [{data}]")).endswith(
        f"{expected} {figures('none')} |"
    )


def test_how_long_is_long_enough_in_words_is_its_record() -> None:
    text = (ROOT / "results" / "README.md").read_text().split("## How long is long enough\n")[1].split("\n## ")[0]
    runs = pq.read_table(ROOT / "results" / "bench" / "cifar100_schedule" / "runs.parquet").to_pandas()
    runs = runs[runs["part"] == "test"].set_index("row")
    old, new = (100 * runs[f"error_rate_{side}"] for side in ("old", "new"))
    told = [f"{each['epochs_32']:.2f}, {each['epochs_128']:.2f} and {each['epochs_256']:.2f}" for each in (old, new)]
    assert f"the old network {told[0]}, the new one {told[1]}." in text
    gained = new["epochs_32"] - new["epochs_128"]
    assert f"the old\nnetwork is, the new one is not ({gained:.1f})" in text
    assert old["epochs_32"] - old["epochs_128"] < 2 < gained
    relative = 100 * runs["relative_negative_flip_rate"]
    told = [f"{relative[f'epochs_{epochs}']:.1f}" for epochs in (32, 128, 256)]
    assert f"({told[0]}, {told[1]} and {told[2]})" in text
    long = pq.read_table(ROOT / "results" / "bench" / "cifar100_long" / "runs.parquet").to_pandas()
    four = long[(long["part"] == "test") & (long["row"] == "none")]
    assert len(four) == 4
    ends = [100 * four[f"error_rate_{side}"] for side in ("old", "new")]
    left = [end.mean() - each["epochs_256"] for end, each in zip(ends, (old, new), strict=True)]
    assert (
        f"have {ends[0].mean():.2f} and {ends[1].mean():.2f} on average, {left[0]:.2f} and {left[1]:.2f} above" in text
    )
    assert f"(the four new ones lie between {ends[1].min():.1f} and {ends[1].max():.1f})" in text


def test_what_counts_at_64_epochs_is_its_record() -> None:
    heading = "The ways that count at 64 epochs, on CIFAR-100"
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_long")}
    spec = read_bench(ROOT / "recipes" / "bench" / "cifar100_long.yaml")
    text, before = section(heading), {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100")}
    assert f"{len(rows)} of {len(spec.every_row)} rows" in text

    def made(row: Row) -> list[str]:
        old, new, flips, relative, ece = percent(
            row, "error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "ece_new"
        )
        figures = [f"{row.training_cost:.1f}", f"{old:.2f}", f"{new:.2f}", f"{flips:.2f}", f"{relative:.1f}"]
        return [*figures, f"{row.cells['nll_new'].mean:.3f}", f"{ece:.1f}"]

    check_lines("cifar100_long", heading, made)

    def gain(of: Mapping[str, Row]) -> str:
        (plain,), (ours,) = (percent(of[name], "error_rate_new") for name in ("none", "codistill_skl_1"))
        return f"{plain - ours:.1f}"

    churn = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_churn")}
    assert f"it costs {gain(churn).removeprefix('-')} points of error" in text
    assert f"gains {gain(before)} [after 32]" in text
    assert f"and {gain(rows)} here" in text
    (error, flips), (_, was) = (percent(of["none"], "error_rate_new", "negative_flip_rate") for of in (rows, before))
    assert f"NFR {flips:.2f} at {error:.1f} % error, {was:.2f} after 32 epochs" in text
    pairs = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_schedule")}
    longer = {f"{percent(pairs[f'epochs_{epochs}'], 'negative_flip_rate')[0]:.1f}" for epochs in (128, 256)}
    assert f"128 and 256 epochs have {longer.pop()}, one pair each" in text
    assert not longer


def test_growing_images_in_words_are_their_record() -> None:
    runs = pq.read_table(ROOT / "results" / "bench" / "cifar100_growth" / "runs.parquet").to_pandas()
    mean = 100 * runs.groupby(["part", "row"])[["error_rate_new", "negative_flip_rate"]].mean()
    text = section("Growing data on CIFAR-100")

    def changed(part: str, data: str, way: str) -> tuple[float, float]:
        """By how many points the error, and by what share the flips."""
        (error, flips), (plain, were) = (mean.loc[(part, f"{data}_{one}")] for one in (way, "none"))
        return error - plain, 100 * (1 - flips / were)

    error, fewer = changed("test", "samples", "elodi")
    none, ours, ensembles = (mean.loc[("test", f"samples_{way}")] for way in ("none", "elodi", "paragon"))
    flips = "negative_flip_rate"
    assert (
        f"{fewer:.0f} % fewer flips ({none[flips]:.2f} to {ours[flips]:.2f}; the paper "
        f"{100 * (1 - 2.25 / 3.52):.0f} %) at {-error:.1f} points less error; its flips are close to its ensembles' "
        f"({ensembles[flips]:.2f}), its error is {(ours - ensembles)['error_rate_new']:.1f} points above"
    ) in text
    held = [changed("test", "samples", way)[0] for way in ("kd", "fd_kl", "fd_lm", "ldi")]
    assert f"pays for it with {min(held):.1f} to {max(held):.1f} points of error" in text
    error, fewer = changed("test_old_classes", "classes", "elodi")
    cut = changed("test_old_classes", "classes", "paragon")[1]
    assert f"a fifth fewer flips ({fewer:.0f} %) at {-error:.1f} points less error** on the old" in text
    assert f"its ensembles {cut:.0f} %" in text
    held = [changed("test_old_classes", "classes", way)[0] for way in ("kd", "fd_kl", "fd_lm", "ldi")]
    assert f"and cost {min(held):.1f} to {max(held):.1f} points" in text
    assert f"over all classes {changed('test', 'classes', 'naive')[0]:.1f} points more than no treatment" in text


def test_one_seed_of_losses_and_architectures_in_words_is_its_record() -> None:
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_losses")}
    text = section(BESIDE["cifar100_losses"])
    flips, error = (
        {name: 100 * row.cells[cell].mean for name, row in rows.items()}
        for cell in ("negative_flip_rate", "error_rate_new")
    )
    alike = ("kd_4", "kd_100", "fd_lm", "ldi", "ldi_sum", "ldi_p1", "ldi_k10", "ldi_margin", "ldi_others")
    low, high = (f"{end(flips[name] for name in alike):.2f}" for end in (min, max))
    assert f"lie at NFRs of {low} to {high}" in text
    other = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_size")}["m_4"]
    apart = [
        abs(one - two)
        for one, two in zip(
            (error["ldi"], flips["ldi"]), percent(other, "error_rate_new", "negative_flip_rate"), strict=True
        )
    ]
    assert f"by {apart[0]:.2f} points of error and {apart[1]:.2f} of NFR" in text
    assert max(error, key=error.__getitem__) == "ldi_k10_reference"
    assert sorted(error, key=error.__getitem__)[1:3] == ["fd_kl", "fd_lm"]
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "cifar100_architectures")}
    text = section(BESIDE["cifar100_architectures"])
    spec = read_bench(ROOT / "recipes" / "bench" / "cifar100_architectures.yaml")
    assert f"{len(rows)} of {len(spec.every_row)} rows" in text
    for kind in ("resnet34", "vgg"):
        (was, plain), (now, ours) = (
            percent(rows[f"{kind}_{way}"], "negative_flip_rate", "error_rate_new") for way in ("none", "elodi")
        )
        assert f"{100 * (1 - now / was):.0f} % fewer" in text
        assert f"({was:.2f} to {now:.2f};" in text
        assert f"{abs(ours - plain):.1f} points {'less' if ours < plain else 'more'} error" in text


def test_ldi_towards_probabilities_in_words_is_its_record() -> None:
    text, (now, before) = (
        section("LDI towards logits and towards probabilities"),
        (
            {row.name: row for row in read_rows(ROOT / "results" / "bench" / f"cifar100_few_matched{end}")}
            for end in ("", "_before")
        ),
    )
    rows = {
        "no treatment": now["none"],
        "by logits": now["by_logits"],
        "by probabilities": now["by_probabilities"],
        "by probabilities, before": before["by_probabilities"],
    }
    for name, row in rows.items():
        error, flips, relative = percent(row, "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate")
        assert f"| {name} | {error:.2f} | {flips:.2f} | {relative:.1f} |" in text

    def chances(one: Row, other: Row) -> list[float]:
        cells = ("error_rate_new", "negative_flip_rate")
        return [paired_p(one.cells[cell].values, other.cells[cell].values) or 1.0 for cell in cells]

    first, second = chances(before["by_probabilities"], now["by_probabilities"])
    assert f"(paired over three seeds p = {first:.2f} and {second:.3f})" in text
    first, second = chances(now["by_probabilities"], now["by_logits"])
    assert f"(p = {first:.2f} and {second:.2f})" in text


def test_a_fine_tuned_encoder_on_ag_news_in_words_is_its_record() -> None:
    rows = {row.name: row for row in read_rows(ROOT / "results" / "bench" / "agnews_tuned")}
    text = section(BESIDE["agnews_tuned"])
    flips = {name: 100 * row.cells["negative_flip_rate"].mean for name, row in rows.items()}
    fewer, texts = 100 * (1 - flips["elodi"] / flips["none"]), flips["elodi"] * 76
    assert f"({fewer:.0f} %: NFR {flips['none']:.2f} to {flips['elodi']:.2f}, {texts:.0f} texts of 7,600)" in text
    assert f"comes to {flips['elodi_long']:.2f}, about as few as the ensembles of four ({flips['paragon']:.2f})" in text
    assert rows["heir"].seeds == (1,)


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


def test_the_scion_s_page_says_what_its_runs_do() -> None:
    page = (ROOT / "docs" / "methods" / "scion.md").read_text()
    runs = pq.read_table(ROOT / "results" / "bench" / "cifar100_front" / "runs.parquet").to_pandas()
    mean = runs[runs["part"] == "test"].groupby(["row", "seed"]).mean(numeric_only=True).groupby("row").mean()
    flips = 100 * mean["relative_negative_flip_rate"]
    made = []
    for row in ("none", "elodi", "small_branch", "dealt_branch"):
        share = f"{100 * (flips['none'] - flips[row]) / (flips['none'] - flips['elodi']):.0f} %"
        figures = f"{100 * mean['error_rate_new'][row]:.2f} | {flips[row]:.1f} | {'' if row == 'none' else share}"
        made.append(f"{figures} | {mean['training_cost'][row]:.1f} |")
    table = [line for line in page.splitlines() if line.startswith("|")][2:]
    assert [line.split(" | ", 1)[1] for line in table] == made


def test_a_choice_needs_every_seed() -> None:
    done = _choose("100 101 --rows heir_5 heir_branch --at-most 24.4")
    assert done.returncode == 1
    assert done.stderr.endswith("has no validation figures of heir_branch for seed 101.\n")


def _choose(rule: str, name: str = "cifar100_front_search") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "recipes/choose.py", f"results/bench/{name}", "--seeds", *rule.split()]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_what_is_still_to_be_run_can_be(tmp_path: Path) -> None:
    """Each bench that the script asks for is there, and each row and seed is one of its bench."""
    command = ["bash", str(ROOT / "recipes" / "evidence.sh"), "DATA", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHON": "echo"})
    asked = [line.split()[3:] for line in done.stdout.splitlines()]
    names = {name for name, *_ in asked}
    assert {"cifar100_ways", "cifar100_corrupted", "cifar100_architectures", "clinc", "agnews_tuned"} <= names
    specs = {name: read_bench(ROOT / "recipes" / "bench" / f"{name}.yaml") for name in names}
    for name, *options in asked:
        given = [(option, value) for option, value in pairwise(options) if option in ("--row", "--seed")]
        assert "--seed" in dict(given)
        for option, value in given:
            assert value in (specs[name].every_row if option == "--row" else map(str, specs[name].seeds)), name


def test_loading_in_words_is_its_record() -> None:
    record = json.loads((ROOT / "results" / "loading.json").read_text())
    one, eight, sixteen = (f"{record['decoded_per_second'][workers]:,.0f}" for workers in ("1", "8", "16"))
    trained, share = record["trained_per_second"], record["decoded_per_second"]["16"] / record["trained_per_second"]
    benchmarks, scale = ((ROOT / page).read_text() for page in ("benchmarks/README.md", "docs/imagenet-scale.md"))
    assert f"{one}, {eight} and {sixteen} images a second with 1, 8 and 16 workers, and {trained:,.0f} in" in benchmarks
    assert f"16 workers come to {share:.2f} of it" in benchmarks
    assert (
        f"decoded {sixteen} images a second, and ResNet-50 took {trained:,.0f} in training steps: {share:.2f} of"
        in scale
    )


def test_a_fed_card_in_words_is_its_record() -> None:
    benchmarks, scale = ((ROOT / page).read_text() for page in ("benchmarks/README.md", "docs/imagenet-scale.md"))
    shares = []
    for run in json.loads((ROOT / "results" / "loading_fed.json").read_text()):
        steps = run["trained_per_second"]
        for images in (run, run["packed"]):
            [(workers, fed)] = images["trained_while_decoding"].items()
            decoded = images["decoded_per_second"][workers]
            core = images["decoded_per_core_second"]
            shares.append((workers, f"{fed / steps:.2f}", f"{decoded / steps:.2f}"))
            assert f"| {core:.0f} | {decoded:,.0f} | {steps:,.0f} | {fed:,.0f} | {fed / steps:.2f} |" in benchmarks
    assert [workers for workers, _, _ in shares] == ["16", "16", "15", "15"]
    sixteen, small, fifteen, smaller = (share for _, share, _ in shares)
    assert f"trained at {sixteen} of its rate on images that are already there, with 15 at {fifteen}" in scale
    assert f"it was {small} with 16 workers; from 256 pixels {smaller} with 15" in scale
    assert f"decode {shares[3][2]} times as fast as the card takes them" in scale


def test_what_the_search_s_networks_did_on_the_test_set_is_its_record() -> None:
    text = (ROOT / "results" / "README.md").read_text().split("## What branches give on five seeds")[1].split("## ")[0]
    record = json.loads((ROOT / "results" / "graft_search.json").read_text())["test"]["rows"]
    elodi, long, averaged, graft = (100 * row["relative_negative_flip_rate"] for row in record)
    assert f"({long:.1f} and {averaged:.1f} against {elodi:.1f} on the test set)" in text
    assert f"on the test set that same network has {graft:.1f}" in text
    more = sorted(100 * (row["error_rate_new"] - record[0]["error_rate_new"]) for row in record[1:3])
    assert f"with {more[0]:.1f} to {more[1]:.1f} points more error" in text


PAIRS = {
    "agnews_focal": ("## Focal distillation's weights on AG News", (3, 4), "relative_negative_flip_rate", 1),
    "agnews_growth": ("## Growing data on AG News", (2, 3), "negative_flip_rate", 2),
    "cifar100_growth": ("## Growing data on CIFAR-100", (2, 3), "negative_flip_rate", 2),
    "clinc_tuned_growth": ("## Growing data with fine-tuning, MiniLM", (2, 3, 4), "negative_flip_rate", 2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_our_columns_beside_the_papers_are_our_runs(name: str) -> None:
    """Each pair of an error and a flip rate is that of one row of the bench."""
    heading, columns, rate, digits = PAIRS[name]
    text = (ROOT / "results" / "README.md").read_text().split(heading)[1].split("## ")[0]
    runs = pq.read_table(ROOT / "results" / "bench" / name / "runs.parquet").to_pandas()
    mean = runs[runs["part"].str.startswith("test")].groupby(["part", "row", "seed"]).mean(numeric_only=True)
    mean = 100 * mean.groupby(["part", "row"]).mean()[["error_rate_new", rate]]
    made = {f"{error:.2f}, {flips:.{digits}f}" for error, flips in mean.to_numpy()}
    rows = [line.split("|") for line in text.splitlines() if line.startswith("|")][2:]
    said = [row[column].strip() for row in rows for column in columns]
    assert len([cell for cell in said if cell]) >= 8
    assert {cell for cell in said if cell} <= made


def test_growth_with_fine_tuning_in_words_is_its_runs() -> None:
    rows = {row.name: row.cells for row in read_rows(ROOT / "results" / "bench" / "clinc_tuned_growth")}
    text, rate = section("Growing data with fine-tuning, MiniLM"), "negative_flip_rate"

    def cut(data: str, way: str) -> str:
        plain, ours = (rows[f"{data}_{name}"][rate].mean for name in ("none", way))
        return f"{100 * (1 - ours / plain):.0f}"

    def p(data: str, way: str, digits: int = 2) -> str:
        chance = paired_p(rows[f"{data}_{way}"][rate].values, rows[f"{data}_none"][rate].values) or 1.0
        return f"{chance:.{digits}f}"

    chance = f"paired p = {p('full', 'elodi')} and {p('samples', 'elodi')}, unadjusted"
    assert (
        f"ELODI has {cut('full', 'elodi')} % fewer flips than no treatment, and {cut('samples', 'elodi')} % when "
        f"samples double ({chance}; the paper: 48 and 62 %), the "
        f"ensembles {cut('full', 'paragon')} and {cut('samples', 'paragon')} %. Focal distillation has "
        f"{cut('full', 'fd_kl')} and {cut('samples', 'fd_kl')} % fewer (p = {p('full', 'fd_kl', 3)} and "
        f"{p('samples', 'fd_kl')})"
    ) in text
    assert (
        f"the ensembles cut a fifth ({cut('classes', 'paragon')} %), focal distillation {cut('classes', 'fd_kl')} % "
        f"(p = {p('classes', 'fd_kl')}), and ELODI nothing"
    ) in text
    assert abs(float(cut("classes", "elodi"))) < 2
    tuned = read_table(ROOT / "results" / "bench" / "clinc_tuned", "predictions.parquet")
    grown = read_table(ROOT / "results" / "bench" / "clinc_tuned_growth", "predictions.parquet")
    for seed in (2, 3):
        for side in ("old", "new"):
            ours, theirs = (
                t[c] for t, c in ((grown, f"full_elodi.{seed}.0.{side}"), (tuned, f"elodi.{seed}.0.{side}"))
            )
            assert ours.to_pylist() == theirs.to_pylist()


def test_the_state_of_the_papers_tables_is_what_is_here() -> None:
    """What is said to be measured has its record and links to it; what is still to be run has a spec and no record."""
    text = (ROOT / "results" / "README.md").read_text().split("## The papers' tables, and where ours stand")[1]
    rows = [line.split("|") for line in text.split("\n## ")[0].splitlines() if line.startswith("|")][2:]
    assert len(rows) >= 15
    for _, table, measured, open_, _ in rows:
        for name, target in re.findall(r"\[(\w+)\]\(bench/(\w+)/table\.md\)", measured):
            assert name == target
            assert (ROOT / "results" / "bench" / target / "runs.parquet").exists(), (table, target)
        for name in re.findall(r"`(\w+)`", open_):
            assert (ROOT / "recipes" / "bench" / f"{name}.yaml").exists(), (table, name)
            assert "the rest of" in open_ or not (ROOT / "results" / "bench" / name).exists(), (table, name)


@pytest.mark.parametrize("name", ["cifar100", "clinc_methods"])
def test_how_many_rows_are_measured_is_what_is_here(name: str) -> None:
    spec = read_bench(ROOT / "recipes" / "bench" / f"{name}.yaml", [])
    rows = len(read_rows(ROOT / "results" / "bench" / name))
    text = (ROOT / "results" / "README.md").read_text()
    assert f"[{name}](bench/{name}/table.md) ({rows} of {len(spec.every_row)} rows" in text


BENCHES = sorted(path.parent for path in (ROOT / "results" / "bench").glob("*/runs.parquet"))


def test_the_benches_are_there() -> None:
    assert "digits" in {path.name for path in BENCHES}


@pytest.mark.parametrize("folder", BENCHES, ids=lambda folder: folder.name)
def test_a_bench_s_tables_are_made_from_its_two_files(folder: Path, tmp_path: Path) -> None:
    for name in ("runs.parquet", "predictions.parquet"):
        shutil.copy(folder / name, tmp_path)
    write_tables(tmp_path)
    assert (tmp_path / "table.md").read_text() == (folder / "table.md").read_text()


@pytest.mark.parametrize("folder", BENCHES, ids=lambda folder: folder.name)
def test_a_bench_s_runs_are_what_its_models_said(folder: Path) -> None:
    """Each rate of each run, from the predictions themselves."""
    said = pq.read_table(folder / "predictions.parquet").to_pandas()
    label = said["label"].to_numpy()
    runs = [run for run in pq.read_table(folder / "runs.parquet").to_pylist() if run["part"] == "test"]
    assert runs
    for run in runs:
        old, new = (said[f"{run['row']}.{run['seed']}.{run['pair']}.{side}"].to_numpy() for side in ("old", "new"))
        wrong_old, wrong_new = np.mean(old != label), np.mean(new != label)
        flipped = np.mean((old == label) & (new != label))
        assert run["error_rate_old"] == pytest.approx(wrong_old)
        assert run["error_rate_new"] == pytest.approx(wrong_new)
        assert run["negative_flip_rate"] == pytest.approx(flipped)
        assert run["relative_negative_flip_rate"] == pytest.approx(flipped / ((1 - wrong_old) * wrong_new))
        assert run["churn"] == pytest.approx(np.mean(old != new))


def test_the_figures_in_words_are_the_tables() -> None:
    """Each mean in the summary of results/README.md stands in the test half of its table."""
    words = (ROOT / "results" / "README.md").read_text()
    table = (ROOT / "results" / "elodi_cifar100_long.md").read_text().split("## Test")[1]
    summary = words.split("| on the test set |")[1].split("What it shows")[0]
    rows = [line for line in summary.splitlines()[2:] if line.startswith("|")]
    found = [[cell.split() for cell in row.split("|")[2:5]] for row in rows]
    assert len(found) == 10
    for figures in found:
        means = [figure[0] for figure in figures]
        assert any(all(f"| {mean} " in line for mean in means) for line in table.splitlines()), figures


def test_the_figures_of_members_in_words_are_the_records() -> None:
    """Rows of the table in benchmarks/README.md: ours, the plain loop, and their ratio."""
    jobs = json.loads((ROOT / "results" / "members.json").read_text())["jobs"]
    update = json.loads((ROOT / "results" / "update.json").read_text())
    wide, small = jobs["resnet18_w32_b512"], jobs["resnet18_w32_b128"]
    larger, teachers = jobs["resnet18_w64_b512"], wide["teachers_8"]
    whole = sum(run["seconds"]["all"] for run in update["captured"]) / len(update["captured"])
    pairs = [
        (wide["paired_8"]["ms"], wide["plain_1"]["ms"]),
        (small["paired_8"]["ms"], small["plain_1"]["ms"]),
        (larger["captured_8"]["ms"], larger["plain_1"]["ms"]),
        (teachers["quick_ms"], teachers["plain_ms"]),
        (wide["student_captured_8"]["ms"], wide["student_plain_8"]["ms"]),
        (whole, update["plain"]["seconds"]["all"]),
    ]
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    table = page[page.index("| job | wanted | ours |") :].split("\n\n")[0].splitlines()[2:]
    found = [[float(row.split("|")[column]) for column in (3, 5, 6)] for row in table]
    rounded = [[round(ours, 1 if ours > 10 else 2), round(plain, 1 if plain < 100 else 0)] for ours, plain in pairs]
    assert [row[:2] for row in found] == rounded
    assert [row[2] for row in found] == [round(plain / ours, 1) for ours, plain in pairs]
    assert len(update["captured"]) == len(wide["paired_8"]["runs"]) == len(teachers["runs"]) == 3
