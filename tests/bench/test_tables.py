"""What a table says of its rows: the best, who is not shown to be worse, and who is on the front."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flipguard.bench.front import draw_front, on_the_front
from flipguard.bench.markdown import bench_markdown
from flipguard.bench.tables import Row, read_rows, write_runs

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


def test_p_values_are_adjusted_over_the_rows(rows: dict[str, Row]) -> None:
    raw = {name: stats.ttest_rel(RUNS[name][3], RUNS["held"][3]).pvalue for name in ("plain", "close")}
    assert raw["plain"] < raw["close"]
    assert rows["plain"].cells[NFR].p == pytest.approx(2 * raw["plain"])
    assert rows["close"].cells[NFR].p == pytest.approx(raw["close"])


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
