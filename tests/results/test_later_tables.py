"""The papers' later tables beside ours: growth, chains, losses, architectures, focal distillation's weights."""

import pyarrow.parquet as pq
import pytest
from held import ROOT, check_lines, percent, rows_of, section, told

from flipguard.bench.read import read_bench
from flipguard.bench.tables import Row, paired_p

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
    rows = {row.name: row.cells for row in rows_of("digits_architectures")}
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
    rows = {row.name: row for row in rows_of("cifar100_losses")}
    text = section(BESIDE["cifar100_losses"])
    flips, error = (
        {name: 100 * row.cells[cell].mean for name, row in rows.items()}
        for cell in ("negative_flip_rate", "error_rate_new")
    )
    alike = ("kd_4", "kd_100", "fd_lm", "ldi", "ldi_sum", "ldi_p1", "ldi_k10", "ldi_margin", "ldi_others")
    low, high = (f"{end(flips[name] for name in alike):.2f}" for end in (min, max))
    assert f"lie at NFRs of {low} to {high}" in text
    other = {row.name: row for row in rows_of("cifar100_size")}["m_4"]
    apart = [
        abs(one - two)
        for one, two in zip(
            (error["ldi"], flips["ldi"]), percent(other, "error_rate_new", "negative_flip_rate"), strict=True
        )
    ]
    assert f"by {apart[0]:.2f} points of error and {apart[1]:.2f} of NFR" in text
    assert max(error, key=error.__getitem__) == "ldi_k10_reference"
    assert sorted(error, key=error.__getitem__)[1:3] == ["fd_kl", "fd_lm"]
    rows = {row.name: row for row in rows_of("cifar100_architectures")}
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
        ({row.name: row for row in rows_of(f"cifar100_few_matched{end}")} for end in ("", "_before")),
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
