"""The list of methods at the widths of terminals and logs."""

import re

import pytest

from flipguard.methods import method_cards
from flipguard.reports.demo import MethodsReport
from flipguard.reports.terminal import plain_text


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_no_word_is_broken_and_no_line_is_too_long(width: int) -> None:
    cards = method_cards()
    text = plain_text(MethodsReport(cards), width)
    assert max(map(len, text.splitlines())) <= width
    for card in cards:
        assert re.search(rf"^{card['name']} ", text, re.MULTILINE), card["name"]
        for name in card["parameters"]:
            assert f"{name}=" in text
    for word in ("objective", "ensemble", "Bhojanapalli", "label_smoothing=0.0"):
        assert word in text


@pytest.mark.parametrize("width", [60, 100, 160, 200])
def test_each_method_says_what_it_does(width: int) -> None:
    cards = method_cards()
    lines = plain_text(MethodsReport(cards), width).splitlines()
    if "what it does" in lines[0]:
        column = slice(lines[0].index("what it does"), lines[0].index("kind"))
        lines = [line[column] for line in lines]
    said = " ".join(" ".join(lines).split())
    assert [card["name"] for card in cards if card["summary"] not in said] == []


def test_more_width_makes_fewer_lines() -> None:
    heights = [len(plain_text(MethodsReport(method_cards()), width).splitlines()) for width in (120, 140, 160)]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] > heights[-1]
