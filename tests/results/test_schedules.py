"""What results/README.md says of longer schedules on CIFAR-100, beside the records."""

from collections.abc import Mapping

import numpy as np
import pyarrow.parquet as pq
import pytest
from held import ROOT, after_plain_models, check_lines, percent, rows_of, section

from flipguard.bench.read import read_bench
from flipguard.bench.tables import Row, paired_p, read_table

LONG = "The ways that count at 64 epochs, on CIFAR-100"
ERROR, FLIPS, RELATIVE = "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate"


def rows_by_name(bench: str) -> dict[str, Row]:
    return {row.name: row for row in rows_of(bench)}


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return rows_by_name("cifar100_long")


@pytest.fixture(scope="module")
def before() -> dict[str, Row]:
    return rows_by_name("cifar100")


def mean(row: Row, figure: str, digits: int = 2) -> str:
    return f"{percent(row, figure)[0]:.{digits}f}"


def chance(one: Row, other: Row, figure: str) -> str:
    p = paired_p(one.cells[figure].values, other.cells[figure].values)
    assert p is not None
    return f"{p:.3f}" if p < 0.01 else f"{p:.2f}"


def every_seed(one: Row, other: Row, figure: str) -> bool:
    """Whether one is below the other in each seed that both have."""
    ours, theirs = (row.cells[figure].values for row in (one, other))
    return all(ours[seed] < theirs[seed] for seed in {*ours} & {*theirs})


def listed(figures: list[str]) -> str:
    return f"{', '.join(figures[:-1])} and {figures[-1]}"


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
    twelve = long[(long["part"] == "test") & (long["row"] == "none")]
    assert len(twelve) == 12
    ends = [100 * twelve[f"error_rate_{side}"] for side in ("old", "new")]
    left = [end.mean() - each["epochs_256"] for end, each in zip(ends, (old, new), strict=True)]
    assert (
        f"have {ends[0].mean():.2f} and {ends[1].mean():.2f} on average, {left[0]:.2f} and {left[1]:.2f} above" in text
    )
    assert f"(the twelve new ones lie between {ends[1].min():.1f} and {ends[1].max():.1f})" in text


def test_how_long_is_long_enough_elsewhere_is_its_record() -> None:
    text = section("How long is long enough")
    names = (("CLINC-150", "clinc_schedule"), ("digits", "digits_schedule"))
    measured = {data: rows_of(name) for data, name in names}
    made = []
    for data, pair in measured.items():
        for row, what in zip(pair, ("as in its tables", "four times as many"), strict=True):
            errors = f"{mean(row, 'error_rate_old')} | {mean(row, ERROR)} | {mean(row, RELATIVE, 1)}"
            made.append(f"| {data}, {what} | {row.name.removeprefix('epochs_')} | {errors} | {len(row.seeds)} |")
    assert [line for line in text.splitlines() if line.startswith(("| CLINC-150", "| digits"))] == made

    def apart(data: str, figure: str) -> float:
        short, long = measured[data]
        return percent(long, figure)[0] - percent(short, figure)[0]

    plain = read_bench(ROOT / "recipes" / "bench" / "clinc_methods.yaml").train.epochs
    assert [row.name for row in measured["CLINC-150"]] == [f"epochs_{plain}", f"epochs_{4 * plain}"]
    old, new = (
        f"{apart('CLINC-150', figure):.2f}{points}, {word}p = {chance(*measured['CLINC-150'], figure)}"
        for figure, points, word in (("error_rate_old", " points", "paired "), (ERROR, "", ""))
    )
    nll = [f"{row.cells['nll_new'].mean:.3f}" for row in measured["CLINC-150"]]
    assert (
        f"of the old network ({old}) and of the new one ({new}), and its NLL rises from {nll[0]} to {nll[1]}." in text
    )
    assert min(apart("CLINC-150", figure) for figure in ("error_rate_old", ERROR)) > 0
    left = [-apart("digits", figure) for figure in (ERROR, "error_rate_old")]
    assert f"within two points of it ({left[0]:.2f} above), the old one by a hair not ({left[1]:.2f})." in text
    assert left[0] < 2 < left[1]


