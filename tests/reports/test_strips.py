import numpy as np
import pytest

import flipguard
from flipguard.comparison import Comparison, Matrix
from flipguard.reports.strips import WIDTH, OutcomeStrip, shares, sparkline
from flipguard.reports.terminal import matrix_report, plain_text
from flipguard.reports.wording import percent


def test_the_strip_has_a_cell_for_every_kind_that_occurs(comparison: Comparison) -> None:
    strip, legend = plain_text(OutcomeStrip(comparison)).splitlines()
    assert len(strip) == WIDTH
    assert [sign for sign in "█▼▲░" if sign in strip] == list("█▼▲░")
    share = strip.count("▼") / WIDTH
    assert share == pytest.approx(float(comparison.negative_flip_rate or 0), abs=1.1 / WIDTH)
    assert "▼ negative flips" in legend


@pytest.mark.parametrize("width", [50, 60, 80])
def test_a_narrow_terminal_breaks_between_the_meanings(comparison: Comparison, width: int) -> None:
    strip, *legend = plain_text(OutcomeStrip(comparison), width).splitlines()
    assert len(strip) == min(WIDTH, width)
    assert len(legend) == 2
    assert legend[0].startswith("█ stayed right")
    assert legend[1].startswith("▲ positive flips")
    assert max(map(len, legend)) <= width


@pytest.mark.parametrize("counts", [[1, 0, 0, 0], [1, 1, 1, 10**9], [3, 5, 7, 11], [0, 0, 2, 1]])
def test_cells_fill_the_width_and_miss_nothing(counts: list[int]) -> None:
    cells = shares(counts, 31)
    assert sum(cells) == 31
    assert [cell > 0 for cell in cells] == [count > 0 for count in counts]


def test_a_sparkline_of_nothing_is_flat() -> None:
    assert sparkline([0.0, 0.0, None]) == "▁▁ "


def test_a_chain_of_three_shows_its_history() -> None:
    versions = [{"id": [1, 2, 3], "label": [0, 1, 0], "prediction": p} for p in ([0, 1, 0], [0, 0, 0], [1, 1, 1])]
    lines = plain_text(matrix_report(flipguard.matrix(versions))).splitlines()
    assert [line.split() for line in lines if line.startswith(("error ", "NFR of the update"))] == [
        ["error", "▁▄█", "0.00%", "66.67%"],
        ["NFR", "of", "the", "update", "▄█", "33.33%", "66.67%"],
    ]
    assert "over time" not in plain_text(matrix_report(flipguard.matrix(versions[:2])))


@pytest.fixture(scope="module")
def long_chain() -> Matrix:
    rng = np.random.default_rng(3)
    label = np.arange(101) % 5
    versions = [
        {
            "id": np.arange(101),
            "label": label,
            "prediction": np.where(rng.random(101) < 0.8, label, 0),
            "model": f"m{i}",
        }
        for i in range(11)
    ]
    return flipguard.matrix(versions)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_long_chain_keeps_its_numbers_whole_at_every_width(width: int, long_chain: Matrix) -> None:
    text = plain_text(matrix_report(long_chain), width)
    assert max(map(len, text.splitlines())) <= width
    words = text.split()
    for i, row in enumerate(long_chain.negative_flip_rate):
        for j, figure in enumerate(row):
            assert i == j or percent(figure.value) in words
    assert words.count("–") == 11
    assert text.count("from ↓ to →") == {40: 6, 80: 2, 120: 1}[width]
