"""ELODI's Table 1 in words is its runs, co-distillation among them."""

import re
from collections.abc import Mapping

import pyarrow.parquet as pq
from held import ROOT, after_plain_models, check_lines, percent, rows_of, section

from flipguard.bench.tables import Row, paired_p, read_table


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


def test_the_other_rows_on_clinc_are_their_runs() -> None:
    rows = {row.name: row for row in rows_of("clinc_methods")}
    text = section("ELODI's Table 1 on CLINC-150, with small transformers")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    said = {name.strip("`"): cells for name, *cells in lines if len(cells) == 7}
    both = {name.strip("`") for name, *cells in lines if len(cells) == 2}
    assert list(said) == [name for name in rows if name in said]
    for name, cells in said.items():
        row = rows[name]
        error, flips, churn, ece = percent(row, "error_rate_new", "relative_negative_flip_rate", "run_churn", "ece_new")
        nll, scaled = (row.cells[cell].mean for cell in ("nll_new", "cnll_new"))
        made = [f"{error:.2f}", f"{flips:.1f}", f"{churn:.2f}", f"{nll:.3f}", f"{ece:.1f}", f"{scaled:.3f}"]
        assert cells == [*made, f"{row.training_cost:.1f}"], name
    later = {*said} - {"none", "elodi", "paragon_4", "paragon_8"}
    assert {*rows} - later >= both
    assert f"{len(rows)} rows, " in text
    assert f"{len(later)} rows, those of the second table but for `none`, `elodi` and the ensembles" in text
    models = read_table(ROOT / "results" / "bench" / "clinc_methods", "predictions.parquet").to_pandas()
    for seed in (1, 2, 3):
        assert (models[f"graft.{seed}.0.old"] == models[f"kd.{seed}.0.old"]).all()


def test_the_other_rows_on_clinc_in_words_are_their_runs() -> None:
    rows = {row.name: row for row in rows_of("clinc_methods")}
    text = section("ELODI's Table 1 on CLINC-150, with small transformers")
    error, flips, churn, ece = (
        {name: percent(row, cell)[0] for name, row in rows.items()}
        for cell in ("error_rate_new", "relative_negative_flip_rate", "run_churn", "ece_new")
    )

    def span(figures: Mapping[str, float], names: tuple[str, ...], digits: int = 1) -> str:
        return f"{min(figures[name] for name in names):.{digits}f} to {max(figures[name] for name in names):.{digits}f}"

    def p(cell: str, one: str, other: str) -> str:
        chance = paired_p(rows[one].cells[cell].values, rows[other].cells[cell].values) or 1.0
        return f"{chance:.3f}" if chance < 0.01 else f"{chance:.2f}"

    eight, four = ("elodi", "elodi_k10", "ensemble_kd", "ensemble_fd"), ("kd_4", "ae_kd", "latent_be")
    assert (
        f"a network has {span(error, eight)} % error and a relative NFR of {span(flips, eight)}; held to four, by "
        f"plain, adaptive (AE-KD) or latent distillation, {span(error, four)} and {span(flips, four)}; held to two "
        f"{error['ensemble_kd_2']:.1f} and {flips['ensemble_kd_2']:.1f}."
    ) in text
    focal = "ensemble_fd"
    assert (
        f"level with ELODI ({error[focal]:.2f} and {error['elodi']:.2f}, {flips[focal]:.1f} and {flips['elodi']:.1f}), "
        f"the ten highest logits alone have {error['elodi_k10'] - error['elodi']:.1f} points more error "
        f"(p = {p('error_rate_new', 'elodi_k10', 'elodi')})"
    ) in text
    assert f"the exception ({error['proxy_end2']:.1f} and {flips['proxy_end2']:.1f})" in text
    pair = ("latent_be", "kd_4")
    nll, scaled = ([rows[name].cells[cell].mean for name in pair] for cell in ("nll_new", "cnll_new"))
    costs = [rows[name].training_cost for name in pair]
    assert (
        f"({error[pair[0]]:.2f} and {error[pair[1]]:.2f}, {flips[pair[0]]:.1f} and {flips[pair[1]]:.1f}; "
        f"p = {p('error_rate_new', *pair)} and {p('relative_negative_flip_rate', *pair)}), a higher NLL ({nll[0]:.3f} "
        f"and {nll[1]:.3f}, p = {p('nll_new', *pair)}) and ECE ({ece[pair[0]]:.1f} and {ece[pair[1]]:.1f}, "
        f"p = {p('ece_new', *pair)}), of which temperature scaling takes most (cNLL {scaled[0]:.3f} and "
        f"{scaled[1]:.3f}, p = {p('cnll_new', *pair)}), for {costs[0]:.1f} trainings instead of {costs[1]:.1f}."
    ) in text
    assert min(ece, key=ece.__getitem__) == "batch_ensemble"
    assert f"the lowest ECE of all ({ece['batch_ensemble']:.1f})" in text
    shares = [churn[f"codistill_{name}"] / churn["none"] for name in ("l1", "ce", "skl_entropy")]
    assert (
        f"two runs of `codistill_l1` differ {shares[0]:.2f} times as often as two of `none`, of `codistill_ce` "
        f"{shares[1]:.2f}, with the entropy's weight {shares[2]:.2f} times."
    ) in text
    assert f"has {error['graft']:.2f} and {flips['graft']:.1f} for {rows['graft'].training_cost:.1f} trainings" in text
    chances = [p(cell, "graft", "kd") for cell in ("error_rate_new", "relative_negative_flip_rate")]
    assert (
        f"`kd` has {error['kd']:.2f} and {flips['kd']:.1f} for {rows['kd'].training_cost:.1f}, and three seeds do not "
        f"tell them apart (p = {chances[0]} and {chances[1]})"
    ) in text
    assert min((name for name in rows if rows[name].inference_cost == 1), key=error.__getitem__) == "elodi"
    targeted = ("naive", "kd", "fd_kl", "fd_kl_1", "fd_lm", "ldi", "bct", "ract", "bu_cr", "graft")
    assert f"(no treatment {error['none']:.2f}, every targeted method {span(error, targeted)})" in text
    gained = [f"{error[name]:.2f} at {flips[name]:.1f}" for name in ("kd", "graft")]
    assert f"only `kd` and `graft` gain accuracy worth the name ({gained[0]}, {gained[1]});" in text


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
    rows = {row.name: row for row in rows_of("cifar100")}
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
    rows = {row.name: row.cells for row in rows_of("cifar100")}
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
    mixed = after_plain_models("cifar100", "codistill_skl_1", (1, 2, 3))
    assert f"it is {100 * mixed:.1f}, {100 * (first - mixed) / (first - third):.0f} % of the cut" in text


def test_co_distillation_on_clinc_in_words_is_its_runs() -> None:
    rows = {row.name: row.cells for row in rows_of("clinc_small")}
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