def test_what_counts_at_64_epochs_is_its_record(rows: dict[str, Row], before: dict[str, Row]) -> None:
    spec = read_bench(ROOT / "recipes" / "bench" / "cifar100_long.yaml")
    text = section(LONG)
    assert f"{len(rows)} of {len(spec.every_row)} rows" in text

    def made(row: Row) -> list[str]:
        rates = ("error_rate_old", "error_rate_new", "negative_flip_rate", "relative_negative_flip_rate", "run_churn")
        old, new, flips, relative, churn, ece = percent(row, *rates, "ece_new")
        figures = [f"{row.training_cost:.1f}", f"{old:.2f}", f"{new:.2f}", f"{flips:.2f}", f"{relative:.1f}"]
        return [*figures, f"{churn:.1f}", f"{row.cells['nll_new'].mean:.3f}", f"{ece:.1f}", str(len(row.seeds))]

    check_lines("cifar100_long", LONG, made)
    assert f"three seeds, but for `elodi_8`, which has {'two' if rows['elodi_8'].seeds == (1, 2) else 'more'}**" in text
    assert {row.seeds for row in rows.values() if row.name != "elodi_8"} == {(1, 2, 3)}

    def gain(of: Mapping[str, Row]) -> str:
        (plain,), (ours,) = (percent(of[name], "error_rate_new") for name in ("none", "codistill_skl_1"))
        return f"{plain - ours:.1f}"

    churn = rows_by_name("cifar100_churn")
    assert f"it costs {gain(churn).removeprefix('-')} points of error" in text
    assert f"gains {gain(before)} [after 32]" in text
    assert f"and {gain(rows)} here" in text
    (error, flips), (_, was) = (percent(of["none"], "error_rate_new", "negative_flip_rate") for of in (rows, before))
    assert f"NFR {flips:.2f} at {error:.1f} % error, {was:.2f} after 32 epochs" in text
    pairs = rows_by_name("cifar100_schedule")
    longer = {f"{percent(pairs[f'epochs_{epochs}'], 'negative_flip_rate')[0]:.1f}" for epochs in (128, 256)}
    assert f"128 and 256 epochs have {longer.pop()}, one pair each" in text
    assert not longer


def test_elodi_beside_what_is_held_to_the_old_model_is_the_record(rows: dict[str, Row]) -> None:
    text, four, eight, held = section(LONG), rows["elodi"], rows["elodi_8"], ("kd", "fd_kl", "fd_lm")
    errors = listed([f"`{name}` {mean(rows[name], ERROR)}" for name in held])
    told = listed([chance(rows[name], four, ERROR) for name in held])
    assert f"error {mean(four, ERROR)}; {errors} (p = {told})" in text
    flips = listed([mean(rows[name], FLIPS) for name in held])
    told = listed([chance(rows[name], four, FLIPS) for name in held])
    assert f"NFR {mean(four, FLIPS)}; theirs {flips} (p = {told})" in text
    margin = rows["fd_lm"]
    both = f"{mean(margin, RELATIVE, 1)} and {mean(four, RELATIVE, 1)}, p = {chance(margin, four, RELATIVE)}"
    assert f"in relative NFR `fd_lm` is ahead ({both})" in text

    assert f"From eight it has {mean(eight, ERROR)} and an NFR of {mean(eight, FLIPS)} over two seeds" in text
    assert all(every_seed(eight, rows[name], figure) for name in held for figure in (ERROR, FLIPS))
    of_errors, of_flips = (listed([chance(rows[name], eight, figure) for name in held]) for figure in (ERROR, FLIPS))
    assert f"(in error p = {of_errors}, in NFR {of_flips}, of two seeds)" in text
    both = f"{mean(margin, RELATIVE, 1)} and {mean(eight, RELATIVE, 1)}, p = {chance(margin, eight, RELATIVE)}"
    assert f"`fd_lm` is ahead of it in both ({both})" in text
    assert every_seed(margin, eight, RELATIVE)


def test_four_members_beside_eight_is_the_record(rows: dict[str, Row], before: dict[str, Row]) -> None:
    text = section(LONG)

    def shares(of: Mapping[str, Row], name: str) -> dict[int, float]:
        ours, plain = (of[each].cells[RELATIVE].values for each in (name, "none"))
        return {seed: ours[seed] / plain[seed] for seed in ours}

    def share(of: Mapping[str, Row], name: str) -> str:
        found = [of[each].cells[RELATIVE].values for each in (name, "none")]
        ours, plain = (np.mean([values[seed] for seed in found[0]]) for values in found)
        return f"{ours / plain:.2f}"

    four, eight, short = share(rows, "elodi"), share(rows, "elodi_8"), share(before, "elodi")
    between = [f"{bound(shares(before, 'elodi').values()):.2f}" for bound in (min, max)]
    told = f"from eight {eight} times (two seeds), and from eight after 32 epochs {short} times"
    assert (
        f"ELODI from four leaves {four} times the relative NFR of no treatment, {told} ({' to '.join(between)})" in text
    )
    cuts = [
        f"{100 * (1 - float(np.mean([*shares(of, name).values()]))):.0f} %"
        for of, name in ((before, "elodi"), (rows, "elodi_8"))
    ]
    assert f"some of its cut, {cuts[0]} after 32 epochs and {cuts[1]} here" in text

    def after(bench: str, name: str, seeds: tuple[int, ...] = (1, 2, 3)) -> str:
        ours, plain = (after_plain_models(bench, each, seeds) for each in (name, "none"))
        return f"{ours / plain:.2f}"

    was, now = after("cifar100", "elodi"), after("cifar100_long", "elodi_8", (1, 2))
    assert f"students of eight leave {was} times after 32 epochs and {now} times here (ELODI's)" in text
    was, now = (after(bench, "kd_4") for bench in ("cifar100", "cifar100_long"))
    ends = [mean(of["kd_4"], ERROR) for of in (before, rows)]
    assert f"students of four {was} and {now} times (`kd_4`, at {ends[0]} and {ends[1]} % error)" in text
    ensembles = [
        f"{share(before, f'paragon_{m}')} and {share(rows, f'paragon_{m}')} times of {word}"
        for m, word in ((8, "eight"), (4, "four"), (2, "two"))
    ]
    assert f"on both sides, leave {', '.join(ensembles)}." in text


