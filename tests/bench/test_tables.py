"""What a table says of its rows: the best, who is not shown to be worse, and who is on the front."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flipguard.bench.front import draw_front, on_the_front
from flipguard.bench.markdown import bench_markdown
from flipguard.bench.tables import LEVEL, Row, read_rows, worse_than, write_runs
from flipguard.statistics import holm

ERROR, NFR = "error_rate_new", "relative_negative_flip_rate"
RUNS = {
    # Cost, inference, then error and relative NFR for three seeds.
    "plain": (1.0, 1.0, [0.30, 0.31, 0.33], [0.40, 0.41, 0.39]),
    "held": (4.0, 1.0, [0.29, 0.31, 0.30], [0.20, 0.21, 0.22]),
    "close": (5.0, 1.0, [0.31, 0.30, 0.32], [0.21, 0.20, 0.24]),
    "many": (8.0, 8.0, [0.20, 0.21, 0.22], [0.10, 0.11, 0.12]),
}


@pytest.fixture
def rows(tmp_path: Path) -> dict[str, Row]:
    records = [
        {"row": name, "seed": seed, "pair": 0, "part": "test", "training_cost": cost, "seconds": 1.0, "n": 100}
        | {"inference_flops": 10 * inference, ERROR: error[seed], NFR: flips[seed], "hardware": "CPU"}
        for name, (cost, inference, error, flips) in RUNS.items()
        for seed in range(3)
    ]
    write_runs(tmp_path, records, {"title": "By hand"})
    return {row.name: row for row in read_rows(tmp_path)}


def test_the_best_answers_at_the_cost_of_one_model(rows: dict[str, Row]) -> None:
    assert rows["many"].inference_cost == pytest.approx(8)
    assert [name for name, row in rows.items() if row.cells[NFR].best] == ["held"]
    assert rows["many"].cells[NFR].p is None


def test_a_part_of_ensembles_alone_counts_their_answers_by_those_of_one_network(tmp_path: Path) -> None:
    common = {"seed": 0, "pair": 0, "training_cost": 1.0, "seconds": 1.0, "n": 100, ERROR: 0.3, NFR: 0.4}
    measured = [("one", 10.0, "test"), ("three", 30.0, "test"), ("three", 30.0, "validation")]
    write_runs(
        tmp_path, [common | dict(zip(("row", "inference_flops", "part"), each, strict=True)) for each in measured], {}
    )
    assert [row.inference_cost for part in ("test", "validation") for row in read_rows(tmp_path, part)] == [1, 3, 3]


def test_p_values_are_of_moderated_t_and_adjusted_over_the_rows(rows: dict[str, Row]) -> None:
    """Both rows scatter alike, so they share one variance with four degrees of freedom (two each: -ψ(1) is γ)."""
    apart = {name: np.subtract(RUNS[name][3], RUNS["held"][3]) for name in ("plain", "close")}
    pooled = np.exp(np.mean([np.log(np.var(values, ddof=1)) for values in apart.values()]) + np.euler_gamma)
    raw = {name: 2 * stats.t.sf(values.mean() / np.sqrt(pooled / 3), 4) for name, values in apart.items()}
    assert raw["plain"] < raw["close"]
    assert rows["plain"].cells[NFR].p == pytest.approx(2 * raw["plain"])
    assert rows["close"].cells[NFR].p == pytest.approx(raw["close"])


@pytest.mark.parametrize(("number", "seeds"), [(3, 2), (9, 3), (30, 3), (30, 5)])
def test_the_row_that_is_best_is_seldom_taken_for_worse(number: int, seeds: int) -> None:
    """All are equally good, and scatter differently: whichever is meant, it keeps its mark."""
    draw = np.random.default_rng(number + seeds)
    lost, tables = 0, 2000
    for _ in range(tables):
        spread = np.exp(draw.normal(0, 0.4, (number, 1)))
        values = draw.normal(size=(number, seeds)) * spread + draw.normal(size=seeds)
        best = int(values.mean(1).argmin())
        others = [place for place in range(number) if place != best]
        chances = worse_than(dict(enumerate(values[best])), [dict(enumerate(values[place])) for place in others])
        lost += best != 0 and chances[others.index(0)] <= LEVEL
    assert lost / tables < 0.06


def test_rows_that_are_far_behind_are_shown_to_be_although_many() -> None:
    """Thirty rows and three seeds, half of them behind by six times what seeds scatter: alone hardly one would be."""
    draw = np.random.default_rng(3)
    values = draw.normal(size=(30, 3))
    values[15:] += 6
    best = int(values.mean(1).argmin())
    others = [place for place in range(30) if place != best]
    chances = worse_than(dict(enumerate(values[best])), [dict(enumerate(values[place])) for place in others])
    worse = {others[place] for place, p in chances.items() if p <= LEVEL}
    assert {*range(15, 30)} <= worse
    alone = holm([float(stats.ttest_rel(values[place], values[best]).pvalue) for place in others])
    assert np.mean(alone <= LEVEL) < 0.3


def test_what_seeds_cannot_tell_has_no_p_value() -> None:
    """No seed in common, one alone, or rows that all differ by the same in every seed."""
    best = {0: 0.5, 1: 0.25}
    assert worse_than(best, [{2: 1.0, 3: 1.0}, {0: 1.0}]) == {}
    assert worse_than(best, [{0: 1.0, 1: 0.75}]) == {}
    # By rounding alone they would scatter.
    assert worse_than({0: 0.1, 1: 0.2}, [{0: 0.3, 1: 0.4}, {0: 0.5, 1: 0.6}]) == {}
    assert [*worse_than(best, [{0: np.inf, 1: np.inf}, {0: 1.0, 1: 0.8}])] == [1]


def test_intervals_are_students_over_seeds(rows: dict[str, Row]) -> None:
    values = RUNS["held"][3]
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    cell = rows["held"].cells[NFR]
    assert cell.reach() == pytest.approx((high - low) / 2)


def test_the_page_marks_the_best_and_what_is_close(rows: dict[str, Row]) -> None:
    page = bench_markdown("By hand", {"test": list(rows.values())}, []).split("### 95 %")[0]
    lines = {line.split("|")[1].strip(): line for line in page.splitlines() if line.startswith("| ")}
    assert "**21.00 ± 1.00**" in lines["held"]
    assert "21.67 ± 2.08 ≈" in lines["close"]
    assert "40.00 ± 1.00 |" in lines["plain"]
    assert "11.00 ± 1.00 |" in lines["many"]


def test_who_is_beaten_in_nothing_is_on_the_front(rows: dict[str, Row]) -> None:
    # `close` costs more than `held` and has more of both; each of the others is best in something.
    assert on_the_front(list(rows.values())) == {"plain", "held", "many"}


def test_rows_without_errors_leave_no_picture(tmp_path: Path, rows: dict[str, Row]) -> None:
    (tmp_path / "front.svg").write_text("of another run")
    perfect = replace(rows["held"], cells={ERROR: rows["held"].cells[ERROR]})
    draw_front("By hand", [perfect], tmp_path / "front.svg")
    assert not (tmp_path / "front.svg").exists()
