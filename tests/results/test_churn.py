"""What makes two runs agree or differ, in words, is what the runs did."""

import pytest
from held import check_lines, percent, rows_of, section, told

from flipguard.bench.tables import Row

CHURN = {
    "agnews_churn": "What makes two runs agree on AG News",
    "agnews_causes": "What makes two runs differ on AG News",
}


@pytest.mark.parametrize("name", CHURN)
def test_the_table_of_churn_is_its_runs(name: str) -> None:
    rows = rows_of(name)
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
    none = rows_of(name)[0].cells["churn"].mean

    def made(row: Row) -> list[str]:
        churn, error, flips, ece = percent(row, "churn", "error_rate_new", "relative_negative_flip_rate", "ece_new")
        return [f"{churn:.2f}", f"{churn / (100 * none):.2f}", f"{error:.2f}", f"{flips:.1f}", f"{ece:.1f}"]

    check_lines(name, ONE_PAIR[name], made)


HELD = (("initialisation", "order"), ("initialisation", "augmentation"), ("order", "augmentation"))


def test_what_is_held_in_words_is_its_record() -> None:
    churn = {row.name: row.cells["churn"].mean for row in rows_of("cifar100_causes")}
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
    error = {row.name: 100 * row.cells["error_rate_new"].mean for row in rows_of("cifar100_causes")}
    costs = [error[f"{ours}{end}"] - error[f"none{end}"] for end in ("", "_0")]
    assert f"it costs {costs[0]:.1f} and {costs[1]:.1f} points of error" in text
    assert f"({100 * churn[f'{ours}_initialisation']:.2f} and {100 * churn[ours]:.2f})" in text