def test_scion_at_64_epochs_is_the_record(rows: dict[str, Row]) -> None:
    text, scion, elodi, many = section(LONG), rows["scion"], rows["elodi"], rows["paragon_4"]
    for figure in (FLIPS, RELATIVE):
        single = [row for row in rows.values() if row.inference_cost < 1.5]
        assert min(single, key=lambda row: row.cells[figure].mean) is scion
    costs = [f"{row.training_cost:.1f}" for row in (scion, elodi)]
    told = [chance(scion, elodi, figure) for figure in (ERROR, FLIPS, RELATIVE)]
    assert f"an error of {mean(scion, ERROR)}, with the lowest NFR" in text
    assert f"for {costs[0]} trainings. Beside ELODI from four, for {costs[1]}: error p = {told[0]}, " in text
    assert f"NFR p = {told[1]}, relative NFR p = {told[2]}." in text
    both = f"{mean(scion, FLIPS)} and {mean(many, FLIPS)}, p = {chance(scion, many, FLIPS)}"
    ends = [percent(row, "error_rate_old")[0] for row in (scion, many)]
    assert f"({both}), whose old side is {ends[0] - ends[1]:.1f} points better" in text
    single = [row for row in rows.values() if row.inference_cost < 1.5]
    better = [row.name for row in single if row.cells[ERROR].mean < scion.cells[ERROR].mean]
    assert sorted(better) == ["elodi_8", "kd_4"]
    told = f"`kd_4` ({mean(rows['kd_4'], ERROR)}, p = {chance(scion, rows['kd_4'], ERROR)}) and `elodi_8`"
    assert f"Of single networks {told} have less error." in text

    eight = rows["elodi_8"]
    both = f"{mean(scion, RELATIVE, 1)} and {mean(eight, RELATIVE, 1)}"
    assert f"for {eight.training_cost:.1f} trainings, `scion` from four has more than its cut and not its" in text
    assert f"relative NFR {both}, lower in both seeds that both have (p = {chance(scion, eight, RELATIVE)})" in text
    assert every_seed(scion, eight, RELATIVE)
    ours, theirs = (row.cells[ERROR].values for row in (scion, eight))
    apart = 100 * np.mean([ours[seed] - theirs[seed] for seed in theirs])
    told = f"{apart:.2f} points more error on these two ({mean(eight, ERROR)}; p = {chance(scion, eight, ERROR)})"
    assert told in text

    short = section("In short")
    flips, errors = (
        f"{mean(scion, figure, digits)} and {mean(elodi, figure, digits)}"
        for figure, digits in ((RELATIVE, 1), (ERROR, 2))
    )
    assert f"(relative NFR {flips}) at an error that is not told apart ({errors}), " in short
    least = (
        f"ELODI from eight, two seeds, has less error than either ({mean(eight, ERROR)}, at {mean(eight, RELATIVE, 1)})"
    )
    assert f"for {costs[0]} trainings instead of {costs[1]}; {least}." in short


def test_co_distillation_at_64_epochs_is_the_record(rows: dict[str, Row]) -> None:
    text, ours, plain = section(LONG), rows["codistill_skl_1"], rows["none"]
    told = chance(ours, plain, ERROR)
    assert f"({mean(ours, ERROR)}, no treatment {mean(plain, ERROR)}, p = {told})" in text
    assert f"(NFR {mean(ours, FLIPS)} and {mean(plain, FLIPS)})" in text
    single = [row for row in rows.values() if row.inference_cost < 1.5]
    for figure in ("nll_new", "ece_new"):
        assert min(single, key=lambda row: row.cells[figure].mean) is ours
    differ = [row.cells["run_churn"].mean for row in (ours, plain)]
    assert f"Two runs differ {differ[0] / differ[1]:.2f} times as often as two of `none` (below 0.75" in text
    assert differ[0] < 0.75 * differ[1]
    gained = percent(plain, ERROR)[0] - percent(ours, ERROR)[0]
    link = "[after 64 epochs](#the-ways-that-count-at-64-epochs-on-cifar-100)"
    assert f"{link} {gained:.1f} points" in section("In short")


def test_rows_of_several_calls_share_their_old_networks() -> None:
    said = read_table(ROOT / "results" / "bench" / "cifar100_long", "predictions.parquet")
    for seed in (1, 2, 3):
        plain = said[f"none.{seed}.0.old"]
        for row in ("kd", "fd_kl", "fd_lm", "kd_4"):
            assert said[f"{row}.{seed}.0.old"].equals(plain), (row, seed)
        assert said[f"scion.{seed}.0.old"].equals(said[f"elodi.{seed}.0.old"]), seed
